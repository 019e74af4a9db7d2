"""``exitbench doctor``: what is installed, what the machine has, and what would stop a run here."""

import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from exitbench.errors import UserError, told
from exitbench.harness.running.energy.meter import energy_told
from exitbench.harness.running.environment import PROJECT, hardware
from exitbench.harness.service.folders import Runs
from exitbench.results.database.access import DatabaseInUse
from exitbench.results.database.connection import open_database
from exitbench.terminal import number_of, tell, visible

GIB: Final = 1 << 30
LEAST_DISK_BYTES: Final = GIB // 4
"""The built-in suite writes less than this; with less there is no room for a suite of one's own either."""

_TOLD: Final = ("torch", "transformers", "duckdb", "pyarrow", "lm-eval")
"""Packages whose versions people are asked for."""
_OFFLINE: Final = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
_WAIT_S: Final = 1.0


@dataclass(frozen=True)
class Finding:
    """One line.

    Attributes:
        about: What was looked at.
        told: What was found.
        stops: Whether it would stop a run.
    """

    about: str
    told: str
    stops: bool = False


def doctor(arguments: Namespace) -> int:
    """Print what is found; returns 1 if something would stop a run."""
    runs = Runs(arguments.runs)
    findings = [*_packages(), *_machine(), _network(), _folder(runs.root), _disk(runs.root), _database(runs.database)]
    width = max(len(finding.about) for finding in findings)
    lines = [f"{'STOP' if found.stops else 'ok':4}  {found.about:{width}}  {found.told}" for found in findings]
    stopping = sum(found.stops for found in findings)
    lines.append(f"{stopping} of these would stop a run." if stopping else "Nothing here would stop a run.")
    tell("\n".join(lines), sys.stdout)
    return 1 if stopping else 0


def _packages() -> Iterator[Finding]:
    yield Finding("exitbench", f"{version(PROJECT)}, Python {sys.version.split()[0]}")
    shown = []
    for requirement in map(Requirement, requires(PROJECT) or []):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            yield Finding(requirement.name, f"is not installed; needed: {requirement}", stops=True)
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            yield Finding(requirement.name, f"{found} is installed; needed: {requirement}", stops=True)
        if requirement.name in _TOLD:
            shown.append(f"{requirement.name} {found}")
    yield Finding("packages", ", ".join(shown))


def _machine() -> Iterator[Finding]:
    found = hardware(threads=0)
    load = os.getloadavg()[0]
    busy = f", load {load:.1f}: times are of a busy machine" if load > found["cores"] / 2 else ""
    yield Finding("cores", f"{found['cores']} of {found['cpu']}{busy}")
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / GIB
    yield Finding("memory", f"{found['ram_bytes'] / GIB:.1f} GiB, {available:.1f} GiB free")
    yield Finding("energy", visible(energy_told()))
    yield Finding("GPU", f"{found['gpu']}, driver {found['driver']}, CUDA {found['cuda']}" if found["gpu"] else "none")


def _network() -> Finding:
    if offline := [name for name in _OFFLINE if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")]:
        return Finding("network", f"offline by {' and '.join(offline)}: models and data come from files and caches")
    return Finding("network", "models and data of the hub are fetched with --hub only")


def _folder(root: Path) -> Finding:
    there = _existing(root)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Finding("folder", visible(f"{there} cannot be written; --runs names another"), stops=True)
    return Finding("folder", visible(f"{root} can be written" if there == root.absolute() else f"{root} can be made"))


def _existing(path: Path) -> Path:
    """Return what there is of a path, from its beginning."""
    return next(there for there in (path.absolute(), *path.absolute().parents) if there.exists())


def _disk(root: Path) -> Finding:
    there = _existing(root)
    free = shutil.disk_usage(there).free
    return Finding("disk", f"{free / GIB:.1f} GiB free", stops=free < LEAST_DISK_BYTES)


def _database(path: Path) -> Finding:
    if not path.exists():
        return Finding("database", visible(f"none at {path} yet"))
    try:
        with open_database(path, wait_s=_WAIT_S) as database:
            (row,) = database.query("SELECT count(*) AS runs, max(started_at) AS last FROM runs").to_pylist()
            (failed,) = database.query("SELECT count(*) AS cells FROM failures").to_pylist()
    except DatabaseInUse as error:
        return Finding("database", f"in use by {error.who}: a run waits for it")
    except UserError as error:
        return Finding("database", visible(told(error)), stops=True)
    last = f", the last of {row['last']:%Y-%m-%d %H:%M} UTC" if row["last"] else ""
    return Finding(
        "database", f"{number_of(row['runs'], 'run')}{last}; {number_of(failed['cells'], 'cell')} did not succeed"
    )
