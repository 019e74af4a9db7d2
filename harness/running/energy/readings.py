"""Energy of a timing's decodes: counter readings around each decode, and the metrics computed from them.

Either all decodes of a timing have a reading, or none has. One missing or impossible reading discards the energy of the
whole timing; otherwise full depth and the method would be compared on different documents.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from exitbench.harness.running.energy.counters import CounterError
from exitbench.harness.running.energy.meter import Idle, Meter, Moment
from exitbench.results.statistics.intervals import Interval, point, ratio_interval


@dataclass(frozen=True)
class DecodeKey:
    """Identity of one decode within a timing: its key columns in the spool's tables ``timings`` and ``energy``.

    Attributes:
        doc_key: Key of the first document of the unit (batch).
        position: Place of the decode in a round's order (`timing.ORDER`), from 0.
        arm: ``full`` for full depth, or ``method``.
        twin: Whether this is full depth timed again, for the noise floor.
    """

    doc_key: str
    round: int
    position: int
    arm: str
    twin: bool


@dataclass(frozen=True)
class EnergyReading(DecodeKey):
    """Energy that one counter measured during one decode; a row of the spool's ``energy`` table.

    Attributes:
        domain: Domain of the counter, such as ``package-0``.
        wall_ns: Nanoseconds between the two counter readings: slightly more than the decode itself.
    """

    domain: str
    energy_uj: int
    wall_ns: int


@dataclass(frozen=True)
class Energy:
    """Energy readings of a whole timing.

    Attributes:
        readings: One reading per decode and counter; empty if there are no counters or a reading failed.
        idle: Energy of the idle machine, one entry per counter.
        summary: Names of the counters, or the reason why there are no readings.
    """

    readings: tuple[EnergyReading, ...]
    idle: tuple[Idle, ...]
    summary: str


class EnergyLog:
    """Collector of a timing's energy readings. The first counter error ends the collection."""

    def __init__(self, meter: Meter | str) -> None:
        """Measure the idle machine's energy.

        Args:
            meter: The meter, or the reason why there is none.
        """
        self._meter: Meter | None = None
        self._why = meter if isinstance(meter, str) else ""
        self._readings: list[EnergyReading] = []
        self._idle: tuple[Idle, ...] = ()
        if not isinstance(meter, str):
            try:
                self._idle = meter.idle()
                self._meter = meter
            except CounterError as error:
                self._lose(error)

    @contextmanager
    def around(self, key: DecodeKey) -> Iterator[None]:
        """Read the counters before and after the decode that runs in this context, outside of its timed interval.

        `key` identifies the decode.
        """
        before = self._read()
        yield
        after = self._read()
        if self._meter is None or before is None or after is None:
            return
        wall_ns = after.at_ns - before.at_ns
        try:
            for counter, before_uj, after_uj in zip(self._meter.counters, before.uj, after.uj, strict=True):
                spent_uj = counter.spent_uj(before_uj, after_uj, wall_ns)
                row = EnergyReading(**vars(key), domain=counter.domain, energy_uj=spent_uj, wall_ns=wall_ns)
                self._readings.append(row)
        except CounterError as error:
            self._lose(error)

    def close(self) -> Energy:
        """Return the readings of all decodes, or none and the reason if a reading failed or counters stood still."""
        if self._meter is None:
            return Energy((), (), self._why)
        arms = {(reading.arm, reading.twin) for reading in self._readings}
        moved = {(reading.arm, reading.twin) for reading in self._counted() if reading.energy_uj}
        if not arms or moved != arms:
            return Energy((), (), "counters stood still while something was decoded")
        return Energy(tuple(self._readings), self._idle, ", ".join(idle.domain for idle in self._idle))

    def _counted(self) -> Iterator[EnergyReading]:
        counted = {idle.domain for idle in self._idle if idle.is_counted}
        return (reading for reading in self._readings if reading.domain in counted)

    def _read(self) -> Moment | None:
        try:
            return None if self._meter is None else self._meter.read()
        except CounterError as error:
            self._lose(error)
            return None

    def _lose(self, error: CounterError) -> None:
        self._meter, self._why = None, f"a counter was lost: {error}"


def energy_metrics(energy: Energy, tokens: Mapping[str, int], seed: int) -> dict[str, Interval]:
    """Return the energy metrics of full depth and the method (the two arms); empty if there are no readings.

    ``energy_ratio`` is full depth's energy over the method's, for whole requests and including idle power, with a
    paired interval over documents. ``aa_energy_ratio`` is the same ratio of full depth and its twin, a second run of
    full depth. Metrics with ``net_`` exclude the machine's idle power.

    Args:
        energy: Energy of the timing.
        tokens: Number of tokens produced in all decodes of an arm, by arm: ``full`` (without its twin) and ``method``.
        seed: Seed of the bootstrap.
    """
    if not energy.readings:
        return {}
    counted = {idle.domain: idle for idle in energy.idle if idle.is_counted}
    gross_uj: dict[tuple[str, bool], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    net_uj: dict[tuple[str, bool], float] = defaultdict(float)
    for reading in energy.readings:
        if (idle := counted.get(reading.domain)) is None:
            continue
        arm = (reading.arm, reading.twin)
        gross_uj[arm][reading.doc_key] += reading.energy_uj
        net_uj[arm] += reading.energy_uj - idle.idle_uj / idle.idle_ns * reading.wall_ns
    full, method, twin = (gross_uj[arm] for arm in (("full", False), ("method", False), ("full", True)))
    metrics = {"energy_ratio": _ratio(full, method, seed), "aa_energy_ratio": _ratio(full, twin, seed)}
    n = len(full)
    for prefix, name in (("", "method"), ("full_", "full")):
        joules = {"": sum(gross_uj[name, False].values()) / 1e6, "net_": net_uj[name, False] / 1e6}
        for kind, spent in joules.items():
            metrics[f"{prefix}{kind}joules_per_token"] = point(spent / tokens[name], n)
    metrics["idle_power_w"] = point(sum(idle.idle_uj / idle.idle_ns * 1e3 for idle in counted.values()), n)
    metrics["energy_counters"] = point(len(counted), n)
    updates = [idle.update_ns for idle in counted.values() if idle.update_ns is not None]
    if updates:
        wall_ns = median(reading.wall_ns for reading in energy.readings)
        metrics["energy_updates"] = point(wall_ns / max(updates), n)
    return metrics


def _ratio(full: Mapping[str, int], other: Mapping[str, int], seed: int) -> Interval:
    return ratio_interval([full[key] for key in full], [other[key] for key in full], seed=seed)
