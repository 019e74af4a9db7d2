"""RAPL energy counters as Linux exposes them below /sys/class/powercap: Intel processors, and AMD since Zen.

A zone is a folder with `name`, `energy_uj` and `max_energy_range_uj`. Packages, and memory outside of packages (dram),
are summed. The zone psys covers the whole board, which includes both, and is stored separately. Cores and uncore are
parts of a package, and intel-rapl-mmio repeats the same packages, so these zones are not read.
"""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Final

from exitbench.harness.running.energy.counters import Counter, CounterError, CounterSource
from exitbench.results.files.regular import read_regular
from exitbench.results.files.values import INT64

ROOT: Final = Path("/sys/class/powercap")
_ZONE: Final = re.compile(r"intel-rapl:([0-9]{1,3})(?::[0-9]{1,3})?")
_PACKAGE: Final = re.compile(r"package-[0-9]{1,3}(?:-die-[0-9]{1,3})?")
_INTEGER: Final = re.compile(r"[0-9]{1,19}")
_MOST_BYTES: Final = 64
_MOST_ZONES: Final = 256
_MOST_WATTS: Final = 1_000
"""Upper bound of the plausible power of a package or its memory, in watts."""


def powercap_counters(root: Path = ROOT) -> CounterSource:
    """Return the energy counters of all processor packages, their memory and the board.

    Args:
        root: Folder of the zones; tests pass a temporary folder.
    """
    try:
        with os.scandir(root) as entries:
            zones = sorted(entry.name for entry in entries if _ZONE.fullmatch(entry.name))[:_MOST_ZONES]
    except OSError as error:
        return CounterSource((), f"no counters of the processor: {root}: {error.strerror}")
    if not zones:
        return CounterSource((), f"no counters of the processor: {root} has no intel-rapl zone")
    try:
        counters = [counter for zone in zones if (counter := _counter(root, zone)) is not None]
        for counter in counters:
            counter.read_uj()
        if len({counter.domain for counter in counters}) < len(counters):
            raise CounterError(f"two zones of {root} have one name")
    except CounterError as error:
        return CounterSource((), f"counters of the processor are not readable: {error}")
    if not any(counter.is_counted for counter in counters):
        return CounterSource((), f"no counters of the processor: {root} has no package")
    return CounterSource(tuple(counters), ", ".join(counter.domain for counter in counters))


def _counter(root: Path, zone: str) -> Counter | None:
    """Return the counter of the RAPL zone in the folder `root / zone`.

    None if the zone is part of another zone that is read, or has an unknown name.
    """
    name = _text(root / zone / "name")
    if name == "dram":
        package = _text(root / zone.rpartition(":")[0] / "name")
        name = f"{package}/dram" if _PACKAGE.fullmatch(package) else name
    elif name != "psys" and not _PACKAGE.fullmatch(name):
        return None
    range_uj = _microjoules(root / zone / "max_energy_range_uj")
    return Counter(name, name != "psys", range_uj, _MOST_WATTS, partial(_microjoules, root / zone / "energy_uj"))


def _microjoules(path: Path) -> int:
    text = _text(path)
    if not _INTEGER.fullmatch(text) or int(text) > INT64:
        raise CounterError(f"{path} says {text!a}, not a number of microjoules")
    return int(text)


def _text(path: Path) -> str:
    try:
        return read_regular(path, _MOST_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise CounterError(f"{path}: {error.strerror}") from error
