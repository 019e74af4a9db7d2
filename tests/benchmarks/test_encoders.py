"""Realised share of an encoder's ideal speed-up by FLOPs, with exits spread over all blocks (random weights)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from goals import Recorder
from ratios import Timed, compare

from exitbench.harness.cells.texts import EncodedText
from exitbench.harness.engine.encoders.classify import Classified, classify, text_cost
from exitbench.harness.engine.encoders.model import EncoderClassifier
from exitbench.harness.engine.encoders.stack import find_encoder_stack
from exitbench.harness.engine.products.choosing import use_fastest
from exitbench.methods.base import Cost, Parts, blocks_from
from exitbench.methods.gates import Scheduled
from exitbench.methods.heads import TrainedHead
from exitbench.methods.kv_policies import StateCopy
from exitbench.methods.registry import get_method
from exitbench.methods.thresholds import Constant

pytestmark = pytest.mark.benchmark(disable_gc=True)

GOALS = {1: 0.95, 32: 0.85}
L, TOKENS = 12, 16


@cache
def base_sized() -> EncoderClassifier:
    """Return a classifier with twelve blocks of width 768 and two labels."""
    torch.manual_seed(0)
    model = classifier()
    use_fastest(model)
    return model


def classifier() -> EncoderClassifier:
    """Return such a classifier with torch's default products."""
    lm = transformers.BertForSequenceClassification(transformers.BertConfig()).eval().requires_grad_(False)
    return EncoderClassifier(find_encoder_stack(lm))


def flops(parts: Parts, answers: Sequence[Classified]) -> float:
    total = sum(
        (text_cost(base_sized(), parts, TOKENS, answer.record.exit_layer, answer.blocks_read) for answer in answers),
        Cost(),
    )
    return total.matmul_flops + total.elementwise_flops


@pytest.mark.parametrize("rows", GOALS)
def test_encoder_products(rows: int, benchmark: Any, record: Recorder) -> None:
    """Compare full depth with the fastest products and with torch's default ones. All texts have 16 tokens."""
    draw, full = torch.Generator().manual_seed(1), get_method("full")().parts(L)
    texts = [EncodedText(tuple(torch.randint(1000, 20000, (TOKENS,), generator=draw).tolist()), None, seed=0)] * rows
    default, fastest = (
        Timed(lambda _, model=model: classify(model, texts, full, traced=False))
        for model in (classifier(), base_sized())
    )
    record(compare(benchmark, default, fastest), "x default", at_least=1.0)


@pytest.mark.parametrize("rows", GOALS)
def test_encoder_realised_fraction(rows: int, benchmark: Any, record: Recorder) -> None:
    """Measure the realised fraction if text i exits after block 1 + i mod 12. All texts have 16 tokens."""
    model, draw = base_sized(), torch.Generator().manual_seed(1)
    count = max(rows, L)
    texts = [
        EncodedText(tuple(torch.randint(1000, 20000, (TOKENS,), generator=draw).tolist()), None, seed=place)
        for place in range(count)
    ]
    exits = {place: [1 + place % L] for place in range(count)}
    early = Parts(Scheduled(exits), Constant(0.5), TrainedHead(), StateCopy(), blocks_from(1, L))
    full = get_method("full")().parts(L)
    batches = [texts[start : start + rows] for start in range(0, count, rows)]

    def timed(parts: Parts) -> Timed:
        def run(traced: bool) -> list[Classified]:
            return [answer for batch in batches for answer in classify(model, batch, parts, traced=traced)]

        return Timed(lambda _: run(False), traced=lambda _: run(True))

    baseline, method = timed(full), timed(early)
    ideal = flops(full, baseline.run_traced()) / flops(early, method.run_traced())
    comparison = compare(benchmark, baseline, method)
    record(
        comparison,
        "%",
        over=ideal,
        at_least=GOALS[rows],
        note=f"batch {rows}: speed-up {comparison.ratio:.2f} of {ideal:.2f}",
        batch_size=rows,
        speedup=comparison.ratio,
        ideal_by_flops=ideal,
    )
