"""Hidden states of a frozen model at its exit blocks: computed once, then read from a memory-mapped file at each step.

The file is stored with the resume points of its training and is deleted with them. An interrupted computation continues
after its last complete batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from exitbench.errors import UserError
from exitbench.harness.training.data import Batch, Example, cut_batches, pad
from exitbench.harness.training.models import is_causal
from exitbench.harness.training.objectives import CACHED, ExitHeadsObjective
from exitbench.harness.training.recipe import OptimisationRecipe
from exitbench.harness.training.trainer import computed_precision
from exitbench.results.files.atomic import write_whole_file

STATES, PROGRESS = "states.f32", "states.json"


def cached_states(
    model: PreTrainedModel,
    objective: ExitHeadsObjective,
    examples: Sequence[Example],
    settings: OptimisationRecipe,
    seed: int,
    work: Path,
    on_tokens: Callable[[int], None],
) -> Tensor:
    """Return states of N tokens after K blocks, and the LM head's input after the last block, [N, K + 1, D] in fp32.

    The K blocks are those with an exit head; D is the hidden size. Examples are taken in random order until they have
    the requested number of tokens.

    Args:
        model: The frozen model.
        objective: The objective, whose settings determine the blocks, the token positions and the number of tokens.
        examples: Tokenized training examples.
        settings: Optimization settings; used are the tokens per batch, and the precision in which the frozen model
            runs.
        seed: Seed of the order of examples.
        work: Folder in which the file of states is stored; a computation interrupted there is continued.
        on_tokens: Callback that receives the number of tokens whose states have been computed.

    Returns:
        A memory-mapped tensor. It has fewer tokens than requested if the examples have fewer.

    Raises:
        UserError: The examples have no tokens.
    """
    causal, most_tokens = is_causal(model), objective.settings.cached_tokens
    everywhere = causal and objective.settings.positions == "all"
    order, chosen, n_tokens = np.random.default_rng(seed).permutation(len(examples)), [], 0
    for example in (examples[index] for index in order):
        if n_tokens >= most_tokens:
            break
        chosen.append(example)
        n_tokens += len(example.source) + len(example.target) - 1 if everywhere else len(example.target)
    n_tokens = min(n_tokens, most_tokens)
    shape = (n_tokens, len(objective.blocks) + 1, objective.own.head.shape[1])
    file, progress_file = work / STATES, work / PROGRESS
    batches_done, tokens_done = json.loads(progress_file.read_text("utf-8")) if progress_file.exists() else (0, 0)
    stored = np.memmap(file, np.float32, "r+" if batches_done else "w+", shape=shape)
    device = model.device.type
    for number, batch in enumerate(cut_batches(chosen, settings.batch_tokens)):
        if number < batches_done:
            continue
        inputs = {name: tensor.to(model.device) for name, tensor in pad(batch, causal=causal).items()}
        with torch.autocast(device, torch.bfloat16, enabled=computed_precision(settings) == "bf16"):
            states = objective.states(model, inputs).float().cpu().numpy()[: n_tokens - tokens_done]
        stored[tokens_done : tokens_done + len(states)] = states
        stored.flush()
        tokens_done += len(states)
        write_whole_file(progress_file, json.dumps([number + 1, tokens_done]))
        on_tokens(tokens_done)
    if not tokens_done:
        raise UserError("no states to train on: the texts have no tokens.")
    return torch.from_numpy(stored)


def state_batches(states: Tensor, n_tokens: int, seed: int, step: int) -> Iterator[Batch]:
    """Yield batches of cached states without end, beginning with the batch of a training step.

    In every epoch each token occurs once, in an order that depends on seed and epoch. The labels in a batch are
    zeros; they only tell the number of tokens.

    Args:
        states: Cached states of all tokens, [tokens, K + 1, D], as returned by `cached_states`.
        n_tokens: Number of tokens per batch; the last batch of an epoch may have fewer.
        seed: Seed of the order of tokens.
        step: Training step (0-based) of the first batch, to continue an interrupted training.
    """
    per_epoch = -(-len(states) // n_tokens)
    while True:
        epoch, place = divmod(step, per_epoch)
        order = torch.randperm(len(states), generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
        chosen = order[place * n_tokens : (place + 1) * n_tokens]
        # The trainer counts tokens by their labels.
        yield {CACHED: states[chosen], "labels": torch.zeros(len(chosen), dtype=torch.long)}
        step += 1
