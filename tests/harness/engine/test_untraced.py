"""Decodes whose time is taken: the same tokens, and nothing done for traces."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from exitbench.harness.cells.cell import GenerationSettings, TimingSettings
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.trace import Trace
from exitbench.harness.engine.model.token_record import TokenRecord
from exitbench.harness.running import timing
from exitbench.harness.work.generation import TimedGeneration
from exitbench.methods.base import Method
from exitbench.methods.calm_softmax import CalmSoftmax
from exitbench.methods.entropy import Entropy
from exitbench.methods.free import Free
from exitbench.methods.full import Full
from exitbench.methods.oracle import Oracle
from exitbench.methods.patience import Patience
from exitbench.methods.self_speculation import SelfSpeculation

L = 5
N_NEW = 5
SOFTMAX = CalmSoftmax(threshold=0.05, decay="none")
PRUNED = dataclasses.replace(SOFTMAX, head="pruned-adaptive", k_first=40, k_min=3)
VERIFYING: list[Method] = [
    SelfSpeculation(exit_layer=2, drafts=2),
    Free(exit_layer=2, threshold=0.0, kv_policy="sync-parallel-rollback", rollback=3.0),
]
METHODS: list[Method] = [
    *(Full(), SOFTMAX, PRUNED, Entropy(threshold=3.5, decay="none"), Patience(patience=1), Oracle()),
    *(dataclasses.replace(SOFTMAX, kv_policy=policy) for policy in ("sync-parallel", "recompute-backlog", "noisy")),
    *VERIFYING,
]


def requests(prompts: list[list[int]], first: int, n: int) -> tuple[Request, ...]:
    return tuple(Request(prompt, seed) for seed, prompt in enumerate(prompts[first : first + n], first))


@pytest.fixture(params=["t5", "llama"])
def family(request: pytest.FixtureRequest, twin: Any) -> Any:
    """One model of each kind: the loop is the same for all."""
    return twin(request.param)


def test_tokens_are_the_same_without_a_trace(family: Any, prompts: Any) -> None:
    model, rejected = family.checkpoint.model, 0
    for method in METHODS:
        traced, bare = (
            decode(family.checkpoint, prefill(model, requests(prompts, 0, 8), N_NEW), method.parts(L), traced=traced)
            for traced in (True, False)
        )
        answers = [Generation(g.token_ids, stop_reason=g.stop_reason) for g in traced]
        assert bare == answers, "tokens and stop reasons, and no record"
        assert all([record.token_id for record in g.records] == g.token_ids for g in traced)
        rejected += sum(sum(g.rejected) for g in traced)
    assert rejected, "or nothing was cut"


class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operations that nothing but a trace or a check of numbers asks for."""

    NAMES = ("amax", "isfinite", "_local_scalar_dense")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in func.name() for name in self.NAMES):
            self.found.append(func.name())
        return func(*args, **(kwargs or {}))


def _forbidden(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("done for a trace while the clock runs")


@pytest.fixture
def seen_while_timed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """While a unit is timed, whatever records raises, and operations are watched."""
    timed, seen = timing._timed, Seen()

    def watched(*args: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch, seen:
            patch.setattr(Trace, "__init__", _forbidden)
            patch.setattr(TokenRecord, "__new__", _forbidden)
            patch.setattr(TokenRecord, "_replace", _forbidden)
            return iter(list(timed(*args)))

    monkeypatch.setattr(timing, "_timed", watched)
    yield seen


@pytest.mark.parametrize("method", [SOFTMAX, Oracle(), VERIFYING[1]], ids=lambda m: m.name)
def test_nothing_is_recorded_while_the_clock_runs(
    family: Any, prompts: Any, method: Method, seen_while_timed: Seen
) -> None:
    units = [timing.Unit(str(n), requests(prompts, n, 2)) for n in (0, 2)]
    full, settings = Full().parts(L), TimingSettings(documents=2, max_rounds=1, target_half_width=0.0, warm_up=1)
    work = TimedGeneration(family.checkpoint, GenerationSettings(N_NEW))
    measured = timing.measure(work, full, method.parts(L), units, settings, 0, lambda n: None)
    assert len(measured.readings) == 2 * len(timing.ORDER) * 3
    assert all(len(g.records) == len(g.token_ids) for g in measured.method), "told by a decode before"
    timed = {(r.position, r.doc_key): r.n_tokens for r in measured.readings if r.phase == "total"}
    for position, result in ((0, measured.full), (2, measured.method)):
        assert timed[position, "0"] + timed[position, "2"] == sum(len(g.token_ids) for g in result)
    assert seen_while_timed.found == []


def test_the_watch_sees_a_traced_decode(family: Any, prompts: Any) -> None:
    with Seen() as seen:  # type: ignore[no-untyped-call]
        batch = prefill(family.checkpoint.model, requests(prompts, 0, 2), N_NEW)
        with torch.inference_mode():
            decode(family.checkpoint, batch, SOFTMAX.parts(L))
    assert any("amax" in name for name in seen.found)
