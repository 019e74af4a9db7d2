"""Speed-up by each of the engine's optimisations: decoding with all of them against decoding with one disabled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from goals import Recorder
from models import BASE_NAME, SMALL_NAME, Pair
from ratios import Timed, compare
from test_bf16 import MULTIPLIES_BF16
from torch import Tensor

from exitbench.harness.engine.decoding import signals
from exitbench.harness.engine.decoding.probe import probe
from exitbench.harness.engine.model import model as model_module
from exitbench.harness.engine.model.model import Transformer
from exitbench.harness.engine.model.weights import Linear
from exitbench.methods.base import Gate

pytestmark = pytest.mark.benchmark(disable_gc=True)

Undone = Callable[[], AbstractContextManager[object]]


def torch_norm(model: Transformer, x: Tensor) -> Tensor:
    """Apply torch's own norm in place of the engine's."""
    return F.rms_norm(x, (x.shape[-1],), None, model.arch.norm_eps)


def separate_weight(model: Transformer, x: Tensor) -> Tensor:
    """Apply a norm whose weight is not folded into the following projections."""
    return normalise(model, x) * model.weights.final_norm.weight


def product_then_sum(projection: Linear, stream_ND: Tensor, x: Tensor) -> Tensor:
    """Apply a projection and add its result to the residual stream in a separate step."""
    return stream_ND + projection(x)


def three_products(projection: Linear, x: Tensor) -> Tensor:
    """Compute queries, keys and values in three products, if the projection computes all of them in one."""
    if x.dim() != 2 or len(projection.weight) != 3 * x.shape[-1]:
        return call(projection, x)
    return torch.cat([F.linear(x, part) for part in projection.weight.chunk(3)], dim=-1)


def fill_each_block(model: Transformer, *group: Any) -> None:
    """Fill skipped blocks with one product per block."""
    *skipped, context = group
    model._fill_block_by_block([tuple(skipped)], context)


normalise, call = Transformer.normalise, Linear.__call__


AT_BATCH_1: dict[str, Undone] = {
    "norm-in-few-operations": lambda: patch.object(Transformer, "normalise", torch_norm),
    "norm-weights-folded": lambda: patch.object(Transformer, "normalise", separate_weight),
    "sum-within-product": lambda: patch.object(Linear, "onto", product_then_sum),
    "queries-keys-values-at-once": lambda: patch.object(Linear, "__call__", three_products),
    "weights-laid-out": lambda: patch.object(
        Linear, "in_default_layout", lambda projection: projection
    ),  # layout as loaded
}
EARLY: dict[str, Undone] = {
    "skipped-blocks-at-once": lambda: patch.object(Transformer, "_fill_at_once", fill_each_block)
}
IN_A_BATCH: dict[str, Undone] = {
    "rows-read-out-together": lambda: patch.object(Gate, "chooses_from_logits", property(lambda gate: False)),
    "skipped-blocks-in-passing": lambda: patch.object(Transformer, "fills_exited_rows", False),
    "stretches-of-rows-not-copied": lambda: patch.object(model_module, "GATHERED_NUMEL", 2**40),
}


@pytest.mark.parametrize("trick", [*AT_BATCH_1, *EARLY])
@pytest.mark.parametrize("pair", [SMALL_NAME, BASE_NAME], indirect=True)
def test_trick(pair: Pair, trick: str, benchmark: Any, record: Recorder) -> None:
    """Measure an optimisation at batch 1, at full depth or with exits after half of the blocks."""
    undone = {**AT_BATCH_1, **EARLY}[trick]
    parts = pair.parts("static", exit_layer=pair.n_blocks // 2) if trick in EARLY else pair.full()
    with undone():
        other = pair.loaded(torch.float32, measured=False)
    plain = pair.decoding(parts, pair.prompts(), checkpoint=pair.loaded(torch.float32, measured=False))
    measure(plain, pair.decoding(parts, pair.prompts(), checkpoint=other), undone, benchmark, record)


@pytest.mark.parametrize("trick", IN_A_BATCH)
@pytest.mark.parametrize("pair", [SMALL_NAME, BASE_NAME], indirect=True)
def test_trick_of_a_batch(pair: Pair, trick: str, benchmark: Any, record: Recorder) -> None:
    """Measure an optimisation on 16 rows that exit after half of the blocks on average."""
    parts = pair.parts("random", mean_exit=pair.n_blocks / 2)
    decoding = pair.decoding(parts, pair.prompts(16), 4)
    measure(decoding, decoding, IN_A_BATCH[trick], benchmark, record)


@MULTIPLIES_BF16
@pytest.mark.parametrize("pair", [BASE_NAME], indirect=True)
def test_trick_of_attention_in_bf16(pair: Pair, benchmark: Any, record: Recorder) -> None:
    """Measure giving a single query twice to torch's attention, at batch 1 with a source of 512 tokens."""
    decoding = pair.decoding(pair.full(), pair.prompts(1, 512), checkpoint=pair.loaded(torch.bfloat16))
    measure(decoding, decoding, lambda: patch.object(model_module, "PAIRED_KEYS", 2**40), benchmark, record)


@pytest.mark.parametrize("pair", [SMALL_NAME, BASE_NAME], indirect=True)
def test_trick_of_the_probe(pair: Pair, benchmark: Any, record: Recorder) -> None:
    """Measure computing a probe's signals in chunks of a few tokens, so that logits stay in the CPU cache."""
    answers = [answer.token_ids for answer in pair.decoding(pair.full(), pair.prompts(8)).once()]
    probing = Timed(lambda _: probe(pair.checkpoint, pair.prompts(8), answers))
    measure(probing, probing, lambda: patch.object(signals, "PIECE_NUMEL", 2**40), benchmark, record)


def measure(plain: Timed, other: Timed, undone: Undone, benchmark: Any, record: Recorder) -> None:
    """Measure the speed-up by an optimisation, which is disabled and re-enabled outside the timed part."""
    with ExitStack() as tricks:

        def without() -> Any:
            tricks.close()
            tricks.enter_context(undone())
            return other.prepare()

        def with_trick() -> Any:
            tricks.close()
            return plain.prepare()

        found = compare(benchmark, Timed(other.run, without), Timed(plain.run, with_trick), budget_s=3.0)
    record(
        found,
        "x without",
    )
