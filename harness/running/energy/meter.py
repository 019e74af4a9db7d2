"""Meter: all energy counters of the hardware that runs a model, read together.

A counter is updated about every 1 ms (RAPL) or at most every 100 ms (NVML). The energy of one short decode is off by up
to one update at either end, in both directions equally often. So sums over documents and rounds are unbiased, and their
intervals include this effect; `Idle.update_ns` is the time between updates.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final

from exitbench.harness.running.energy.counters import Counter, CounterSource
from exitbench.harness.running.energy.nvml import nvml_counters
from exitbench.harness.running.energy.powercap import powercap_counters

SETTLE_S: Final = 0.5
"""Seconds to wait before idle power is read: threads of a pool keep spinning for a while after their last task."""
IDLE_S: Final = 1.0
_WATCH_NS: Final = 500_000_000
_STEPS: Final = 4


@dataclass(frozen=True)
class Moment:
    """One reading of a meter: the time, and each counter's value in microjoules, in the order of `Meter.counters`."""

    at_ns: int
    uj: tuple[int, ...]


@dataclass(frozen=True)
class Idle:
    """Energy that one counter measures on the idle machine: the model is loaded and nothing is decoded.

    Attributes:
        domain: Domain of the counter.
        is_counted: Whether the counter is part of the total.
        idle_uj: Energy in microjoules, during `idle_ns`.
        idle_ns: Duration of the measurement in nanoseconds.
        update_ns: Update interval of the counter in nanoseconds; None if fewer than two updates were observed.
    """

    domain: str
    is_counted: bool
    idle_uj: int
    idle_ns: int
    update_ns: int | None


@dataclass(frozen=True)
class Meter:
    """Reader of energy counters, those of this machine.

    Attributes:
        counters: Counters, at least one of which is part of the total.
        sleep: Waits for a number of seconds.
        now_ns: Returns the time in nanoseconds.
    """

    counters: tuple[Counter, ...]
    sleep: Callable[[float], None] = time.sleep
    now_ns: Callable[[], int] = time.perf_counter_ns

    def read(self) -> Moment:
        """Return the time and the current value of every counter."""
        return Moment(self.now_ns(), tuple(counter.read_uj() for counter in self.counters))

    def idle(self) -> tuple[Idle, ...]:
        """Wait until threads are idle; then measure each counter's energy over one second, and its update interval."""
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
        """Return the median nanoseconds between updates of a counter; None if fewer than two updates are observed."""
        until_ns = self.now_ns() + _WATCH_NS
        last = counter.read_uj()
        steps: list[int] = []
        while len(steps) <= _STEPS and (now_ns := self.now_ns()) < until_ns:
            if (read := counter.read_uj()) != last:
                last = read
                steps.append(now_ns)
        return int(median(map(operator.sub, steps[1:], steps))) if len(steps) > 1 else None


def find_counters(device: str) -> tuple[CounterSource, ...]:
    """Return the counters of the hardware that runs a model: the processors, and the GPUs if the model runs on GPUs.

    Args:
        device: ``cpu`` or ``cuda``, as torch names it.
    """
    return (powercap_counters(), nvml_counters(_gpu_uuids())) if device.startswith("cuda") else (powercap_counters(),)


def open_meter(device: str) -> Meter | str:
    """Return a meter of the energy counters of the hardware that runs a model, or one line with the reason for none.

    `device` is ``cpu`` or ``cuda``. For a model on a GPU, the GPU's counter is required, since the processor's counter
    would miss most of the energy.
    """
    sources = find_counters(device)
    if not sources[-1].counters:
        return sources[-1].summary
    return Meter(tuple(counter for source in sources for counter in source.counters))


def energy_summary() -> str:
    """Return one line with the counters that a timing would read on this machine, and reasons for missing counters."""
    import torch

    return "; ".join(source.summary for source in find_counters("cuda" if torch.cuda.is_available() else "cpu"))


def _gpu_uuids() -> list[str]:
    """Return the ids of all GPUs visible to torch; empty if any GPU has no id."""
    import torch

    gpus = (torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count()))
    uuids = [getattr(properties, "uuid", None) for properties in gpus]
    return [] if None in uuids else [f"GPU-{uuid}" for uuid in uuids]
