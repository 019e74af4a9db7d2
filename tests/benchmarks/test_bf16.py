"""Weights in bf16 against fp32, at batch 1 and full depth: a step is memory-bound, or overhead-bound in a small model.

Effects of bf16 on answers, scores and exits are measured on trained models, by pairs of runs:

    exitbench run builtin-full && exitbench run builtin-bf16
    exitbench sql @number_formats
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from goals import Recorder
from models import BASE_NAME, LARGE_NAME, REAL_NAME, SMALL_NAME, Pair
from ratios import compare

GOALS = {REAL_NAME: 1.6, SMALL_NAME: 1.0, BASE_NAME: 1.7, LARGE_NAME: 1.7}

pytestmark = pytest.mark.benchmark(disable_gc=True)
MULTIPLIES_BF16 = pytest.mark.skipif(
    not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()),
    reason="this CPU has neither AVX512-bf16 nor AMX: bf16 is converted, not multiplied",
)
PAIRS = [pytest.param(name, marks=() if name == SMALL_NAME else MULTIPLIES_BF16) for name in GOALS]


@pytest.mark.parametrize("pair", PAIRS, indirect=True)
def test_bf16(pair: Pair, benchmark: Any, record: Recorder) -> None:
    """Compare tokens/s of decoding in bf16 and in fp32; the tokens may differ."""
    prompts, halved = pair.prompts(), pair.loaded(torch.bfloat16)
    fp32, bf16 = (pair.decoding(pair.full(), prompts, checkpoint=used) for used in (pair.checkpoint, halved))
    same = sum(a == b for a, b in zip(fp32.once()[0].token_ids, bf16.once()[0].token_ids, strict=True))
    comparison = compare(benchmark, fp32, bf16)
    tokens_per_s = pair.shape.new_tokens / benchmark.stats.stats.median
    record(
        comparison,
        "x fp32",
        at_least=GOALS[pair.label],
        note=f"{tokens_per_s:.1f} tokens/s",
        tokens_per_s=tokens_per_s,
        same_tokens=same,
    )
