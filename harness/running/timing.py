"""Paired speed-up against full depth of the same checkpoint, in one process, with its own noise floor.

What is timed is a `Work`: answers to prompts, or scores of given texts.

For every unit of documents the order is full, twin, method, method, twin, full, where twin is full depth again: both
comparisons are ABBA, so a machine that slowly warms up or cools down favours neither. Nothing is traced, checked or
scored while the clock runs: an untimed decode before does that (`decode`'s ``traced``).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import torch

from exitbench.harness.cells.cell import GenerationSettings, TimingSettings
from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.branches import Context
from exitbench.harness.engine.decoding.decode import Batch, decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.likelihood import Scored, score
from exitbench.harness.running.device_readings import DeviceReading, read_device
from exitbench.harness.running.energy.meter import Meter
from exitbench.harness.running.energy.readings import Energy, EnergyLog, Place
from exitbench.methods.base import Parts
from exitbench.methods.gates import Scheduled
from exitbench.results.statistics.intervals import Interval, point, ratio_interval

Asked = TypeVar("Asked")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Unit(Generic[Asked]):
    """Documents that are asked together, named by the first one's key."""

    doc_key: str
    requests: tuple[Asked, ...]


class Work(Protocol[Asked, Made]):
    """What is timed: one unit after the other, with a method."""

    @property
    def device(self) -> torch.device:
        """Where it runs."""

    def run(self, parts: Parts, unit: Unit[Asked]) -> list[Made]:
        """Return what comes of a unit, traced."""

    def knowing(self, parts: Parts, units: Sequence[Unit[Asked]], made: Sequence[Made]) -> Parts:
        """Return a method that looks ahead as if it knew its exit layers, of what came of all units."""

    def timed(self, parts: Parts, unit: Unit[Asked], clock: Clock) -> tuple[tuple[str, ...], int]:
        """Do a unit untraced, and mark the clock where each phase begins and the last one ends.

        Returns:
            The phases, and how many tokens were made.
        """


@dataclass(frozen=True)
class Generating:
    """Answers to prompts, by their greedy decode.

    Attributes:
        asked: Longest answer, and what changes logits; stop strings are not looked for.
    """

    checkpoint: Checkpoint
    asked: GenerationSettings

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.checkpoint.model.device

    def run(self, parts: Parts, unit: Unit[Request]) -> list[Generation]:
        """Decode a unit, traced."""
        return decode(self.checkpoint, self._prefilled(unit), parts, asked=self.asked)

    def knowing(self, parts: Parts, units: Sequence[Unit[Request]], made: Sequence[Generation]) -> Parts:
        """The blocks behind the exits of an oracle are really skipped."""
        requests = [request for unit in units for request in unit.requests]
        known = {request.seed: output.exit_layers for request, output in zip(requests, made, strict=True)}
        return Parts(Scheduled(known), parts.threshold, parts.head, parts.kv_policy, parts.blocks)

    def timed(self, parts: Parts, unit: Unit[Request], clock: Clock) -> tuple[tuple[str, ...], int]:
        """Prefill and decode."""
        clock.mark()
        batch = self._prefilled(unit)
        clock.mark()
        generations = decode(self.checkpoint, batch, parts, asked=self.asked, traced=False)
        clock.mark()
        return ("prefill", "decode"), sum(len(generation.token_ids) for generation in generations)

    def _prefilled(self, unit: Unit[Request]) -> Batch:
        gates_first = self.asked.gates_first_token
        return prefill(self.checkpoint.model, unit.requests, self.asked.max_new_tokens, gates_first_token=gates_first)


@dataclass(frozen=True)
class Scoring:
    """Log-likelihoods of given texts; requests are contexts with the texts behind them, of whole documents.

    Attributes:
        asked: By what exits are decided, and whether the first token may leave early.
        longest: Tokens of the longest text of the cell.
        rows: Texts scored together.
    """

    checkpoint: Checkpoint
    asked: GenerationSettings
    longest: int
    rows: int

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.checkpoint.model.device

    def run(self, parts: Parts, unit: Unit[Context]) -> list[list[Scored]]:
        """Score a unit, traced."""
        return self._score(parts, unit, traced=True)

    def knowing(self, parts: Parts, units: Sequence[Unit[Context]], made: Sequence[list[Scored]]) -> Parts:
        """Refuse: texts of one context leave at layers of their own."""
        raise ValueError("exit layers of given texts are not known before")

    def timed(self, parts: Parts, unit: Unit[Context], clock: Clock) -> tuple[tuple[str, ...], int]:
        """Score; prefill and continuations are one."""
        clock.mark()
        self._score(parts, unit, traced=False)
        clock.mark()
        return (), sum(len(token_ids) for context in unit.requests for token_ids in context.continuations)

    def _score(self, parts: Parts, unit: Unit[Context], *, traced: bool) -> list[list[Scored]]:
        return score(
            self.checkpoint,
            unit.requests,
            parts,
            scope=self.asked.scope or "token",
            gates_first_token=self.checkpoint.kind == "seq2seq" or self.asked.gates_first_token,
            rows=self.rows,
            max_new_tokens=self.longest,
            traced=traced,
        )


@dataclass(frozen=True)
class Reading:
    """One timed phase of one decode of one unit."""

    doc_key: str
    round: int
    position: int
    arm: str
    twin: bool
    phase: str
    n_tokens: int
    wall_ns: int
    device_ns: int | None


@dataclass(frozen=True)
class Timing(Generic[Made]):
    """All readings of a cell and why it stopped reading more: ``precise`` or ``rounds`` (budget spent)."""

    readings: list[Reading]
    device: list[DeviceReading]
    energy: Energy
    stop_reason: str
    full: list[Made]
    method: list[Made]


MIN_ROUNDS: Final = 2
"""Rounds before precision may stop the reading: one that looks narrow at once is often one that was narrow by luck."""
ORDER = (("full", False), ("full", True), ("method", False), ("method", False), ("full", True), ("full", False))


def measure(
    work: Work[Asked, Made],
    full: Parts,
    method: Parts,
    units: Sequence[Unit[Asked]],
    settings: TimingSettings,
    seed: int,
    on_unit: Callable[[int], None],
    meter: Meter | str = "nobody gave a meter",
) -> Timing[Made]:
    """Time a method against full depth.

    Args:
        work: What is timed, on the model.
        full: Parts of the baseline.
        method: Parts of the method. One that looks ahead is timed as if it knew its exit layers: they are taken from
            an untimed decode and the blocks behind them are really skipped.
        units: What is done, in this order, every round.
        settings: Rounds, precision, warm-up.
        seed: Of the bootstrap that decides when to stop.
        on_unit: Told how many units have been timed.
        meter: Reads the energy of every decode, outside of what is timed; or why nothing does.
    """
    energy = EnergyLog(meter)
    full_outputs = [made for unit in units for made in work.run(full, unit)]
    outputs = [made for unit in units for made in work.run(method, unit)]
    if method.gate.looks_ahead:
        method = work.knowing(method, units, outputs)
    arms = {"full": full, "method": method}
    for unit in units[: settings.warm_up]:
        for parts in (full, method):
            work.timed(parts, unit, Clock(work.device))
    readings: list[Reading] = []
    device: list[DeviceReading] = []
    kind = work.device.type
    for round_ in range(settings.max_rounds):
        device.append(read_device(kind, round_, "start"))
        for index, unit in enumerate(units):
            for position, (arm, twin) in enumerate(ORDER):
                with energy.around(Place(unit.doc_key, round_, position, arm, twin)):
                    timed = _timed(work, arms[arm], unit)
                for phase, wall_ns, device_ns, n_tokens in timed:
                    readings.append(
                        Reading(unit.doc_key, round_, position, arm, twin, phase, n_tokens, wall_ns, device_ns)
                    )
            on_unit(round_ * len(units) + index + 1)
        device.append(read_device(kind, round_, "end"))
        estimate = speedup(readings, "total", seed)
        if round_ + 1 >= MIN_ROUNDS and estimate.low is not None and estimate.high is not None:
            half_width = (estimate.high - estimate.low) / 2 / estimate.value
            if half_width <= settings.target_half_width:
                return Timing(readings, device, energy.close(), "precise", full_outputs, outputs)
    return Timing(readings, device, energy.close(), "rounds", full_outputs, outputs)


def request_metrics(measured: Timing[Any], n_documents: int, n_units: int, seed: int) -> dict[str, Interval]:
    """Return what every timing tells: speed-up and its noise, milliseconds of either arm, how much was timed.

    Args:
        measured: All readings of the cell.
        n_documents: Timed; the last unit may have fewer of them than the others.
        n_units: Timed.
        seed: Of the bootstrap.
    """
    metrics = {
        "speedup": speedup(measured.readings, "total", seed),
        "aa_speedup": speedup(measured.readings, "total", seed, twin=True),
        "timed_documents": point(n_documents, n_units),
        "timed_rounds": point(len({reading.round for reading in measured.readings}), n_units),
    }
    for prefix, arm in (("", "method"), ("full_", "full")):
        totals = [r for r in measured.readings if r.phase == "total" and r.arm == arm and not r.twin]
        answered = len(totals) * n_documents / n_units
        metrics[f"{prefix}ms_per_request"] = point(sum(r.wall_ns for r in totals) / answered / 1e6, n_units)
    return metrics


def speedup(readings: Sequence[Reading], phase: str, seed: int, *, twin: bool = False) -> Interval:
    """Ratio of sums, full depth over the method (or over its twin), with a paired bootstrap interval over documents.

    Args:
        readings: Of any number of rounds.
        phase: ``prefill``, ``decode`` or ``total``.
        seed: Of the bootstrap.
        twin: Compare full depth with itself: the noise floor.
    """
    base: dict[str, int] = {}
    other: dict[str, int] = {}
    for reading in readings:
        if reading.phase != phase:
            continue
        if reading.arm == "full" and not reading.twin:
            base[reading.doc_key] = base.get(reading.doc_key, 0) + reading.wall_ns
        elif reading.twin == twin:
            other[reading.doc_key] = other.get(reading.doc_key, 0) + reading.wall_ns
    return ratio_interval([base[key] for key in base], [other[key] for key in base], seed=seed)


def _timed(work: Work[Asked, Made], parts: Parts, unit: Unit[Asked]) -> list[tuple[str, int, int | None, int]]:
    """Do one unit and return (phase, wall ns, device ns, tokens) of each."""
    clock = Clock(work.device)
    gc.disable()
    try:
        phases, n_tokens = work.timed(parts, unit, clock)
    finally:
        gc.enable()
    steps = [(phase, *clock.between(first, first + 1), n_tokens) for first, phase in enumerate(phases)]
    return [*steps, ("total", *clock.between(0, -1), n_tokens)]


class Clock:
    """Wall clock, and events on the stream where there is one; synchronises only at the marks."""

    def __init__(self, device: torch.device) -> None:
        self.on_device = device.type == "cuda"
        self.wall_ns: list[int] = []
        self.events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Wait for the device, and read the time."""
        if self.on_device:
            for index in range(torch.cuda.device_count()):  # a worker sees its own alone: one, or those of its model
                torch.cuda.synchronize(index)
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            event.synchronize()
            self.events.append(event)
        self.wall_ns.append(time.perf_counter_ns())

    def between(self, first: int, last: int) -> tuple[int, int | None]:
        """Return nanoseconds from one mark to another: of the wall, and of the device where it has a clock."""
        wall_ns = self.wall_ns[last] - self.wall_ns[first]
        if not self.on_device:
            return wall_ns, None
        return wall_ns, int(self.events[first].elapsed_time(self.events[last]) * 1e6)
