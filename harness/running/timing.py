"""Paired speed-up against full depth of the same checkpoint, in one process, with a noise floor.

The object that is timed is a `TimedWork`: it answers prompts, scores given texts, or classifies texts.

A unit is a batch of documents. It is run in the order full, twin, method, method, twin, full, where twin is full depth
again. Both comparisons are ABBA, so a machine that slowly warms up or cools down favours neither. Full depth and its
twin change places from unit to unit and from round to round: of requests of a few milliseconds, a unit's first one is
slower, and the one after an early exit is faster. An odd number of units and rounds leaves one place uneven.

Nothing is traced, checked or scored while the clock runs; this is done in an untimed run before. All units are run in
several rounds, so that a document's time is a median, robust to a few stalled readings (`results.statistics.speed`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal

from exitbench.harness.cells.cell import TimingSettings
from exitbench.harness.running.device_readings import DeviceReading, read_device
from exitbench.harness.running.energy.meter import Meter
from exitbench.harness.running.energy.readings import DecodeKey, Energy, EnergyLog
from exitbench.harness.work.timed import Clock, Output, Request, TimedWork, Unit, with_known_exits
from exitbench.methods.base import Parts
from exitbench.results.statistics.intervals import Interval, point
from exitbench.results.statistics.speed import median_times, speedup_interval
from exitbench.results.statistics.split import is_choosing

StopReason = Literal["precise", "seconds", "rounds"]


@dataclass(frozen=True)
class PhaseTiming(DecodeKey):
    """Measured time of one phase in one run of a unit (a batch of documents).

    Attributes:
        phase: ``prefill``, ``decode``, another phase of the work, or ``total``.
        n_tokens: Number of tokens produced by the run.
        wall_ns: Elapsed nanoseconds.
        device_ns: The GPU's time by CUDA events; None on a CPU.
        cpu_ns: Processor time of all threads of this process, in the same interval as ``wall_ns``.
    """

    phase: str
    n_tokens: int
    wall_ns: int
    device_ns: int | None
    cpu_ns: int


@dataclass(frozen=True)
class Timing(Generic[Output]):
    """All readings of a timing cell: times, device telemetry, energy, and the outputs of full depth and method.

    Attributes:
        stop_reason: ``precise`` (the interval is narrow enough), ``seconds`` (the budget is spent) or ``rounds`` (the
            maximum number of rounds is done).
        full: Untimed outputs of full depth.
        method: Untimed outputs of the method.
    """

    readings: list[PhaseTiming]
    device: list[DeviceReading]
    energy: Energy
    stop_reason: StopReason
    full: list[Output]
    method: list[Output]


ORDER: Final = (("full", False), ("full", True), ("method", False), ("method", False), ("full", True), ("full", False))
N_ARMS: Final = len(set(ORDER))
"""Number of arms (full depth, its twin and the method), which are timed equally often."""


def measure(
    work: TimedWork[Request, Output],
    full: Parts,
    method: Parts,
    units: Sequence[Unit[Request]],
    settings: TimingSettings,
    seed: int,
    on_unit: Callable[[int], None],
    meter: Meter | str = "no meter was given",
) -> Timing[Output]:
    """Time a method against full depth, in rounds over all units, until a stopping rule of the settings applies.

    Args:
        work: Work to time with a loaded model: generation, scoring of texts, or classification.
        full: Parts (gate, threshold, head, KV policy) of full depth, the baseline.
        method: Parts of the method. A method whose gate reads later blocks is timed with its exit layers given: they
            are taken from an untimed decode, and the blocks after them are skipped.
        units: Units to run in this order, every round.
        settings: Rounds, precision, warm-up.
        seed: Seed of the bootstrap that decides when to stop.
        on_unit: Called after each unit with the progress towards the least number of rounds, from 0 to ``len(units)``.
        meter: Reads the energy of every decode, outside of its timed interval; or the reason why there is no meter.
    """
    energy = EnergyLog(meter)
    full_outputs, full_units = _untimed(work, full, units)
    outputs, method_units = _untimed(work, method, units)
    if method.gate.looks_ahead:
        method = with_known_exits(method, units, outputs)
    arms = {"full": (full, full_units), "method": (method, method_units)}
    for index in range(len(units[: settings.warm_up])):
        for parts, timed_units in arms.values():
            work.run_timed(parts, timed_units[index], Clock(work.device))
    readings: list[PhaseTiming] = []
    device: list[DeviceReading] = []
    kind = work.device.type
    stop_reason: StopReason | None = None
    round_ = 0
    while stop_reason is None:
        device.append(read_device(kind, round_, "start"))
        for index, unit in enumerate(units):
            for position, (arm, is_twin_place) in enumerate(ORDER):
                parts, timed_units = arms[arm]
                twin = arm == "full" and is_twin_place == ((index + round_) % 2 == 0)
                with energy.around(DecodeKey(unit.doc_key, round_, position, arm, twin)):
                    phases = _timed(work, parts, timed_units[index])
                readings += [PhaseTiming(unit.doc_key, round_, position, arm, twin, *phase) for phase in phases]
            on_unit(min(round_ * len(units) + index + 1, settings.least_rounds * len(units)) // settings.least_rounds)
        device.append(read_device(kind, round_, "end"))
        round_ += 1
        stop_reason = _stop_reason(readings, round_, settings, seed)
    return Timing(readings, device, energy.close(), stop_reason, full_outputs, outputs)


def _untimed(
    work: TimedWork[Request, Output], parts: Parts, units: Sequence[Unit[Request]]
) -> tuple[list[Output], list[Unit[Request]]]:
    """Run all units without clocks; return their outputs, and the units to time."""
    runs = [work.run(parts, unit) for unit in units]
    return [output for outputs, _ in runs for output in outputs], [unit for _, unit in runs]


def _stop_reason(
    readings: Sequence[PhaseTiming], rounds: int, settings: TimingSettings, seed: int
) -> StopReason | None:
    """Return the reason to stop after ``rounds`` rounds, or None if another round is needed."""
    if rounds >= settings.max_rounds:
        return "rounds"
    if rounds < settings.least_rounds:
        return None
    estimate = speedup(readings, "total", seed)
    if estimate.low is not None and estimate.high is not None:
        half_width = (estimate.high - estimate.low) / 2 / estimate.value
        if half_width <= settings.target_half_width:
            return "precise"
    spent_s = sum(reading.wall_ns for reading in readings if reading.phase == "total") / 1e9
    return "seconds" if settings.seconds is not None and spent_s >= settings.seconds * N_ARMS else None


def common_metrics(measured: Timing[Any], n_documents: int, n_units: int, seed: int) -> dict[str, Interval]:
    """Return the metrics that timings of all kinds of work have: speed-up, noise floor, milliseconds per request, etc.

    ``speedup_choosing`` is the speed-up on the documents on which settings are chosen, and ``speedup_confirming`` that
    on the other documents (`results.statistics.split`). A part without timed documents has no speed-up.

    Args:
        measured: All readings of the cell.
        n_documents: Number of documents timed; the last unit may have fewer than the others.
        n_units: Number of units timed.
        seed: Seed of the bootstrap.
    """
    metrics = {
        "speedup": speedup(measured.readings, "total", seed),
        "aa_speedup": speedup(measured.readings, "total", seed, twin=True),
        "cpu_speedup": speedup(measured.readings, "total", seed, clock="cpu_ns"),
    }
    for part, chooses in (("choosing", True), ("confirming", False)):
        part_readings = [reading for reading in measured.readings if is_choosing(reading.doc_key) == chooses]
        if part_readings:
            metrics[f"speedup_{part}"] = speedup(part_readings, "total", seed)
    metrics["timed_documents"] = point(n_documents, n_units)
    metrics["timed_rounds"] = point(len({reading.round for reading in measured.readings}), n_units)
    for prefix, arm in (("", "method"), ("full_", "full")):
        total_ns = sum(median_times(_readings_of(measured.readings, "total", arm)).values())
        metrics[f"{prefix}ms_per_request"] = point(total_ns / n_documents / 1e6, n_units)
    return metrics


def token_metrics(measured: Timing[Any], n_units: int) -> dict[str, Interval]:
    """Return the decode milliseconds per token of method and full depth, by metric name.

    The median times of all units (batches of documents) are summed and divided by the sum of their tokens. `n_units` is
    the number of units.
    """
    metrics = {}
    for prefix, arm in (("", "method"), ("full_", "full")):
        decode_ns = sum(median_times(_readings_of(measured.readings, "decode", arm)).values())
        tokens = {r.doc_key: r.n_tokens for r in measured.readings if r.arm == arm}
        metrics[f"{prefix}ms_per_token"] = point(decode_ns / sum(tokens.values()) / 1e6, n_units)
    return metrics


def speedup(
    readings: Sequence[PhaseTiming],
    phase: str,
    seed: int,
    *,
    twin: bool = False,
    clock: Literal["wall_ns", "cpu_ns"] = "wall_ns",
) -> Interval:
    """Return full depth's time divided by the method's, with a paired interval over documents.

    Args:
        readings: Readings of any number of rounds.
        phase: ``prefill``, ``decode`` or ``total``.
        seed: Seed of the bootstrap.
        twin: Compare full depth with its twin instead of the method: the noise floor.
        clock: ``wall_ns`` for wall time, or ``cpu_ns`` for CPU time.
    """
    other = ("full", True) if twin else ("method", False)
    full, compared = (_readings_of(readings, phase, *arm, clock=clock) for arm in (("full", False), other))
    return speedup_interval(full, compared, seed=seed)


def _readings_of(
    readings: Sequence[PhaseTiming], phase: str, arm: str, twin: bool = False, clock: str = "wall_ns"
) -> list[tuple[str, float]]:
    """Return (document key, nanoseconds) of each reading of one arm (``full`` or ``method``) and phase.

    `twin` selects the second runs of full depth; `clock` names the field with the nanoseconds.
    """
    return [(r.doc_key, getattr(r, clock)) for r in readings if (r.phase, r.arm, r.twin) == (phase, arm, twin)]


def _timed(
    work: TimedWork[Request, Output], parts: Parts, unit: Unit[Request]
) -> list[tuple[str, int, int, int | None, int]]:
    """Run one unit; return (phase, tokens, wall ns, device ns, CPU ns) of each phase and of all phases together."""
    clock = Clock(work.device)
    gc.disable()
    try:
        phases, n_tokens = work.run_timed(parts, unit, clock)
    finally:
        gc.enable()
    steps = [(phase, n_tokens, *clock.between(first, first + 1)) for first, phase in enumerate(phases)]
    return [*steps, ("total", n_tokens, *clock.between(0, -1))]
