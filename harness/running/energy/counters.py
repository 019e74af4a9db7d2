"""Energy counters: their definition, and the energy between two readings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_SLACK_NS: Final = 1_000_000_000
"""Counters are updated in steps of up to about 0.1 s; a step may include energy from before the window."""


class CounterError(Exception):
    """A counter cannot be read, or its reading is impossible; names the counter and the reason."""


@dataclass(frozen=True)
class Counter:
    """An energy counter, in microjoules since an arbitrary start.

    Attributes:
        domain: Domain of the counter: ``package-0``, ``package-0/dram``, ``gpu-0``, ``psys``.
        is_counted: Whether it is added to the others. A counter that includes others is read and stored separately.
        range_uj: Value at which it wraps around to 0; None: it does not.
        most_w: Upper bound of plausible power; readings above it are rejected.
        read_uj: Reads the counter; raises `CounterError`.
    """

    domain: str
    is_counted: bool
    range_uj: int | None
    most_w: int
    read_uj: Callable[[], int]

    def spent_uj(self, before_uj: int, after_uj: int, wall_ns: int) -> int:
        """Return the energy between two readings, between which the counter wrapped around at most once.

        Raises:
            CounterError: It was reset, the power is implausible, or the interval is so long that it may have wrapped
                around more than once.
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
    """Energy counters of one source (processor or GPU).

    Attributes:
        counters: All counters of the source, or none: a part would be mistaken for the total.
        summary: One line: the domains that are read, or why none is.
    """

    counters: tuple[Counter, ...]
    summary: str
