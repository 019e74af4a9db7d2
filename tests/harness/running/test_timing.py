"""Speed-ups from readings: medians of documents, ratios of their sums, and the twin as noise floor."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median

import pyarrow.parquet as pq
import pytest
from suite_runs import plan_suite, run_plan

from exitbench.harness.cells.cell import GenerationSettings, TimingSettings
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.engine.decoding.generation import Request
from exitbench.harness.running.energy.readings import Energy
from exitbench.harness.running.timing import (
    ORDER,
    PhaseTiming,
    Timing,
    common_metrics,
    measure,
    speedup,
    token_metrics,
)
from exitbench.harness.work.generation import TimedGeneration
from exitbench.harness.work.timed import Unit
from exitbench.methods.gates import Scheduled
from exitbench.methods.registry import baseline_method, get_method
from exitbench.results.spool.attempts import latest_status
from exitbench.results.statistics.speed import MIN_ROUNDS
from exitbench.results.statistics.split import is_choosing


def reading(
    doc: str, arm: str, wall_ns: int, *, twin: bool = False, phase: str = "total", round_: int = 0
) -> PhaseTiming:
    return PhaseTiming(doc, round_, 0, arm, twin, phase, 10, wall_ns, None, wall_ns // 2)


def test_speedup_is_a_ratio_of_sums_and_not_a_mean_of_ratios() -> None:
    readings = [
        reading("a", "full", 100),
        reading("a", "method", 50),
        reading("b", "full", 900),
        reading("b", "method", 850),
    ]
    assert speedup(readings, "total", seed=0).value == pytest.approx(1000 / 900)


def test_common_timing_metrics_use_the_total_phase() -> None:
    """Three documents, timed as two units in two rounds. Both units' keys belong to the choosing part."""
    took = {("full", False): 60, ("full", True): 50, ("method", False): 15}
    readings = [
        reading(doc, arm, 10**6 * ms, twin=twin, round_=round_)
        for doc in ("a", "c")
        for round_ in range(2)
        for (arm, twin), ms in took.items()
    ]
    readings += [reading("a", "method", 10**12, phase="decode")]
    told = common_metrics(Timing(readings, [], Energy((), (), ""), "rounds", [], []), 3, 2, seed=0)
    assert {name: interval.value for name, interval in told.items()} == pytest.approx(
        {
            "speedup": 4.0,
            "aa_speedup": 1.2,
            "cpu_speedup": 4.0,
            "speedup_choosing": 4.0,
            "ms_per_request": 10.0,
            "full_ms_per_request": 40.0,
            "timed_documents": 3,
            "timed_rounds": 2,
        }
    )


def test_document_time_is_the_median_over_rounds_of_one_phase() -> None:
    readings = [reading("a", arm, ns, round_=r) for r in range(3) for arm, ns in (("full", 30), ("method", 20))]
    readings += [reading("a", "method", 10**9, phase="decode"), reading("a", "method", 10**9, round_=3)]
    assert speedup(readings, "total", seed=0).value == pytest.approx(1.5)


def test_one_stalled_round_changes_neither_request_nor_token_times() -> None:
    readings = [
        reading(doc, arm, 10**6 * ms, twin=twin, phase=phase, round_=round_)
        for doc in ("a", "c")
        for round_ in range(5)
        for arm, twin, ms in (("full", False, 40), ("full", True, 40), ("method", False, 20))
        for phase in ("decode", "total")
    ]
    stalled = [replace(one, wall_ns=20 * one.wall_ns) if one.round == 3 else one for one in readings]
    measured = Timing(stalled, [], Energy((), (), ""), "rounds", [], [])
    told = common_metrics(measured, 2, 2, seed=0) | token_metrics(measured, 2)
    expected = {"ms_per_request": 20.0, "full_ms_per_request": 40.0, "ms_per_token": 2.0, "full_ms_per_token": 4.0}
    assert {name: told[name].value for name in expected} == expected


def test_choosing_and_confirming_documents_have_separate_speedups() -> None:
    faster = {"a": 2.0, "b": 3.0, "c": 4.0, "d": 1.5}
    readings = [
        one
        for doc, ratio in faster.items()
        for one in (
            reading(doc, "full", 1200),
            reading(doc, "method", int(1200 / ratio)),
            reading(doc, "full", 1, twin=True),
        )
    ]
    told = common_metrics(Timing(readings, [], Energy((), (), ""), "rounds", [], []), 4, 4, seed=0)
    for name, chooses in (("speedup_choosing", True), ("speedup_confirming", False)):
        own = [reading for reading in readings if is_choosing(reading.doc_key) == chooses]
        assert told[name] == speedup(own, "total", seed=0)
        assert told[name].n == len({reading.doc_key for reading in own}) > 0


def test_the_twin_is_compared_only_with_full_depth() -> None:
    readings = [reading("a", "full", 100), reading("a", "full", 80, twin=True), reading("a", "method", 1)]
    assert speedup(readings, "total", seed=0, twin=True).value == pytest.approx(1.25)
    assert speedup(readings, "total", seed=0).value == pytest.approx(100)


def test_order_of_arms_is_a_palindrome() -> None:
    assert tuple(reversed(ORDER)) == ORDER
    assert {place for place, arm in enumerate(ORDER) if arm == ("method", False)} == {2, 3}


def test_full_depth_and_its_twin_take_every_place_equally_often_for_every_document(worded_model: Path) -> None:
    """Otherwise the noise floor would be off 1: a document's first request is slower than the others."""
    checkpoint = load_checkpoint(worded_model)
    full = baseline_method()().parts(checkpoint.model.n_blocks)
    units = [Unit(str(n), (Request([5, 6, 7 + n], n),)) for n in range(3)]
    settings = TimingSettings(documents=3, max_rounds=2, target_half_width=0.0, warm_up=0)
    timing = measure(TimedGeneration(checkpoint, GenerationSettings(2)), full, full, units, settings, 0, lambda _: None)
    totals = [one for one in timing.readings if one.phase == "total" and one.arm == "full"]
    places = Counter((one.doc_key, one.position, one.twin) for one in totals)
    assert places == {(unit.doc_key, at, twin): 1 for unit in units for at in (0, 1, 4, 5) for twin in (False, True)}
    assert Counter((one.doc_key, one.round, one.twin) for one in totals).most_common()[-1][1] == 2, "twice a round"


@pytest.mark.parametrize(
    ("half_width", "seconds", "rounds", "reason"),
    [(1e9, 1e9, 5, "precise"), (0.0, 1e-9, 5, "seconds"), (0.0, 1e9, 7, "rounds"), (0.0, None, 7, "rounds")],
)
def test_timing_stops_when_precise_or_out_of_time_or_out_of_rounds(
    worded_model: Path, half_width: float, seconds: float | None, rounds: int, reason: str
) -> None:
    checkpoint = load_checkpoint(worded_model)
    depth = checkpoint.model.n_blocks
    full = baseline_method()().parts(depth)
    static = get_method("static").from_params({"exit_layer": 1}).parts(depth)
    units = [Unit(str(n), (Request([5, 6, 7 + n], n),)) for n in range(3)]
    settings = TimingSettings(documents=3, seconds=seconds, max_rounds=7, target_half_width=half_width, warm_up=1)
    counts: list[int] = []
    work = TimedGeneration(checkpoint, GenerationSettings(5))
    timing = measure(work, full, static, units, settings, 0, counts.append)
    assert timing.stop_reason == reason
    assert counts == [min(count, 3 * MIN_ROUNDS) // MIN_ROUNDS for count in range(1, 3 * rounds + 1)]
    assert len(timing.readings) == 3 * rounds * len(ORDER) * 3  # units, rounds, arms, phases
    for total, prefill, decode in zip(
        *([r for r in timing.readings if r.phase == phase] for phase in ("total", "prefill", "decode")), strict=True
    ):
        assert total.wall_ns == prefill.wall_ns + decode.wall_ns
        assert total.cpu_ns == prefill.cpu_ns + decode.cpu_ns > 0


def test_least_rounds_is_limited_by_max_rounds() -> None:
    assert TimingSettings(max_rounds=2).least_rounds == 2
    assert TimingSettings().least_rounds == MIN_ROUNDS


BATCHES = """
schema = 1
name = "batches"
seed = 3
[defaults]
batch_size = 2
[models.tiny]
path = "{model}"
[tasks]
wmt-en-fr = {{ limit = 3, max_new_tokens = 3 }}
[timing]
max_rounds = 2
target_half_width = 1e-9
warm_up = 0
[[sweep]]
method = "static"
kinds = ["timing"]
"""


def test_ms_per_request_counts_documents_of_an_incomplete_last_batch(worded_model: Path, tmp_path: Path) -> None:
    plan = plan_suite(tmp_path, BATCHES.format(model=worded_model))
    run_plan(plan, tmp_path / "spool")
    (timed,) = (one.item.cell for one in plan.groups[0].cells if one.item.cell.kind == "timing")
    folder = latest_status(tmp_path / "spool")[timed.cell_id].path
    metrics = {row["metric"]: row["value"] for row in pq.read_table(folder / "metrics.parquet").to_pylist()}
    for prefix, arm in (("", "method"), ("full_", "full")):
        wall_ns: dict[str, list[int]] = {}
        for row in pq.read_table(folder / "timings.parquet").to_pylist():
            if (row["phase"], row["arm"], row["twin"]) == ("total", arm, False):
                wall_ns.setdefault(row["doc_key"], []).append(row["wall_ns"])
        assert [len(own) for own in wall_ns.values()] == [2 * 2, 2 * 2]  # rounds, and twice in each, of either batch
        assert metrics[f"{prefix}ms_per_request"] == pytest.approx(sum(map(median, wall_ns.values())) / 3 / 1e6)


def test_scheduled_exits_repeat_oracle_answers_without_running_later_blocks(worded_model: Path) -> None:
    from exitbench.harness.engine.decoding.decode import decode, prefill

    checkpoint = load_checkpoint(worded_model)
    oracle = get_method("oracle").from_params({}).parts(checkpoint.model.n_blocks)
    requests = [Request([5, 6, 7 + n, 20 + n], seed=n) for n in range(8)]
    told = decode(checkpoint, prefill(checkpoint.model, requests, 8), oracle)
    known = Scheduled({request.seed: result.exit_layers for request, result in zip(requests, told, strict=True)})
    parts = type(oracle)(known, oracle.threshold, oracle.head, oracle.kv_policy, oracle.blocks)
    knew = decode(checkpoint, prefill(checkpoint.model, requests, 8), parts)
    assert [result.token_ids for result in knew] == [result.token_ids for result in told]
    assert [result.exit_layers for result in knew] == [result.exit_layers for result in told]
    assert [result.blocks_run for result in knew] == [result.exit_layers for result in told]
    assert len({layer for result in told for layer in result.exit_layers}) > 1
