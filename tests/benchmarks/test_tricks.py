"""What each trick of the engine is worth: decoding with it over decoding with that trick alone undone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from goals import record
from models import BASE_NAME, SMALL_NAME, Pair
from ratios import Timed, compare
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
    """The norm that torch has."""
    return F.rms_norm(x, (x.shape[-1],), None, model.arch.norm_eps)


def separate_weight(model: Transformer, x: Tensor) -> Tensor:
    """A norm whose weight is not folded into the projections behind it."""
    return normalise(model, x) * model.weights.final_norm.weight


def product_then_sum(projection: Linear, stream_ND: Tensor, x: Tensor) -> Tensor:
    """A projection whose result is added to the stream afterwards."""
    return stream_ND + projection(x)


def three_products(projection: Linear, x: Tensor) -> Tensor:
    """Queries, keys and values one after another, where a projection has as many outputs as theirs together."""
    if x.dim() != 2 or len(projection.weight) != 3 * x.shape[-1]:
        return call(projection, x)
    return torch.cat([F.linear(x, part) for part in projection.weight.chunk(3)], dim=-1)


def fill_each_block(model: Transformer, *group: Any) -> None:
    """Skipped blocks filled by a product each."""
    *skipped, context = group
    model._fill_block_by_block([tuple(skipped)], context)


normalise, call = Transformer.normalise, Linear.__call__


AT_BATCH_1: dict[str, Undone] = {
    "norm-in-few-operations": lambda: patch.object(Transformer, "normalise", torch_norm),
    "norm-weights-folded": lambda: patch.object(Transformer, "normalise", separate_weight),
    "sum-within-product": lambda: patch.object(Linear, "onto", product_then_sum),
    "queries-keys-values-at-once": lambda: patch.object(Linear, "__call__", three_products),
    "weights-laid-out": lambda: patch.object(Linear, "laid_out", lambda projection: projection),  # as it is loaded
}
EARLY: dict[str, Undone] = {
    "skipped-blocks-at-once": lambda: patch.object(Transformer, "_fill_at_once", fill_each_block)
}
IN_A_BATCH: dict[str, Undone] = {
    "rows-read-out-together": lambda: patch.object(Gate, "chooses_from_logits", property(lambda gate: False)),
    "skipped-blocks-in-passing": lambda: patch.object(Transformer, "fills_in_passing", False),
    "stretches-of-rows-not-copied": lambda: patch.object(model_module, "GATHERED_NUMEL", 2**40),
}


@pytest.mark.parametrize("trick", [*AT_BATCH_1, *EARLY])
@pytest.mark.parametrize("pair", [SMALL_NAME, BASE_NAME], indirect=True)
def test_trick(pair: Pair, trick: str, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """At batch 1: at full depth, or where tokens leave after half of the blocks."""
    undone = {**AT_BATCH_1, **EARLY}[trick]
    parts = pair.parts("static", exit_layer=pair.n_blocks // 2) if trick in EARLY else pair.full()
    with undone():
        other = pair.loaded(torch.float32)
    plain = pair.decoding(parts, pair.prompts())
    measure(plain, pair.decoding(parts, pair.prompts(), checkpoint=other), undone, benchmark, capsys)


@pytest.mark.parametrize("trick", IN_A_BATCH)
@pytest.mark.parametrize("pair", [SMALL_NAME, BASE_NAME], indirect=True)
def test_trick_of_a_batch(pair: Pair, trick: str, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """16 rows that leave after half of the blocks on average."""
    parts = pair.parts("random", mean_exit=pair.n_blocks / 2)
    decoding = pair.decoding(parts, pair.prompts(16), 4)
    measure(decoding, decoding, IN_A_BATCH[trick], benchmark, capsys)


@pytest.mark.parametrize("pair", [SMALL_NAME, BASE_NAME], indirect=True)
def test_trick_of_the_probe(pair: Pair, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Signals of few tokens at a time, so that their logits stay in the cache."""
    answers = [made.token_ids for made in pair.decoding(pair.full(), pair.prompts(8)).once()]
    probing = Timed(lambda _: probe(pair.checkpoint, pair.prompts(8), answers))
    measure(probing, probing, lambda: patch.object(signals, "PIECE_NUMEL", 2**40), benchmark, capsys)


def measure(plain: Timed, other: Timed, undone: Undone, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """How many times faster it is with the trick, which is undone and done again before what is timed."""
    with ExitStack() as tricks:

        def without() -> Any:
            tricks.close()
            tricks.enter_context(undone())
            return other.prepare()

        def with_trick() -> Any:
            tricks.close()
            return plain.prepare()

        found = compare(benchmark, Timed(other.run, without), Timed(plain.run, with_trick), budget_s=3.0)
    record(benchmark, capsys, found.ratio, "x without", note=found.spread(), **found.about())
