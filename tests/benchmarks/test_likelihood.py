"""Scoring of choices against lm-eval's own backend: one prefill per context instead of one per choice."""

from __future__ import annotations

import random
import statistics
from typing import Any
from unittest.mock import patch

import pytest
from goals import record
from lm_eval.models.huggingface import HFLM
from models import CAUSAL_BASE_NAME, CAUSAL_NAME, REAL_NAME, Pair
from ratios import Timed, compare
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from exitbench.harness.engine.decoding import likelihood
from exitbench.harness.engine.decoding.branches import Context
from exitbench.harness.engine.decoding.likelihood import score

pytestmark = pytest.mark.benchmark(disable_gc=True)

GOAL, NO_SLOWER = 2.5, 0.9
CLOSE = 2e-3
CONTEXTS = {REAL_NAME: 2, CAUSAL_NAME: 8, CAUSAL_BASE_NAME: 2}


def hellaswag(pair: Pair, count: int) -> list[Context]:
    """Return contexts of 60 to 90 tokens with four choices of 10 to 30, as in HellaSwag."""
    draw = random.Random(7)

    def tokens(least: int, most: int) -> list[int]:
        return [draw.randrange(3, pair.shape.config["vocab_size"]) for _ in range(draw.randint(least, most))]

    return [Context(tokens(60, 90), [tokens(10, 30) for _ in range(4)]) for _ in range(count)]


def lm_eval(pair: Pair) -> HFLM:
    """Return lm-eval's backend for transformers models, one request at a time; it gets tokens, never texts."""
    nothing = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")), eos_token="a")
    return HFLM(pretrained=pair.reference, tokenizer=nothing, batch_size=1, backend="causal")


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("pair", CONTEXTS, indirect=True)
def test_choices_at_full_depth(pair: Pair, rows: int, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Time the scoring of HellaSwag-shaped requests; ``rows`` is the engine's batch size, lm-eval's is 1."""
    contexts, backend, full = hellaswag(pair, CONTEXTS[pair.label]), lm_eval(pair), pair.full()
    requests = [(None, list(each.context_ids), list(ids)) for each in contexts for ids in each.continuations]
    reference = Timed(lambda _: backend._loglikelihood_tokens(requests, disable_tqdm=True))
    local = Timed(lambda _: score(pair.checkpoint, contexts, full, rows=rows, traced=False))
    scored = [(sum(choice.logprobs), choice.is_greedy) for of_context in local.once() for choice in of_context]
    for (logprob, is_greedy), (their_logprob, was_greedy) in zip(scored, reference.once(), strict=True):
        assert abs(logprob - their_logprob) < CLOSE and is_greedy == was_greedy, "what differs cannot be compared"
    comparison = compare(benchmark, reference, local)
    requests_per_s = len(requests) / benchmark.stats.stats.median
    record(
        benchmark,
        capsys,
        comparison.ratio,
        "x lm-eval",
        at_least=GOAL,
        note=f"{requests_per_s:.1f} choices/s; {comparison.spread()}",
        requests_per_s=requests_per_s,
        **comparison.about(),
    )


@pytest.mark.parametrize("tokens", [75, 600])
@pytest.mark.parametrize("pair", CONTEXTS, indirect=True)
def test_forced_decode_of_one_token(
    pair: Pair, tokens: int, benchmark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
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
    record(
        benchmark,
        capsys,
        comparison.ratio,
        "x one pass",
        at_least=NO_SLOWER,
        note=f"{ms:.1f} ms in one pass; {comparison.spread()}",
        **comparison.about(),
    )
