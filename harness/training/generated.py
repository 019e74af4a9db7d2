"""Text that a frozen model samples, for exit heads to learn on (HEADS: self-supervised)."""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from exitbench.harness.engine.model.positions import padded
from exitbench.harness.training.data import Example
from exitbench.harness.training.models import is_causal
from exitbench.harness.training.recipe import ExitHeadsRecipe

BATCH_ROWS = 64


@torch.no_grad()
def generated_examples(
    settings: ExitHeadsRecipe,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    portions: list[tuple[int, list[Example]]],
    seed: int,
) -> list[Example]:
    """Sample texts from the model's own distribution after the recipe's prompts, or after those of its documents.

    The same seed gives the same texts.
    """
    if settings.prompts:
        prompts = [np.array(tokenizer(prompt).input_ids) for prompt in settings.prompts]
    else:
        prompts = [example.source for _, examples in portions for example in examples]
        order = np.random.default_rng(seed).permutation(len(prompts))
        prompts = [prompts[index] for index in order[: settings.texts]]
    chosen = [prompts[index % len(prompts)] for index in range(settings.texts)]
    chosen.sort(key=len)
    torch.manual_seed(seed)
    model.eval()
    found: list[Example] = []
    for start in range(0, len(chosen), BATCH_ROWS):
        found += _sample(model, chosen[start : start + BATCH_ROWS], settings.text_tokens)
    return found


def _sample(model: PreTrainedModel, prompts: list[np.ndarray], n_tokens: int) -> list[Example]:
    # A causal model goes on from the right end, so that is where all prompts must end.
    ids, mask = padded([prompt.tolist() for prompt in prompts], model.device, "left" if is_causal(model) else "right")
    made = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids) if mask is None else mask.long(),
        do_sample=True,
        temperature=1.0,  # the checkpoint's own settings may say otherwise
        top_k=0,
        top_p=1.0,
        max_new_tokens=n_tokens,
    ).cpu()
    answers = made[:, ids.shape[1] :] if is_causal(model) else made[:, 1:]
    ends = model.generation_config.eos_token_id
    return [Example(prompt, _until(answer.numpy(), ends)) for prompt, answer in zip(prompts, answers, strict=True)]


def _until(ids: np.ndarray, ends: int | list[int]) -> np.ndarray:
    """The ids up to the first end token, which is kept."""
    places = np.flatnonzero(np.isin(ids, ends))
    return ids[: places[0] + 1] if len(places) else ids
