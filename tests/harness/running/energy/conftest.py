"""Fixtures of a folder like /sys/class/powercap, whose counters are advanced by tests."""

from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Powercap:
    """Powercap zones below a temporary folder."""

    root: Path

    def zone(self, zone: str, name: str, energy_uj: int | str, range_uj: int | str = 262_143_328_850) -> Path:
        """Create a zone, or set its counter."""
        folder = self.root / zone
        folder.mkdir(parents=True, exist_ok=True)
        for file, value in (("name", name), ("energy_uj", energy_uj), ("max_energy_range_uj", range_uj)):
            (folder / file).write_text(f"{value}\n")
        return folder

    def add(self, zone: str, uj: int) -> None:
        """Advance a counter, which wraps at its range."""
        file = self.root / zone / "energy_uj"
        range_uj = int((self.root / zone / "max_energy_range_uj").read_text())
        file.write_text(f"{(int(file.read_text()) + uj) % range_uj}\n")


@pytest.fixture
def zones(tmp_path: Path) -> Powercap:
    """Return a powercap folder without zones."""
    (tmp_path / "powercap").mkdir()
    return Powercap(tmp_path / "powercap")


@pytest.fixture
def server(zones: Powercap) -> Powercap:
    """Return a powercap folder of a machine with two packages, one of which also has a zone for its memory (dram).

    Other zones must not be counted with them: the cores of a package, the board, and a package a second time.
    """
    zones.zone("intel-rapl:0", "package-0", 1_000)
    zones.zone("intel-rapl:0:0", "core", 700)
    zones.zone("intel-rapl:0:1", "dram", 50, 65_712_999_613)
    zones.zone("intel-rapl:1", "package-1", 2_000)
    zones.zone("intel-rapl:2", "psys", 9_000)
    zones.zone("intel-rapl-mmio:0", "package-0", 1_000)
    (zones.root / "intel-rapl").mkdir()  # the driver's folder
    return zones
