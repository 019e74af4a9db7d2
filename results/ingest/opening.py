"""Open a snapshot for reading, by loading its rows into a temporary database."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from exitbench.errors import UserError
from exitbench.results import snapshots
from exitbench.results.database.connection import Database, open_database
from exitbench.results.database.differences import fill_differences
from exitbench.results.ingest.snapshot import is_snapshot, load_snapshot

_BUNDLED: Final = Path(snapshots.__file__).parent


def snapshot_names() -> tuple[str, ...]:
    """Return the names of the snapshots that are bundled with the package."""
    return tuple(sorted(folder.name for folder in _BUNDLED.iterdir() if is_snapshot(folder)))


def open_snapshot(snapshot: str) -> Database:
    """Return a temporary database with the rows of a snapshot, open for reading; closing it deletes it.

    Args:
        snapshot: Name of a bundled snapshot, or a folder that `exitbench export` wrote.

    Raises:
        UserError: As for `fill_from_snapshot`.
    """
    folder = TemporaryDirectory(prefix="exitbench-")
    try:
        path = fill_from_snapshot(snapshot, Path(folder.name))
        return replace(open_database(path), folder=folder)
    except BaseException:
        folder.cleanup()
        raise


def fill_from_snapshot(snapshot: str, folder: Path) -> Path:
    """Write a database with the rows of a snapshot into a folder, and return its path.

    Raises:
        UserError: There is no such snapshot, or it cannot be read (`load_snapshot`).
    """
    source = _BUNDLED / snapshot if snapshot in snapshot_names() else Path(snapshot)
    if not is_snapshot(source):
        raise UserError(
            f"{snapshot}: there is no such snapshot. Allowed: {', '.join(snapshot_names())}, or a folder that "
            "`exitbench export` wrote."
        )
    path = folder / "snapshot.duckdb"
    with open_database(path, read_only=False) as database:
        load_snapshot(database.engine, source)
        with database.engine.begin() as connection:
            fill_differences(connection)
    return path
