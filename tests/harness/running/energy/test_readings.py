"""Energy of a timing: readings of all decodes or none, and joules per token, gross and net of idle power."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from exitbench.harness.cells.cell import TimingSettings
from exitbench.harness.running.energy.counters import Counter, CounterError
from exitbench.harness.running.energy.meter import Idle, Meter, Moment
from exitbench.harness.running.energy.powercap import powercap_counters
from exitbench.harness.running.energy.readings import DecodeKey, Energy, EnergyLog, energy_metrics
from exitbench.harness.running.timing import ORDER, Clock, Unit, measure

S = 1_000_000_000
IDLE = (Idle("package-0", True, 500_000, S, 1_000_000), Idle("psys", False, 9_000_000, S, None))


@dataclass
class Scripted:
    """Meter with scripted readings: microjoules of each counter, one second apart, or an error."""

    script: Iterator[tuple[int, ...] | CounterError]
    first: tuple[Idle, ...] | CounterError = IDLE
    counters: tuple[Counter, ...] = tuple(
        Counter(idle.domain, idle.is_counted, 10**12, 1_000, lambda: 0) for idle in IDLE
    )
    at_ns: int = field(default=0)

    def read(self) -> Moment:
        self.at_ns += S
        said = next(self.script)
        if isinstance(said, CounterError):
            raise said
        return Moment(self.at_ns, said)

    def idle(self) -> tuple[Idle, ...]:
        if isinstance(self.first, CounterError):
            raise self.first
        return self.first


def energy_readings(
    by_arm: dict[tuple[str, bool], int], documents: tuple[int, ...] = (1, 2, 3, 4), rounds: int = 2
) -> Energy:
    """Return readings in which a decode takes its document's number times its arm's microjoules.

    An arm is full depth, its twin or the method. The counter also advances between decodes, which must not be counted.
    """
    places = [(r, d, p, *arm) for r, d, (p, arm) in product(range(rounds), documents, enumerate(ORDER))]

    def script() -> Iterator[tuple[int, int]]:
        uj = 0
        for _, document, _, arm, twin in places:
            yield uj, 10 * uj
            uj += document * by_arm[arm, twin]
            yield uj, 10 * uj
            uj += 77_000_000

    log = EnergyLog(Scripted(script()))
    for round_, document, position, arm, twin in places:
        with log.around(DecodeKey(str(document), round_, position, arm, twin)):
            pass
    return log.close()


ARMS = {("full", False): 3_000_000, ("full", True): 2_900_000, ("method", False): 2_000_000}
TOKENS = {"full": 800, "method": 400}


def test_energy_between_decodes_is_not_attributed() -> None:
    energy = energy_readings(ARMS)
    assert energy.summary == "package-0, psys" and energy.idle == IDLE
    assert len(energy.readings) == 2 * 4 * len(ORDER) * 2
    for reading in energy.readings:
        own = int(reading.doc_key) * ARMS[reading.arm, reading.twin] * (10 if reading.domain == "psys" else 1)
        assert (reading.energy_uj, reading.wall_ns) == (own, S)


def test_joules_per_token_use_counted_domains_gross_and_net_of_idle() -> None:
    metrics = {name: it.value for name, it in energy_metrics(energy_readings(ARMS), TOKENS, seed=0).items()}
    decodes, documents = 2 * 2, 1 + 2 + 3 + 4  # twice in each of two rounds
    assert metrics == pytest.approx(
        {
            "energy_ratio": 1.5,
            "aa_energy_ratio": 3 / 2.9,
            "joules_per_token": decodes * documents * 2 / 400,
            "net_joules_per_token": decodes * (documents * 2 - 4 * 0.5) / 400,
            "full_joules_per_token": decodes * documents * 3 / 800,
            "full_net_joules_per_token": decodes * (documents * 3 - 4 * 0.5) / 800,
            "idle_power_w": 0.5,
            "energy_counters": 1,
            "energy_updates": 1000,
        }
    )


def test_energy_ratio_has_a_paired_interval_over_documents() -> None:
    metrics = energy_metrics(energy_readings(ARMS), TOKENS, seed=0)
    for name in ("energy_ratio", "aa_energy_ratio"):
        assert (metrics[name].n, metrics[name].low) == (4, None)  # no document differs in its ratio
    energy = energy_readings(ARMS)
    uneven = tuple(
        reading
        if reading.doc_key != "4" or reading.arm == "full"
        else type(reading)(**{**vars(reading), "energy_uj": 2 * reading.energy_uj})
        for reading in energy.readings
    )
    ratio = energy_metrics(Energy(uneven, energy.idle, ""), TOKENS, seed=0)["energy_ratio"]
    assert ratio.value == pytest.approx(30 / 28)
    assert ratio.low is not None and ratio.high is not None and ratio.low < ratio.value < ratio.high


def test_readings_count_only_energy_within_a_decode(server: Any) -> None:
    seconds = itertools.count()
    counters = powercap_counters(server.root).counters
    log = EnergyLog(Meter(counters, sleep=lambda s: None, now_ns=lambda: next(seconds) * S))
    server.zone("intel-rapl:0", "package-0", 1_000, 10**12)
    server.zone("intel-rapl:0:1", "dram", 65_712_999_600, 65_712_999_613)  # comes round within the decode
    with log.around(DecodeKey("a", 0, 0, "full", False)):
        server.add("intel-rapl:0", 700)
        server.add("intel-rapl:0:1", 20)
    server.add("intel-rapl:0", 10_000)
    readings = log.close().readings
    assert [(reading.domain, reading.energy_uj, reading.wall_ns) for reading in readings] == [
        ("package-0", 700, S),
        ("package-0/dram", 20, S),
        ("package-1", 0, S),
        ("psys", 0, S),
    ]


def test_vanished_domain_discards_the_energy_of_its_timing(server: Any) -> None:
    seconds = itertools.count()
    counters = powercap_counters(server.root).counters
    log = EnergyLog(Meter(counters, sleep=lambda s: None, now_ns=lambda: next(seconds) * S))
    with log.around(DecodeKey("a", 0, 0, "full", False)):
        server.add("intel-rapl:0", 700)
    with log.around(DecodeKey("a", 0, 1, "method", False)):
        shutil.rmtree(server.root / "intel-rapl:1")
    energy = log.close()
    assert energy.readings == () and "intel-rapl:1/energy_uj: No such file" in energy.summary


class Logged(Scripted):
    """Meter that records when it is read."""

    def __init__(self, events: list[str]) -> None:
        super().__init__((uj, uj) for uj in itertools.count())
        self.events = events

    def idle(self) -> tuple[Idle, ...]:
        self.events.append("idle")
        return super().idle()

    def read(self) -> Moment:
        self.events.append("read")
        return super().read()


def test_counters_are_read_before_and_after_every_timed_decode() -> None:
    events: list[str] = []

    class Noted:
        device = torch.device("cpu")

        def run(self, parts: Any, unit: Any) -> tuple[list[None], Any]:
            events.append("untimed")
            return [None], unit

        def run_timed(self, parts: Any, unit: Any, clock: Clock) -> tuple[tuple[str, ...], int]:
            events.append("decode")
            clock.mark()
            clock.mark()
            return (), 1

    parts: Any = SimpleNamespace(gate=SimpleNamespace(looks_ahead=False))
    settings = TimingSettings(documents=2, max_rounds=1, target_half_width=1e-9, warm_up=0)
    units = [Unit(key, (None,)) for key in "ab"]
    measured = measure(Noted(), parts, parts, units, settings, 0, lambda done: None, Logged(events))
    assert events == ["idle", *["untimed"] * 4, *["read", "decode", "read"] * 2 * len(ORDER)]
    assert len(measured.energy.readings) == 2 * len(ORDER) * len(IDLE)


def test_energy_log_without_a_meter_has_only_the_reason() -> None:
    log = EnergyLog("no counters")
    with log.around(DecodeKey("a", 0, 0, "full", False)):
        pass
    assert log.close() == Energy((), (), "no counters")
    assert energy_metrics(log.close(), {}, seed=0) == {}


LOST = CounterError("package-0: gone")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ([(0, 0), (5, 5), LOST], "a counter was lost: package-0: gone"),  # vanishes before a decode
        ([(0, 0), (5, 5), (6, 6), LOST], "a counter was lost: package-0: gone"),  # within one
        ([(0, 0), (5, 5), (6, 6), (7, 0), (8, 1), (9, 2)], "a counter was lost: psys went from 6 to 0"),
        ([(0, 0), (5, 5), (9, 9), (9, 9)], "counters stood still while something was decoded"),
        ([], "counters stood still"),
    ],
)
def test_one_invalid_reading_discards_all_energy_of_a_timing(
    script: list[tuple[int, int] | CounterError], says: str
) -> None:
    log, done = EnergyLog(Scripted(iter(script))), list[str]()
    decodes = ["full", "method", "full"][: (len(script) + 1) // 2]
    for position, arm in enumerate(decodes):
        with log.around(DecodeKey("a", 0, position, arm, False)):
            done.append(arm)
    assert done == decodes  # whatever the counters say
    energy = log.close()
    assert (energy.readings, energy.idle) == ((), ()) and energy.summary.startswith(says)


def test_counter_that_fails_during_idle_measurement_is_not_used() -> None:
    log = EnergyLog(Scripted(iter([]), first=LOST))
    with log.around(DecodeKey("a", 0, 0, "full", False)):
        pass
    assert log.close() == Energy((), (), "a counter was lost: package-0: gone")
