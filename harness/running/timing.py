"""Paired speed-up against full depth of the same checkpoint, in one process, with its own noise floor.

For every unit of documents the order is full, twin, method, method, twin, full, where twin is full depth again: both
comparisons are ABBA, so a machine that slowly warms up or cools down favours neither. Nothing is traced, checked or
scored while the clock runs: an untimed decode before does that (`decode`'s ``traced``).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from exitbench.harness.cells.cell import GenerationSettings, TimingSettings
from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.decode import Batch, decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.running.device_readings import DeviceReading, read_device
from exitbench.methods.base import Parts
from exitbench.methods.gates import Scheduled
from exitbench.results.statistics.intervals import Interval, ratio_interval


@dataclass(frozen=True)
class Unit:
    """Documents decoded together, named by the first one's key."""

    doc_key: str
    requests: tuple[Request, ...]


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
class Timing:
    """All readings of a cell and why it stopped reading more: ``precise`` or ``rounds`` (budget spent)."""

    readings: list[Reading]
    device: list[DeviceReading]
    stop_reason: str
    full: list[Generation]
    method: list[Generation]


MIN_ROUNDS: Final = 2
"""Rounds before precision may stop the reading: one that looks narrow at once is often one that was narrow by luck."""
ORDER = (("full", False), ("full", True), ("method", False), ("method", False), ("full", True), ("full", False))


def measure(
    checkpoint: Checkpoint,
    full: Parts,
    method: Parts,
    units: Sequence[Unit],
    asked: GenerationSettings,
    settings: TimingSettings,
    seed: int,
    on_unit: Callable[[int], None],
) -> Timing:
    """Time a method against full depth.

    Args:
        checkpoint: The model.
        full: Parts of the baseline.
        method: Parts of the method. One that looks ahead is timed as if it knew its exit layers: they are taken from
            an untimed decode and the blocks behind them are really skipped.
        units: What is decoded, in this order, every round.
        asked: Longest answer, and what changes logits; stop strings are not looked for.
        settings: Rounds, precision, warm-up.
        seed: Of the bootstrap that decides when to stop.
        on_unit: Told how many units have been timed.
    """

    def run(parts: Parts, unit: Unit) -> list[Generation]:
        return decode(checkpoint, _prefilled(checkpoint, unit, asked), parts, asked=asked)

    full_outputs = [generation for unit in units for generation in run(full, unit)]
    outputs = [generation for unit in units for generation in run(method, unit)]
    if method.gate.looks_ahead:
        requests = [request for unit in units for request in unit.requests]
        known = {request.seed: output.exit_layers for request, output in zip(requests, outputs, strict=True)}
        method = Parts(Scheduled(known), method.threshold, method.head, method.kv_policy, method.blocks)
    arms = {"full": full, "method": method}
    for unit in units[: settings.warm_up]:
        for parts in (full, method):
            decode(checkpoint, _prefilled(checkpoint, unit, asked), parts, asked=asked, traced=False)
    readings: list[Reading] = []
    device: list[DeviceReading] = []
    kind = checkpoint.model.device.type
    for round_ in range(settings.max_rounds):
        device.append(read_device(kind, round_, "start"))
        for index, unit in enumerate(units):
            for position, (arm, twin) in enumerate(ORDER):
                for phase, wall_ns, device_ns, n_tokens in _timed(checkpoint, arms[arm], unit, asked):
                    readings.append(
                        Reading(unit.doc_key, round_, position, arm, twin, phase, n_tokens, wall_ns, device_ns)
                    )
            on_unit(round_ * len(units) + index + 1)
        device.append(read_device(kind, round_, "end"))
        estimate = speedup(readings, "total", seed)
        if round_ + 1 >= MIN_ROUNDS and estimate.low is not None and estimate.high is not None:
            half_width = (estimate.high - estimate.low) / 2 / estimate.value
            if half_width <= settings.target_half_width:
                return Timing(readings, device, "precise", full_outputs, outputs)
    return Timing(readings, device, "rounds", full_outputs, outputs)


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


def _timed(
    checkpoint: Checkpoint, parts: Parts, unit: Unit, asked: GenerationSettings
) -> Iterator[tuple[str, int, int | None, int]]:
    """Decode one unit and yield (phase, wall ns, device ns, tokens)."""
    clock = _Clock(checkpoint.model.device)
    gc.disable()
    try:
        clock.mark()
        batch = _prefilled(checkpoint, unit, asked)
        clock.mark()
        generations = decode(checkpoint, batch, parts, asked=asked, traced=False)
        clock.mark()
    finally:
        gc.enable()
    n_tokens = sum(len(generation.token_ids) for generation in generations)
    for phase, first, last in (("prefill", 0, 1), ("decode", 1, 2), ("total", 0, 2)):
        yield phase, *clock.between(first, last), n_tokens


def _prefilled(checkpoint: Checkpoint, unit: Unit, asked: GenerationSettings) -> Batch:
    model, gates_first = checkpoint.model, asked.gates_first_token
    return prefill(model, unit.requests, asked.max_new_tokens, gates_first_token=gates_first)


class _Clock:
    """Wall clock, and events on the stream where there is one; synchronises only at the marks."""

    def __init__(self, device: torch.device) -> None:
        self.on_device = device.type == "cuda"
        self.wall_ns: list[int] = []
        self.events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        if self.on_device:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            event.synchronize()
            self.events.append(event)
        self.wall_ns.append(time.perf_counter_ns())

    def between(self, first: int, last: int) -> tuple[int, int | None]:
        wall_ns = self.wall_ns[last] - self.wall_ns[first]
        if not self.on_device:
            return wall_ns, None
        return wall_ns, int(self.events[first].elapsed_time(self.events[last]) * 1e6)
