"""Timed decodes give the same tokens and do no work for traces."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import torch
from prompt_decoding import decode_prompts

from exitbench.harness.cells.cell import GenerationSettings, TimingSettings
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.trace import Trace
from exitbench.harness.engine.model.token_record import TokenRecord
from exitbench.harness.running import timing
from exitbench.harness.work.generation import TimedGeneration
from exitbench.methods.base import Method
from exitbench.methods.base.view import BlockView
from exitbench.methods.calm_softmax import CalmSoftmax
from exitbench.methods.entropy import Entropy
from exitbench.methods.free import Free
from exitbench.methods.full import Full
from exitbench.methods.oracle import Oracle
from exitbench.methods.patience import Patience
from exitbench.methods.self_speculation import SelfSpeculation

# An encoder-decoder and a decoder-only model: the decode loop is the same for all families.
pytestmark = pytest.mark.parametrize("family", ["t5", "llama"], indirect=True)

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


def test_tokens_are_the_same_without_a_trace(family: Any, prompts: Any) -> None:
    rejected = 0
    for method in METHODS:
        traced, bare = (
            decode_prompts(family.checkpoint, prompts[:8], N_NEW, method.parts(L), traced=traced)
            for traced in (True, False)
        )
        answers = [Generation(g.token_ids, stop_reason=g.stop_reason) for g in traced]
        assert bare == answers, "tokens and stop reasons, and no record"
        assert all([record.token_id for record in g.records] == g.token_ids for g in traced)
        rejected += sum(sum(g.rejected) for g in traced)
    assert rejected, "or nothing was cut"


def _forbidden(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("done for a trace while the clock runs")


def _forbid_records(patch: pytest.MonkeyPatch) -> None:
    """Make functions that record tokens or check for logits that are not finite raise an error."""
    patch.setattr(Trace, "__init__", _forbidden)
    patch.setattr(BlockView, "largest_logits", _forbidden)
    patch.setattr(TokenRecord, "__new__", _forbidden)
    patch.setattr(TokenRecord, "_replace", _forbidden)


@pytest.fixture
def no_records_while_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make token records raise while documents are timed."""
    timed = timing._timed

    def watched(*args: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            _forbid_records(patch)
            return iter(list(timed(*args)))

    monkeypatch.setattr(timing, "_timed", watched)


@pytest.mark.parametrize("method", [SOFTMAX, Oracle(), VERIFYING[1]], ids=lambda m: m.name)
def test_no_records_are_built_while_timing(
    family: Any, prompts: Any, method: Method, no_records_while_timed: None
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


@pytest.mark.parametrize("method", [SOFTMAX, Oracle(), *VERIFYING], ids=lambda m: m.name)
def test_timed_answers_end_at_stop_strings_without_searching_for_them(
    family: Any, prompts: Any, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    searching = True

    def is_stopped(token_ids: list[int]) -> bool:
        assert searching, "a stop string was searched while the clock runs"
        return token_ids[-1] % 3 == 0

    def watched(*args: Any) -> Any:
        nonlocal searching
        searching = False
        readings = timed(*args)
        searching = True
        return readings

    timed = timing._timed
    monkeypatch.setattr(timing, "_timed", watched)
    units = [timing.Unit(str(n), requests(prompts, n, 2)) for n in (0, 2, 4)]
    settings = TimingSettings(documents=3, max_rounds=1, target_half_width=0.0, warm_up=0)
    work = TimedGeneration(family.checkpoint, GenerationSettings(N_NEW), is_stopped)
    measured = timing.measure(work, Full().parts(L), method.parts(L), units, settings, 0, lambda n: None)
    n_tokens = {(r.arm, r.doc_key): r.n_tokens for r in measured.readings if r.phase == "total"}
    for arm, outputs in (("full", measured.full), ("method", measured.method)):
        assert any(output.stop_reason == "stop_string" and len(output.token_ids) < N_NEW for output in outputs)
        for index, unit in enumerate(units):
            answers = outputs[2 * index : 2 * index + 2]
            assert n_tokens[arm, unit.doc_key] == sum(len(answer.token_ids) for answer in answers)


@pytest.mark.parametrize("forbid", [_forbid_records, lambda p: p.setattr(BlockView, "largest_logits", _forbidden)])
def test_traced_decode_calls_the_functions_forbidden_while_timing(
    family: Any, prompts: Any, forbid: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(monkeypatch)
    with torch.inference_mode(), pytest.raises(AssertionError, match="for a trace"):
        decode_prompts(family.checkpoint, prompts[:2], N_NEW, SOFTMAX.parts(L))
