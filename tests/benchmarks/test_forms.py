"""Forms (implementations) of matrix products: fastest against default, int8 against fp32, and the time to choose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from goals import Recorder
from models import BASE_NAME, REAL_NAME, SMALL_NAME, Pair
from ratios import Timed, compare

from exitbench.harness.engine.products import choosing

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}

pytestmark = pytest.mark.benchmark(disable_gc=True)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("pair", [SMALL_NAME, BASE_NAME], indirect=True)
def test_chosen(pair: Pair, name: str, benchmark: Any, record: Recorder) -> None:
    """Compare tokens/s at full depth with the fastest forms and with the default forms."""
    usual, chosen = (pair.loaded(FORMATS[name], measured=measured) for measured in (False, True))
    default, measured = (pair.decoding(pair.full(), pair.prompts(), checkpoint=used) for used in (usual, chosen))
    comparison = compare(benchmark, default, measured)
    forms = choosing.use_fastest(pair.loaded(FORMATS[name], measured=False).model) or {}
    note = ", ".join(sorted(set(forms.values())))
    record(comparison, "x default", at_least=1.0, note=note, forms=forms)


@pytest.mark.parametrize("pair", [REAL_NAME, SMALL_NAME, BASE_NAME], indirect=True)
def test_int8(pair: Pair, benchmark: Any, record: Recorder) -> None:
    """Compare tokens/s of decoding with int8 and with fp32 weights, both in their fastest forms."""
    prompts = pair.prompts()
    fp32, int8 = (
        pair.decoding(pair.full(), prompts, checkpoint=pair.loaded(FORMATS[name])) for name in ("fp32", "int8")
    )
    comparison = compare(benchmark, fp32, int8)
    tokens_per_s = pair.shape.new_tokens / benchmark.stats.stats.median
    note = f"{tokens_per_s:.1f} tokens/s"
    record(comparison, "x fp32", at_least=1.0, note=note)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("pair", [SMALL_NAME, BASE_NAME], indirect=True)
def test_choosing(pair: Pair, name: str, benchmark: Any, record: Recorder) -> None:
    """Time the choice of a model's fastest matrix-product forms, without reading or storing cached choices."""
    model = pair.loaded(FORMATS[name], measured=False).model
    took = Timed(lambda _: choosing.time_forms(model))
    benchmark.pedantic(took.run, setup=lambda: ((None,), {}), rounds=3)
    record(benchmark.stats.stats.median, "s", at_most=0.5)
