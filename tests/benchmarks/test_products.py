"""Lower bound of a decode step's time at batch 1: the matrix products with all weights, and nothing else."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch
from goals import Recorder
from models import BASE_NAME, LARGE_NAME, REAL_NAME, SMALL_NAME, Pair
from ratios import Timed, compare

from exitbench.harness.engine.model.model import Transformer

pytestmark = pytest.mark.benchmark(disable_gc=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("pair", [REAL_NAME, SMALL_NAME, BASE_NAME, LARGE_NAME], indirect=True)
def test_products_alone(pair: Pair, dtype: torch.dtype, benchmark: Any, record: Recorder) -> None:
    """Measure the matrix products' share of decoding time, and the bytes of weights that they read per second."""
    checkpoint = pair.checkpoint if dtype == torch.float32 else pair.loaded(dtype)
    new_tokens, weights = pair.shape.new_tokens, token_projections(checkpoint.model)
    inputs = {projection.weight.shape[1] for projection in weights}
    x = {width: torch.randn(1, width, dtype=dtype) for width in inputs}

    def products(_: object) -> None:
        for _ in range(new_tokens):
            for projection in weights:
                projection(x[projection.weight.shape[1]])

    comparison = compare(benchmark, pair.decoding(pair.full(), pair.prompts(), checkpoint=checkpoint), Timed(products))
    took_s = statistics.median(comparison.measured_s) / new_tokens
    read_bytes = sum(projection.weight.numel() * projection.weight.element_size() for projection in weights)
    note = f"{took_s * 1e3:.2f} ms a token; {read_bytes / 1e6:.0f} MB at {read_bytes / took_s / 1e9:.1f} GB/s"
    record(1 / comparison.ratio, "%", note=note, read_bytes=read_bytes, **comparison.about())


def token_projections(model: Transformer) -> list[Any]:
    """Return the projections that each token passes, in order: those of every block, then the LM head."""
    names = ("qkv", "attention_out", "cross_q", "cross_out", "up", "down")
    of_blocks = [getattr(block, name) for block in model.weights.blocks for name in names]
    head = model.weights.read_out or model.weights.lm_head
    return [projection for projection in (*of_blocks, head) if projection is not None]
