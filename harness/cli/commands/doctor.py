"""``exitbench doctor``: print installed packages, the machine, and problems that would stop a run."""

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

from exitbench.errors import UserError, one_line
from exitbench.harness.engine.model.available import available_bytes
from exitbench.harness.running.energy.meter import energy_summary
from exitbench.harness.running.environment import PROJECT, hardware
from exitbench.harness.service.folders import Runs
from exitbench.results.database.access import DatabaseInUse
from exitbench.results.database.connection import open_database
from exitbench.terminal import number_of, print_escaped, visible

GIB: Final = 1 << 30
LEAST_DISK_BYTES: Final = GIB // 4
"""Minimum free disk space, in bytes; the built-in suite writes less."""

_SHOWN_PACKAGES: Final = ("torch", "transformers", "duckdb", "pyarrow", "lm-eval")
"""Packages whose versions are printed."""
_OFFLINE: Final = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
_WAIT_S: Final = 1.0


@dataclass(frozen=True)
class Finding:
    """Result of one check, which is one line of the output of `exitbench doctor`.

    Attributes:
        about: Subject of the check.
        result: Result of the check, as text.
        stops: Whether the problem would stop a run.
    """

    about: str
    result: str
    stops: bool = False


def doctor(arguments: Namespace) -> int:
    """Check packages, machine, network, folder, disk and database; return 1 if anything would stop a run."""
    runs = Runs(arguments.runs)
    findings = [*_packages(), *_machine(), _network(), _folder(runs.root), _disk(runs.root), _database(runs.database)]
    width = max(len(finding.about) for finding in findings)
    lines = [f"{'STOP' if check.stops else 'ok':4}  {check.about:{width}}  {check.result}" for check in findings]
    stopping = sum(check.stops for check in findings)
    lines.append(f"{stopping} of these would stop a run." if stopping else "Nothing here would stop a run.")
    print_escaped("\n".join(lines), sys.stdout)
    return 1 if stopping else 0


def _packages() -> Iterator[Finding]:
    yield Finding("exitbench", f"{version(PROJECT)}, Python {sys.version.split()[0]}")
    versions = []
    for requirement in map(Requirement, requires(PROJECT) or []):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            yield Finding(requirement.name, f"is not installed; needed: {requirement}", stops=True)
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            yield Finding(requirement.name, f"{installed} is installed; needed: {requirement}", stops=True)
        if requirement.name in _SHOWN_PACKAGES:
            versions.append(f"{requirement.name} {installed}")
    yield Finding("packages", ", ".join(versions))


def _machine() -> Iterator[Finding]:
    specs = hardware(threads=0)
    load = os.getloadavg()[0]
    busy = f", load {load:.1f}: times are of a busy machine" if load > specs["cores"] / 2 else ""
    yield Finding("cores", f"{specs['cores']} of {specs['cpu']}{busy}")
    available = available_bytes("cpu")
    free = "unknown" if available is None else f"{available / GIB:.1f} GiB"
    yield Finding("memory", f"{specs['ram_bytes'] / GIB:.1f} GiB, {free} free")
    yield Finding("energy", visible(energy_summary()))
    yield Finding("GPU", f"{specs['gpu']}, driver {specs['driver']}, CUDA {specs['cuda']}" if specs["gpu"] else "none")


def _network() -> Finding:
    if offline := [name for name in _OFFLINE if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")]:
        return Finding("network", f"offline by {' and '.join(offline)}: models and data come from files and caches")
    return Finding("network", "models and data of the hub are fetched with --hub only")


def _folder(root: Path) -> Finding:
    existing = _existing(root)
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Finding("folder", visible(f"{existing} cannot be written; --runs names another"), stops=True)
    return Finding(
        "folder", visible(f"{root} can be written" if existing == root.absolute() else f"{root} can be made")
    )


def _existing(path: Path) -> Path:
    """Return the path itself or, if it does not exist, its closest existing parent."""
    return next(candidate for candidate in (path.absolute(), *path.absolute().parents) if candidate.exists())


def _disk(root: Path) -> Finding:
    existing = _existing(root)
    free = shutil.disk_usage(existing).free
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
        return Finding("database", visible(one_line(error)), stops=True)
    last = f", the last of {row['last']:%Y-%m-%d %H:%M} UTC" if row["last"] else ""
    return Finding(
        "database", f"{number_of(row['runs'], 'run')}{last}; {number_of(failed['cells'], 'cell')} did not succeed"
    )
