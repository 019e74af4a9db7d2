"""Prefill against the same work in transformers, for encoder-decoder and decoder-only models.

The shortest row of a batch is half as long as the longest; both sides pad.
"""

from __future__ import annotations

from typing import Any

import pytest
from goals import Recorder
from models import BASE_NAME, CAUSAL_NAME, REAL_NAME, SMALL_NAME, Pair
from ratios import Timed, compare
from torch import Tensor

from exitbench.harness.engine.decoding.decode import prefill
from exitbench.harness.engine.decoding.generation import Request

pytestmark = pytest.mark.benchmark(disable_gc=True)

NO_SLOWER = 1.0
SIZES = [(1, 32), (1, 128), (1, 512), (8, 128)]


@pytest.mark.parametrize(("rows", "tokens"), SIZES)
@pytest.mark.parametrize("pair", [REAL_NAME, SMALL_NAME, CAUSAL_NAME, BASE_NAME], indirect=True)
def test_prefill(pair: Pair, rows: int, tokens: int, benchmark: Any, record: Recorder) -> None:
    """Time the engine's prefill against the same work in transformers' layers."""
    prompts = pair.prompts(rows, tokens)
    inputs, requests = pair.inputs(prompts), [Request(prompt) for prompt in prompts]
    engine = Timed(lambda _: prefill(pair.checkpoint.model, requests, pair.shape.new_tokens))
    engine.once(), prefilled(pair, inputs)
    comparison = compare(benchmark, Timed(lambda _: prefilled(pair, inputs)), engine, budget_s=2.0)
    tokens_per_s = sum(map(len, prompts)) / benchmark.stats.stats.median
    record(
        comparison, "x transformers", at_least=NO_SLOWER, note=f"{tokens_per_s:.0f} tokens/s", tokens_per_s=tokens_per_s
    )


def prefilled(pair: Pair, inputs: dict[str, Tensor]) -> object:
    """Do the work of a prefill in transformers.

    For an encoder-decoder model: the encoder, and keys and values of every cross-attention, which `generate` computes
    when it decodes the first token. For others: all blocks, with a cache, without the LM head.
    """
    if pair.shape.family != "t5":
        return pair.reference.model(**inputs, use_cache=True)
    source_BSD = pair.reference.encoder(**inputs).last_hidden_state
    crossing = [block.layer[1].EncDecAttention for block in pair.reference.decoder.block]
    return [(attention.k(source_BSD), attention.v(source_BSD)) for attention in crossing]
