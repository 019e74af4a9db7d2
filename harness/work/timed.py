"""Protocol of timed work: units of documents, run by a method while the clock is read between phases."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from exitbench.methods.base import Parts

Request = TypeVar("Request")
Output = TypeVar("Output")


@dataclass(frozen=True)
class Unit(Generic[Request]):
    """Documents that are run as one batch, with the key of the first document."""

    doc_key: str
    requests: tuple[Request, ...]


class TimedWork(Protocol[Request, Output]):
    """Work that can be timed: a method runs one unit after another."""

    @property
    def device(self) -> torch.device:
        """Device of the model."""

    def run(self, parts: Parts, unit: Unit[Request]) -> list[Output]:
        """Run a unit with tracing and without measuring time; return its outputs."""

    def with_known_exits(self, parts: Parts, units: Sequence[Unit[Request]], outputs: Sequence[Output]) -> Parts:
        """Return a variant of a look-ahead method that exits at the layers in its outputs and reads no later blocks."""

    def timed(self, parts: Parts, unit: Unit[Request], clock: Clock) -> tuple[tuple[str, ...], int]:
        """Run a unit without tracing; mark the clock at the start of each phase and at the end of the last.

        Returns:
            The names of the phases, and the number of tokens produced.
        """


class Clock:
    """Wall clock, CPU clock, and CUDA events on a GPU. The device is synchronized only at the marks."""

    def __init__(self, device: torch.device) -> None:
        self.on_device = device.type == "cuda"
        self.wall_ns: list[int] = []
        self.cpu_ns: list[int] = []
        self.events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Synchronize the device, and read all clocks."""
        if self.on_device:
            for index in range(torch.cuda.device_count()):  # only this worker's GPUs are visible
                torch.cuda.synchronize(index)
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            event.synchronize()
            self.events.append(event)
        self.wall_ns.append(time.perf_counter_ns())
        self.cpu_ns.append(time.process_time_ns())

    def between(self, first: int, last: int) -> tuple[int, int | None, int]:
        """Return nanoseconds between two marks: wall time, device time (None without a GPU), CPU time."""
        wall_ns = self.wall_ns[last] - self.wall_ns[first]
        cpu_ns = self.cpu_ns[last] - self.cpu_ns[first]
        if not self.on_device:
            return wall_ns, None, cpu_ns
        return wall_ns, int(self.events[first].elapsed_time(self.events[last]) * 1e6), cpu_ns
