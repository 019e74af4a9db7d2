"""Helpers shared by several commands: run options, path of the database, formatted times and sizes."""

from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from exitbench.errors import UserError
from exitbench.harness.service.folders import existing_runs
from exitbench.harness.service.options import RunOptions


def run_options(arguments: Namespace) -> RunOptions:
    """Return the options of a run from parsed arguments; options that the command does not have keep their defaults."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in vars(arguments).items()
    }
    return RunOptions(**{field.name: values[field.name] for field in fields(RunOptions) if field.name in values})


def existing_database(arguments: Namespace) -> Path:
    """Return the path given by ``--database``, or else the database in the folder of ``--runs``.

    With ``--snapshot``, return the path of a temporary database with the snapshot's rows. It is deleted when the
    command ends, by the exit stack ``arguments.at_end``.

    Raises:
        UserError: No database is named, and the folder of ``--runs`` does not exist; or the snapshot cannot be read.
    """
    named: Path | None = arguments.database
    if (snapshot := vars(arguments).get("snapshot")) is not None:
        if named is not None:
            raise UserError("--snapshot: is read in place of a database; leave out --database.")
        from exitbench.results.ingest.opening import fill_from_snapshot

        folder = arguments.at_end.enter_context(TemporaryDirectory(prefix="exitbench-"))
        return fill_from_snapshot(snapshot, Path(folder))
    return named or existing_runs(arguments.runs).database


def duration(seconds: float) -> str:
    """Return a duration as text with at most two units: ``45 s``, ``12 min 5 s``, ``3 h 20 min``, ``2 d 4 h``."""
    total_s = round(seconds)
    for unit, size, lower_unit, smaller in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if total_s >= size:
            return f"{total_s // size} {unit} {total_s % size // smaller} {lower_unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{total_s} s"


def data_size(size_bytes: float) -> str:
    """Return a number of bytes as text, with units in powers of 1000: ``1.5 GB``."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= size:
            return f"{size_bytes / size:.3g} {unit}"
    return f"{size_bytes:.0f} bytes"
