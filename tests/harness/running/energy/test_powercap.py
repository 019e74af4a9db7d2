"""RAPL's counters are found among powercap zones. If one is malformed or not a regular file, none is used."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exitbench.harness.running.energy import powercap
from exitbench.harness.running.energy.counters import Counter, CounterError, CounterSource
from exitbench.harness.running.energy.powercap import powercap_counters


def test_package_and_dram_zones_are_counted_and_psys_is_not(server: Any) -> None:
    result = powercap_counters(server.root)
    assert {counter.domain: (counter.is_counted, counter.read_uj()) for counter in result.counters} == {
        "package-0": (True, 1_000),
        "package-0/dram": (True, 50),
        "package-1": (True, 2_000),
        "psys": (False, 9_000),
    }
    assert result.summary == "package-0, package-0/dram, package-1, psys"
    assert {counter.domain: counter.range_uj for counter in result.counters}["package-0/dram"] == 65_712_999_613


def test_counter_is_read_again_each_time(server: Any) -> None:
    (package, *_) = powercap_counters(server.root).counters
    server.add("intel-rapl:0", 234)
    assert package.read_uj() == 1_234


def _pipe(server: Any) -> None:
    (server.root / "intel-rapl:0" / "energy_uj").unlink()
    os.mkfifo(server.root / "intel-rapl:0" / "energy_uj")


def _link(server: Any) -> None:
    elsewhere = server.root.parent / "elsewhere"
    elsewhere.write_text("5\n")
    (server.root / "intel-rapl:0" / "energy_uj").unlink()
    (server.root / "intel-rapl:0" / "energy_uj").symlink_to(elsewhere)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda server: server.zone("intel-rapl:0", "package-0", "lots"), "energy_uj says 'lots', not a number"),
        (lambda server: server.zone("intel-rapl:0", "package-0", "-5"), "says '-5', not a number"),
        (lambda server: server.zone("intel-rapl:0", "package-0", 2**63), f"says '{2**63}', not a number"),
        (lambda server: server.zone("intel-rapl:0", "package-0", "7" * 65), "has more than 64 bytes"),
        (lambda server: server.zone("intel-rapl:1", "package-1", 5, "\x1b[31m"), r"says '\\x1b\[31m', not a number"),
        (lambda server: server.zone("intel-rapl:1", "package-0", 5), "two zones of .* have one name"),
        (lambda server: (server.root / "intel-rapl:0:1" / "energy_uj").unlink(), "No such file"),
        (_pipe, "is a link, or something else than a regular file"),
        (_link, "is a link, or something else than a regular file"),
    ],
)
def test_one_malformed_zone_disables_all_counters(change: Callable[[Any], object], says: str, server: Any) -> None:
    change(server)
    result = powercap_counters(server.root)
    assert result.counters == ()
    assert re.match(f"counters of the processor are not readable: .*{says}", result.summary)


def test_counters_readable_only_by_root_are_reported(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, limit: int) -> bytes:
        if path.name == "energy_uj":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return path.read_bytes()

    monkeypatch.setattr(powercap, "read_regular", refused)
    result = powercap.powercap_counters(server.root)
    path = server.root / "intel-rapl:0" / "energy_uj"
    assert result == CounterSource((), f"counters of the processor are not readable: {path}: Permission denied")


def test_machine_without_counters_is_reported(tmp_path: Path, zones: Any) -> None:
    missing = tmp_path / "missing"
    told = "no counters of the processor: "
    assert powercap_counters(missing) == CounterSource((), f"{told}{missing}: No such file or directory")
    (zones.root / "intel-rapl").mkdir()
    assert powercap_counters(zones.root) == CounterSource((), f"{told}{zones.root} has no intel-rapl zone")
    zones.zone("intel-rapl:0", "psys", 5)
    assert powercap_counters(zones.root) == CounterSource((), f"{told}{zones.root} has no package")


def test_reading_a_vanished_zone_raises_a_counter_error(server: Any) -> None:
    (package, *_) = powercap_counters(server.root).counters
    (server.root / "intel-rapl:0" / "energy_uj").unlink()
    with pytest.raises(CounterError, match="intel-rapl:0/energy_uj: No such file"):
        package.read_uj()


def counter(range_uj: int | None = 10_000_000) -> Counter:
    return Counter("package-0", True, range_uj, 1_000, lambda: 0)


def test_counter_wraparound_is_corrected() -> None:
    assert counter().spent_uj(400, 1_000, 1_000_000) == 600
    assert counter().spent_uj(9_999_000, 500, 1_000_000) == 1_500


@pytest.mark.parametrize(
    ("before", "after", "wall_ns", "range_uj"),
    [
        (0, 5, 10_000_000, 10_000_000),  # at 1,000 W it comes round in a hundredth of a second
        (1_000, 500, 1_000_000, None),  # set back
        (0, 1_002_000_001, 1_000_000, 10**12),  # more than 1,000 W for a second and a thousandth
        (1_000, 500, 1_000_000, 10**12),  # set back: as if nearly all of its range had been spent
    ],
)
def test_implausible_energy_raises_a_counter_error(before: int, after: int, wall_ns: int, range_uj: int | None) -> None:
    with pytest.raises(CounterError, match="package-0"):
        counter(range_uj).spent_uj(before, after, wall_ns)
