"""The meter: readings replayed from files, idle power over a fixed time, and counters that stop changing."""

from typing import Any

import pytest

from exitbench.harness.running.energy import meter
from exitbench.harness.running.energy.counters import Counter, CounterError, CounterSource
from exitbench.harness.running.energy.meter import IDLE_S, SETTLE_S, Idle, Meter, Moment, open_meter
from exitbench.harness.running.energy.powercap import powercap_counters

MS = 1_000_000


class Clock:
    """Fake clock that advances when it is read or slept on, and with it the energy counters of a folder."""

    def __init__(self, zones: Any, watts: dict[str, int], step_ns: int = MS) -> None:
        self.zones, self.watts, self.step_ns = zones, watts, step_ns
        self.ns = self.told_ns = 0
        self.slept: list[float] = []

    def now_ns(self) -> int:
        self.ns += MS // 10
        self._tell()
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.ns += round(seconds * 1e9)
        self._tell()

    def _tell(self) -> None:
        """Advance the counters, which change only once per ``step_ns``."""
        if steps := (self.ns - self.told_ns) // self.step_ns:
            self.told_ns += steps * self.step_ns
            for zone, watts in self.watts.items():
                self.zones.add(zone, watts * steps * self.step_ns // 1000)


def test_one_reading_includes_all_counters(server: Any) -> None:
    reader = Meter(powercap_counters(server.root).counters, now_ns=lambda: 7)
    assert reader.read() == Moment(7, (1_000, 50, 2_000, 9_000))


def test_idle_power_is_measured_for_a_fixed_time_after_settling(server: Any) -> None:
    clock = Clock(server, {"intel-rapl:0": 40, "intel-rapl:0:1": 3, "intel-rapl:1": 30, "intel-rapl:2": 100})
    idle = Meter(powercap_counters(server.root).counters, clock.sleep, clock.now_ns).idle()
    assert clock.slept == [SETTLE_S, IDLE_S]
    watts = {each.domain: 1000 * each.idle_uj / each.idle_ns for each in idle}
    assert watts == pytest.approx({"package-0": 40, "package-0/dram": 3, "package-1": 30, "psys": 100}, rel=0.002)
    assert [each.is_counted for each in idle] == [True, True, True, False]
    assert {each.idle_ns for each in idle} == {round(IDLE_S * 1e9) + MS // 10}


@pytest.mark.parametrize("step_ns", [MS, 20 * MS])
def test_update_interval_of_a_counter_is_measured(step_ns: int, zones: Any) -> None:
    zones.zone("intel-rapl:0", "package-0", 0)
    clock = Clock(zones, {"intel-rapl:0": 50}, step_ns)
    (idle,) = Meter(powercap_counters(zones.root).counters, clock.sleep, clock.now_ns).idle()
    assert idle.update_ns == pytest.approx(step_ns, rel=0.15)


def test_constant_counter_has_no_update_interval(zones: Any) -> None:
    zones.zone("intel-rapl:0", "package-0", 5)
    clock = Clock(zones, {})
    (idle,) = Meter(powercap_counters(zones.root).counters, clock.sleep, clock.now_ns).idle()
    assert idle == Idle("package-0", True, 0, idle.idle_ns, None)
    assert clock.ns < 3e9  # it is not watched for ever


def test_idle_power_is_correct_if_the_counter_wraps_around(zones: Any) -> None:
    zones.zone("intel-rapl:0", "package-0", 1_999_999_000, 2_000_000_000)
    clock = Clock(zones, {"intel-rapl:0": 50})
    (idle,) = Meter(powercap_counters(zones.root).counters, clock.sleep, clock.now_ns).idle()
    assert idle.idle_uj == pytest.approx(50_000_000, rel=0.002)


def found(*domains: str) -> CounterSource:
    def read_uj() -> int:
        raise CounterError("not in this test")

    return CounterSource(
        tuple(Counter(domain, True, None, 9, read_uj) for domain in domains), ", ".join(domains) or "none"
    )


@pytest.mark.parametrize(
    ("device", "processors", "gpus", "read"),
    [
        ("cpu", found("package-0"), found("gpu-0"), ("package-0",)),
        ("cpu", found(), found("gpu-0"), "none"),
        ("cuda", found("package-0"), found("gpu-0", "gpu-1"), ("package-0", "gpu-0", "gpu-1")),
        ("cuda", found(), found("gpu-0"), ("gpu-0",)),
        ("cuda", found("package-0"), found(), "none"),  # most of the work would be missing
    ],
)
def test_counters_are_chosen_by_the_models_device(
    device: str,
    processors: CounterSource,
    gpus: CounterSource,
    read: tuple[str, ...] | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meter, "powercap_counters", lambda: processors)
    monkeypatch.setattr(meter, "nvml_counters", lambda uuids: gpus)
    opened = open_meter(device)
    assert (opened if isinstance(opened, str) else tuple(each.domain for each in opened.counters)) == read
