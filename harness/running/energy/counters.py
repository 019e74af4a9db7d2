"""Counters of energy: what one is, what it counted between two readings, and which ones this machine has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_SLACK_NS: Final = 1_000_000_000
"""A counter moves in steps of up to a tenth of a second or so: a step that belongs to more than the window."""


class CounterError(Exception):
    """A counter cannot be read, or what it says cannot be; says which one and why."""


@dataclass(frozen=True)
class Counter:
    """A counter of energy, microjoules since some beginning.

    Attributes:
        domain: What it counts: ``package-0``, ``package-0/dram``, ``gpu-0``, ``psys``.
        is_counted: Whether it is added to the others. One that holds others is read and kept apart.
        range_uj: Where it begins again at 0; None: it does not.
        most_w: More power than it can be of: what it says at once would be wrong.
        read_uj: Reads it; raises `CounterError`.
    """

    domain: str
    is_counted: bool
    range_uj: int | None
    most_w: int
    read_uj: Callable[[], int]

    def spent_uj(self, before_uj: int, after_uj: int, wall_ns: int) -> int:
        """Return what was spent between two readings, of which the counter came round at most once.

        Raises:
            CounterError: It was set back, or more power than there can be would have been drawn; or the time was so
                long that it may have come round more than once.
        """
        # A watt is a thousandth of a microjoule a nanosecond.
        if self.range_uj is not None and self.most_w * wall_ns // 1000 >= self.range_uj:
            raise CounterError(f"{self.domain} may have come round more than once in {wall_ns / 1e9:.0f} s")
        spent = after_uj - before_uj
        if spent < 0:
            spent += self.range_uj or 0
        if not 0 <= spent <= self.most_w * (wall_ns + _SLACK_NS) // 1000:
            raise CounterError(f"{self.domain} went from {before_uj} to {after_uj} µJ in {wall_ns / 1e9:.3f} s")
        return spent


@dataclass(frozen=True)
class Found:
    """The counters of one source.

    Attributes:
        counters: All of it, or none: a part of what is spent would pass for the whole.
        told: One line: what is read, or why nothing is.
    """

    counters: tuple[Counter, ...]
    told: str
