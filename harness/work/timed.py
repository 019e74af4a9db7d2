"""The protocol of timed work: units of documents, run by a method while a clock is marked between phases."""

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
    """Documents that are run together, named by the key of the first one."""

    doc_key: str
    requests: tuple[Request, ...]


class TimedWork(Protocol[Request, Output]):
    """Work to time: one unit after another, with a method."""

    @property
    def device(self) -> torch.device:
        """Device of the model."""

    def run(self, parts: Parts, unit: Unit[Request]) -> list[Output]:
        """Return the outputs of a unit, traced."""

    def with_known_exits(self, parts: Parts, units: Sequence[Unit[Request]], outputs: Sequence[Output]) -> Parts:
        """Return a method that looks ahead as if it knew its exit layers, given the outputs of all units."""

    def timed(self, parts: Parts, unit: Unit[Request], clock: Clock) -> tuple[tuple[str, ...], int]:
        """Run a unit untraced, and mark the clock at the start of each phase and the end of the last.

        Returns:
            The phases, and the number of tokens produced.
        """


class Clock:
    """Wall clock, processor time, and events on the stream if there is one; synchronises only at the marks."""

    def __init__(self, device: torch.device) -> None:
        self.on_device = device.type == "cuda"
        self.wall_ns: list[int] = []
        self.cpu_ns: list[int] = []
        self.events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Synchronize the device, and read the time."""
        if self.on_device:
            for index in range(torch.cuda.device_count()):  # a worker sees its own GPUs only
                torch.cuda.synchronize(index)
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            event.synchronize()
            self.events.append(event)
        self.wall_ns.append(time.perf_counter_ns())
        self.cpu_ns.append(time.process_time_ns())

    def between(self, first: int, last: int) -> tuple[int, int | None, int]:
        """Return nanoseconds between two marks: wall time, device time (None without a device clock), CPU time."""
        wall_ns = self.wall_ns[last] - self.wall_ns[first]
        cpu_ns = self.cpu_ns[last] - self.cpu_ns[first]
        if not self.on_device:
            return wall_ns, None, cpu_ns
        return wall_ns, int(self.events[first].elapsed_time(self.events[last]) * 1e6), cpu_ns
