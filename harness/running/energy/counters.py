"""Energy counters: their definition, and the energy between two readings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_SLACK_NS: Final = 1_000_000_000
"""Tolerance on the measured interval: counters are updated in steps of up to about 0.1 s, which may begin before it."""


class CounterError(Exception):
    """Exception raised if a counter cannot be read or its reading is impossible; names the counter and the reason."""


@dataclass(frozen=True)
class Counter:
    """Energy counter of a part of the hardware, in microjoules since an arbitrary start.

    Attributes:
        domain: Domain of the counter: ``package-0``, ``package-0/dram``, ``gpu-0``, ``psys``.
        is_counted: Whether the energy is added to the total. A counter that includes others is stored, but not added.
        range_uj: Value at which the counter wraps around to 0; None if it never does.
        most_w: Upper bound of plausible power in watts; readings above it are rejected.
        read_uj: Reads the counter; raises `CounterError`.
    """

    domain: str
    is_counted: bool
    range_uj: int | None
    most_w: int
    read_uj: Callable[[], int]

    def spent_uj(self, before_uj: int, after_uj: int, wall_ns: int) -> int:
        """Return the microjoules between two readings, taken `wall_ns` nanoseconds apart.

        The counter may have wrapped around once between them.

        Raises:
            CounterError: The counter was reset, the power is implausible, or the interval is so long that the counter
                may have wrapped around more than once.
        """
        # A watt is a thousandth of a microjoule per nanosecond.
        if self.range_uj is not None and self.most_w * wall_ns // 1000 >= self.range_uj:
            raise CounterError(f"{self.domain} may have come round more than once in {wall_ns / 1e9:.0f} s")
        spent = after_uj - before_uj
        if spent < 0:
            spent += self.range_uj or 0
        if not 0 <= spent <= self.most_w * (wall_ns + _SLACK_NS) // 1000:
            raise CounterError(f"{self.domain} went from {before_uj} to {after_uj} µJ in {wall_ns / 1e9:.3f} s")
        return spent


@dataclass(frozen=True)
class CounterSource:
    """Energy counters of one kind of hardware: the processors or the GPUs.

    Attributes:
        counters: All counters; empty if any of them is unreadable, since a partial sum would look like the total.
        summary: One line: the domains that are read, or the reason why none is read.
    """

    counters: tuple[Counter, ...]
    summary: str
