"""Speed of probing (recording every block's read-out of every token) over step-by-step code with transformers."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from goals import Recorder
from models import BASE_NAME, REAL_NAME, SMALL_NAME, Pair
from ratios import Timed, compare
from torch import Tensor

from exitbench.harness.cells.cell import UNTIMED_ROWS as BATCH_ROWS
from exitbench.harness.engine.decoding.probe import LOGITS_BUDGET_BYTES, probe, states_of

pytestmark = pytest.mark.benchmark(disable_gc=True)

GOAL = 20.0
NEW_TOKENS = {REAL_NAME: 16, SMALL_NAME: 32, BASE_NAME: 16}
STEPPED = {REAL_NAME: 3, SMALL_NAME: BATCH_ROWS, BASE_NAME: 3}
"""Documents timed step by step: all, or an even subset by length if all would take minutes."""


@pytest.mark.parametrize("pair", NEW_TOKENS, indirect=True)
def test_probe(pair: Pair, benchmark: Any, record: Recorder) -> None:
    """Measure the speed-up of a probe cell over `step_by_step`, which takes one document after another.

    A cell decodes its documents as a batch and probes the answers. Two more ratios to `step_by_step` are noted: of
    probing given answers alone, and of the LM-head products alone (one per token and block), which bounds both.
    """
    prompts, new_tokens = pair.prompts(BATCH_ROWS), NEW_TOKENS[pair.label]
    stepped = evenly_spaced(prompts, STEPPED[pair.label])
    decoding = pair.decoding(pair.full(), prompts, new_tokens)
    answers = [answer.token_ids for answer in decoding.once()]
    probing = Timed(lambda _: probe(pair.checkpoint, prompts, answers))
    cell = Timed(lambda _: probe(pair.checkpoint, prompts, [answer.token_ids for answer in decoding.once()]))
    assert_same(step_by_step(pair, prompts[0]), cell.once(), new_tokens)
    comparison = compare(benchmark, Timed(lambda _: [step_by_step(pair, prompt) for prompt in stepped]), cell)
    clock = benchmark._timer
    probed_s = statistics.median(probing.seconds(clock) for _ in range(3))
    per_document = len(stepped) / BATCH_ROWS  # scales to one document: the mean over those timed
    stepped_s = statistics.median(comparison.base_s) / per_document
    given_answers, bound = stepped_s / probed_s, stepped_s / head_s(pair, prompts, answers, clock)
    tokens_per_s = BATCH_ROWS * new_tokens / benchmark.stats.stats.median
    record(
        comparison,
        "x step by step",
        over=per_document,
        at_least=GOAL,
        note=(
            f"{given_answers:.1f} of known answers; {bound:.1f} if it were the LM head's products alone; "
            f"{tokens_per_s:.0f} tokens/s"
        ),
        of_known_answers=given_answers,
        of_the_head_alone=bound,
        tokens_per_s=tokens_per_s,
        probed_s=probed_s,
        documents=BATCH_ROWS,
        stepped_documents=len(stepped),
    )


def head_s(pair: Pair, prompts: list[list[int]], answers: list[list[int]], clock: Callable[[], float]) -> float:
    """Return the seconds that a probe's LM-head products take."""
    states_LND = states_of(pair.checkpoint, prompts, answers)
    few = max(1, LOGITS_BUDGET_BYTES // (len(states_LND) * pair.checkpoint.model.vocab_size * 4))
    product = Timed(lambda _: [pair.checkpoint.model.logits(piece) for piece in torch.split(states_LND, few, dim=1)])
    return statistics.median(product.seconds(clock) for _ in range(3))


def evenly_spaced(prompts: list[list[int]], few: int) -> list[list[int]]:
    """Return an evenly spaced subset of prompts sorted by length, from the longest to the shortest."""
    return [prompts[(len(prompts) - 1) * at // (few - 1)] for at in range(few)]


def step_by_step(pair: Pair, prompt: list[int]) -> dict[str, np.ndarray]:
    """Record signals as plain transformers code would: `generate` with hidden states, then a read-out of each.

    For every step and block: final norm (already applied to the last state), LM head, softmax, and from it the most
    probable token, its probability and the entropy, each [N, L]. A probe records fifteen more columns.
    """
    model = pair.reference
    output = model.generate(
        input_ids=torch.tensor([prompt]),
        max_new_tokens=NEW_TOKENS[pair.label],
        do_sample=False,
        output_hidden_states=True,
        return_dict_in_generate=True,
    )
    rows = [
        [read_out(model, state, is_last=block == pair.n_blocks) for block, state in enumerate(states[1:], 1)]
        for states in (output.decoder_hidden_states if pair.shape.family == "t5" else output.hidden_states)
    ]
    columns = np.array(rows)
    return {name: columns[..., place] for place, name in enumerate(("top1_id", "p1", "entropy"))}


def read_out(model: Any, state: Tensor, *, is_last: bool) -> tuple[float, float, float]:
    """Return the most probable token, its probability and the entropy (nats) of the last of the states [1, S, D]."""
    norm = model.decoder.final_layer_norm if model.config.is_encoder_decoder else model.model.norm
    normed = state[:, -1:] if is_last else norm(state[:, -1:])
    if getattr(model.config, "scale_decoder_outputs", False):
        normed = normed * model.model_dim**-0.5
    p_V = torch.softmax(model.lm_head(normed)[0, 0], dim=-1)
    p1, top1 = p_V.max(dim=-1)
    return top1.item(), p1.item(), torch.special.entr(p_V).sum().item()


def assert_same(expected: dict[str, np.ndarray], actual: dict[str, Any], tokens: int) -> None:
    """Assert that a probe's signals of the first document equal the expected ones."""
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name][:tokens], values, rtol=2e-3, atol=1e-5, err_msg=name)
