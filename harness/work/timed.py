"""Protocol of timed work: batches of documents are run with a method, and clocks are read between the phases."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch

from exitbench.methods.base import Parts
from exitbench.methods.gates import Scheduled

Request = TypeVar("Request")
Output = TypeVar("Output")


@dataclass(frozen=True)
class Unit(Generic[Request]):
    """A batch of documents that is run and timed as a whole.

    Attributes:
        doc_key: Key of the batch's first document.
        requests: The engine's input for each document.
    """

    doc_key: str
    requests: tuple[Request, ...]


class TimedWork(Protocol[Request, Output]):
    """Protocol of work that can be timed: a method runs one batch after another."""

    @property
    def device(self) -> torch.device:
        """Device of the model."""

    def run(self, parts: Parts, unit: Unit[Request]) -> tuple[list[Output], Unit[Request]]:
        """Run a batch in an untimed pass that records traces; return its outputs, and the batch to time."""

    def run_timed(self, parts: Parts, unit: Unit[Request], clock: Clock) -> tuple[tuple[str, ...], int]:
        """Run a batch without tracing; mark the clock at the start of each phase and at the end of the last phase.

        Returns:
            The names of the phases, and the number of tokens (or texts) produced.
        """


def with_known_exits(parts: Parts, units: Sequence[Unit[Any]], outputs: Sequence[Any]) -> Parts:
    """Return an oracle's parts with a gate that is given the exit layers in advance, for timing.

    The oracle itself runs all blocks to find its exit layers; with this gate, blocks after the exit are skipped.

    Args:
        parts: Parts of the oracle (a method that looks ahead).
        units: The batches to time; a request has a `seed`.
        outputs: Traced outputs of the oracle for the requests, in order; an output has `exit_layers`.
    """
    requests = [request for unit in units for request in unit.requests]
    exits = {request.seed: output.exit_layers for request, output in zip(requests, outputs, strict=True)}
    return replace(parts, gate=Scheduled(exits))


class Clock:
    """Wall clock, CPU clock and, on a GPU, CUDA events; the device is synchronized only at `mark`."""

    def __init__(self, device: torch.device) -> None:
        self.on_device = device.type == "cuda"
        self.wall_ns: list[int] = []
        self.cpu_ns: list[int] = []
        self.events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Synchronize the device, and append a reading of all clocks."""
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
        """Return (wall, device, CPU) nanoseconds between two marks, given by index; device time is None without GPU."""
        wall_ns = self.wall_ns[last] - self.wall_ns[first]
        cpu_ns = self.cpu_ns[last] - self.cpu_ns[first]
        if not self.on_device:
            return wall_ns, None, cpu_ns
        return wall_ns, int(self.events[first].elapsed_time(self.events[last]) * 1e6), cpu_ns
