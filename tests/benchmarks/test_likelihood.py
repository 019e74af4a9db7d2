"""Scoring of choices against lm-eval's own backend: one prefill per context instead of one per choice."""

from __future__ import annotations

import copy
import random
import statistics
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
from goals import Recorder
from lm_eval.models.huggingface import HFLM
from models import CAUSAL_BASE_NAME, CAUSAL_NAME, FORMATS, REAL_NAME, Pair
from ratios import Timed, compare
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from exitbench.harness.engine.decoding import likelihood
from exitbench.harness.engine.decoding.branches import Context
from exitbench.harness.engine.decoding.likelihood import score

pytestmark = pytest.mark.benchmark(disable_gc=True)

GOAL, GOAL_OF_BATCHES, NO_SLOWER = 2.5, 2.0, 0.9
CLOSE, CLOSE_IN_BF16 = 2e-3, 0.01
"""Largest differences of log-likelihoods: absolute in fp32, relative in bf16."""
CONTEXTS = {REAL_NAME: 2, CAUSAL_NAME: 8, CAUSAL_BASE_NAME: 2}


def hellaswag(pair: Pair, count: int) -> list[Context]:
    """Return contexts of 60 to 90 tokens with four choices of 10 to 30, as in HellaSwag."""
    draw = random.Random(7)

    def tokens(least: int, most: int) -> list[int]:
        return [draw.randrange(3, pair.shape.config["vocab_size"]) for _ in range(draw.randint(least, most))]

    return [Context(tokens(60, 90), [tokens(10, 30) for _ in range(4)]) for _ in range(count)]


def lm_eval(model: Any, batch_size: int = 1) -> HFLM:
    """Return lm-eval's backend for a transformers model; it gets tokens, never texts."""
    nothing = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")), eos_token="a")
    return HFLM(pretrained=model, tokenizer=nothing, batch_size=batch_size, backend="causal")


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("pair", CONTEXTS, indirect=True)
def test_choices_at_full_depth(pair: Pair, rows: int, benchmark: Any, record: Recorder) -> None:
    """Time the scoring of HellaSwag-shaped requests; ``rows`` is the engine's batch size, lm-eval's is 1."""
    contexts, full = hellaswag(pair, CONTEXTS[pair.label]), pair.full()
    local = Timed(lambda _: score(pair.checkpoint, contexts, full, rows=rows, traced=False))
    reference = scoring_in_lm_eval(lm_eval(pair.reference), contexts)
    for (logprob, is_greedy), (their_logprob, was_greedy) in zip(totals(local), reference.once(), strict=True):
        assert abs(logprob - their_logprob) < CLOSE and is_greedy == was_greedy, "what differs cannot be compared"
    record_scoring(reference, local, contexts, GOAL, benchmark, record)


@pytest.mark.parametrize(("number_format", "rows"), [("fp32", 8), ("fp32", 16), ("bf16", 1), ("bf16", 8), ("bf16", 16)])
@pytest.mark.parametrize("pair", [REAL_NAME], indirect=True)
def test_choices_in_batches(pair: Pair, number_format: str, rows: int, benchmark: Any, record: Recorder) -> None:
    """Time the scoring of HellaSwag-shaped requests; lm-eval has the engine's batch size and number format."""
    dtype, contexts, full = FORMATS[number_format], hellaswag(pair, 8), pair.full()
    checkpoint, goal = pair.loaded(dtype), GOAL if rows == 1 else GOAL_OF_BATCHES
    local = Timed(lambda _: score(checkpoint, contexts, full, rows=rows, traced=False))
    reference = scoring_in_lm_eval(lm_eval(copy.deepcopy(pair.reference).to(dtype), rows), contexts)
    for (logprob, _), (their_logprob, _) in zip(totals(local), reference.once(), strict=True):
        allowed = CLOSE if number_format == "fp32" else CLOSE_IN_BF16 * abs(their_logprob)
        assert abs(logprob - their_logprob) < allowed, "what differs cannot be compared"
    record_scoring(reference, local, contexts, goal, benchmark, record)


def scoring_in_lm_eval(backend: HFLM, contexts: Sequence[Context]) -> Timed:
    """Return the action that scores every choice of some contexts with lm-eval."""
    requests = [(None, list(each.context_ids), list(ids)) for each in contexts for ids in each.continuations]
    return Timed(lambda _: backend._loglikelihood_tokens(requests, disable_tqdm=True))


def totals(local: Timed) -> list[tuple[float, bool]]:
    """Score choices in the engine; return each one's log-likelihood, and whether it is the greedy answer."""
    return [(sum(choice.logprobs), choice.is_greedy) for of_context in local.once() for choice in of_context]


def record_scoring(
    reference: Timed, local: Timed, contexts: Sequence[Context], goal: float, benchmark: Any, record: Recorder
) -> None:
    """Compare the engine's scoring with lm-eval's and store the ratio of their times."""
    comparison = compare(benchmark, reference, local)
    requests_per_s = sum(len(each.continuations) for each in contexts) / benchmark.stats.stats.median
    record(
        comparison, "x lm-eval", at_least=goal, note=f"{requests_per_s:.1f} choices/s", requests_per_s=requests_per_s
    )


@pytest.mark.parametrize("tokens", [75, 600])
@pytest.mark.parametrize("pair", CONTEXTS, indirect=True)
def test_forced_decode_of_one_token(pair: Pair, tokens: int, benchmark: Any, record: Recorder) -> None:
    """Time the scoring of single-letter choices in the decode loop, against one forward pass.

    The longer context is as long as a few-shot prompt.
    """
    (prompt,), full = pair.prompts(1, tokens), pair.full()
    contexts = [Context(prompt, [[5], [6], [7], [8]])]

    def run() -> Any:
        return score(pair.checkpoint, contexts, full, traced=False)

    def forced() -> Any:
        with patch.object(likelihood, "fixed_depth", lambda *_: None):
            return run()

    at_once = Timed(lambda _: run())
    for expected, actual in zip(run()[0], forced()[0], strict=True):
        assert abs(sum(expected.logprobs) - sum(actual.logprobs)) < CLOSE, "what differs cannot be compared"
    comparison = compare(benchmark, at_once, Timed(lambda _: forced()))
    ms = statistics.median(comparison.base_s) * 1000
    record(comparison, "x one pass", at_least=NO_SLOWER, note=f"{ms:.1f} ms in one pass")
