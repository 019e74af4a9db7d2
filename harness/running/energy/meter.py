"""A meter: all counters of the machine that a model's work shows in, read together.

Counters move in steps (about a millisecond of RAPL's, up to a tenth of a second of NVML's), so that what is read of one
short decode is off by up to a step at either end, as often too much as too little. Sums over documents and rounds are
right, and their intervals show what the steps cost; `Idle.update_ns` tells how long a step takes.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final, Protocol

from exitbench.harness.running.energy.counters import Counter, Found
from exitbench.harness.running.energy.nvml import nvml_counters
from exitbench.harness.running.energy.powercap import powercap_counters

SETTLE_S: Final = 0.5
"""Threads of a pool go on looking for work for a while after the last of it."""
IDLE_S: Final = 1.0
_WATCH_NS: Final = 500_000_000
_STEPS: Final = 4


@dataclass(frozen=True)
class Moment:
    """One reading: of the clock, then of every counter, in the meter's order."""

    at_ns: int
    uj: tuple[int, ...]


@dataclass(frozen=True)
class Idle:
    """What a counter tells while nothing is decoded, the model loaded.

    Attributes:
        domain: What it counts.
        is_counted: Whether it is added to the others.
        idle_uj: What was spent.
        idle_ns: In how long.
        update_ns: How long it stands still between two steps; None where it did not move.
    """

    domain: str
    is_counted: bool
    idle_uj: int
    idle_ns: int
    update_ns: int | None


class Meter(Protocol):
    """What reads counters."""

    @property
    def counters(self) -> tuple[Counter, ...]:
        """All of them."""

    def read(self) -> Moment:
        """Read all; raises `CounterError`."""

    def idle(self) -> tuple[Idle, ...]:
        """Read all while nothing is done; raises `CounterError`."""


@dataclass(frozen=True)
class MachineMeter:
    """The meter of this machine.

    Attributes:
        counters: At least one that is counted.
        sleep: Waits for so many seconds.
        now_ns: Tells the time.
    """

    counters: tuple[Counter, ...]
    sleep: Callable[[float], None] = time.sleep
    now_ns: Callable[[], int] = time.perf_counter_ns

    def read(self) -> Moment:
        """Read all."""
        return Moment(self.now_ns(), tuple(counter.read_uj() for counter in self.counters))

    def idle(self) -> tuple[Idle, ...]:
        """Wait until threads rest, read over a second, and then watch how long each counter stands still."""
        self.sleep(SETTLE_S)
        before = self.read()
        self.sleep(IDLE_S)
        after = self.read()
        wall_ns = after.at_ns - before.at_ns
        spent = [
            counter.spent_uj(before_uj, after_uj, wall_ns)
            for counter, before_uj, after_uj in zip(self.counters, before.uj, after.uj, strict=True)
        ]
        return tuple(
            Idle(counter.domain, counter.is_counted, uj, wall_ns, self._update_ns(counter))
            for counter, uj in zip(self.counters, spent, strict=True)
        )

    def _update_ns(self, counter: Counter) -> int | None:
        """The usual time between steps, of a few."""
        until_ns = self.now_ns() + _WATCH_NS
        last = counter.read_uj()
        steps: list[int] = []
        while len(steps) <= _STEPS and (now_ns := self.now_ns()) < until_ns:
            if (read := counter.read_uj()) != last:
                last = read
                steps.append(now_ns)
        return int(median(map(operator.sub, steps[1:], steps))) if len(steps) > 1 else None


def find_counters(device: str) -> tuple[Found, ...]:
    """Return the counters that a model's work shows in: of the processors, and of the GPUs where it is on them.

    Args:
        device: ``cpu`` or ``cuda``, as torch names it.
    """
    return (powercap_counters(), nvml_counters(_gpu_uuids())) if device.startswith("cuda") else (powercap_counters(),)


def open_meter(device: str) -> Meter | str:
    """Return a meter, or in one line why there is none.

    A GPU's work needs the GPU's counter: the processor's alone would miss most of it.
    """
    found = find_counters(device)
    if not found[-1].counters:
        return found[-1].told
    return MachineMeter(tuple(counter for source in found for counter in source.counters))


def energy_told() -> str:
    """Return in one line which counters a timing would read on this machine, and why not others."""
    import torch

    return "; ".join(found.told for found in find_counters("cuda" if torch.cuda.is_available() else "cpu"))


def _gpu_uuids() -> list[str]:
    """The GPUs that torch sees, a worker's own or those that its model is spread over; none if one has no id."""
    import torch

    seen = (torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count()))
    uuids = [getattr(properties, "uuid", None) for properties in seen]
    return [] if None in uuids else [f"GPU-{uuid}" for uuid in uuids]
