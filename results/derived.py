"""Records made from stored attempts later on, kept in the spool beside them.

    <spool>/<folder>/<attempt_id>/<digest of what made it>/{files, status.json, DONE}

Complete or absent, as attempts are, and like them the source of truth: the database is filled from here. status.json
has `format`, `attempt_id` and what made the record.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import sqlalchemy as sa

from exitbench.errors import UserError
from exitbench.results.canonical import content_id
from exitbench.results.catalogue import ATTEMPT
from exitbench.results.sealed import DamagedFile, SpoolError, check_sealed, read_json, write_json, write_sealed
from exitbench.results.spool import QUARANTINE
from exitbench.results.trouble import is_trouble

_FORMAT: Final = 1
_DIGITS: Final = 16
_STATUS: Final = "status.json"


@dataclass(frozen=True)
class Derived:
    """A kind of record.

    Attributes:
        folder: Below the spool.
        files: What a record has besides status.json.
        again: What makes a damaged one anew, in words.
    """

    folder: str
    files: tuple[str, ...]
    again: str

    def place(self, spool_root: Path, attempt_id: str, maker: str) -> Path:
        """Return the folder of a record; what made it is named in full, which no folder's name could be."""
        return spool_root / self.folder / attempt_id / _digest(maker)

    def has(self, spool_root: Path, attempt_id: str, maker: str) -> bool:
        """Return whether the spool has a record."""
        return (self.place(spool_root, attempt_id, maker) / "DONE").is_file()

    def record(self, spool_root: Path, maker: str, status: Mapping[str, Any], fill: Callable[[Path], None]) -> None:
        """Write a record; nothing to do if it is there.

        Args:
            spool_root: The spool.
            maker: What made it.
            status: What status.json says besides `format`; has `attempt_id`.
            fill: Writes `files` into an empty folder.

        Raises:
            UserError: The spool cannot be written.
        """

        def fill_all(folder: Path) -> None:
            fill(folder)
            write_json(folder / _STATUS, {"format": _FORMAT, **status})

        write_sealed(self.place(spool_root, status["attempt_id"], maker), fill_all)

    def load(
        self, engine: sa.Engine, spool_root: Path, known: str, add: Callable[[Path, Mapping[str, Any]], None]
    ) -> list[str]:
        """Add every record whose attempt the database has, each whole or not at all.

        Args:
            engine: An open, writable database.
            spool_root: The spool.
            known: SQL of the attempts and makers that the database has.
            add: Adds one, given its folder, checked, and its status.

        Returns:
            What is wrong with others; a damaged one leaves the way of a new one.
        """
        problems = []
        for folder in self._missing(engine, spool_root, known):
            try:
                add(folder, self._status(folder))
            except (duckdb.Error, sa.exc.DBAPIError) as error:
                if is_trouble(error):
                    raise
                problems.append(f"{folder}: does not fit the database: {error}")
            except (UserError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
                problems.append(f"{folder}: {error}{self._aside(spool_root, folder, error)}")
        return problems

    def check(self, spool_root: Path) -> list[str]:
        """Return what is wrong with records, each checked against its digests."""
        problems = []
        for folder in self._all(spool_root):
            try:
                check_sealed(folder, (*self.files, _STATUS))
            except UserError as error:
                problems.append(f"{folder}: {error} The next ingest moves it to the quarantine; {self.again}.")
        return problems

    def _all(self, spool_root: Path) -> list[Path]:
        return sorted((spool_root / self.folder).glob("*/[!.]*"))

    def _missing(self, engine: sa.Engine, spool_root: Path, known: str) -> Iterator[Path]:
        with engine.connect() as connection:
            attempts: Set[str] = set(connection.execute(sa.select(ATTEMPT.c.attempt_id)).scalars())
            there = {(attempt_id, _digest(maker)) for attempt_id, maker in connection.exec_driver_sql(known)}
        for folder in self._all(spool_root):
            if folder.parent.name in attempts and (folder.parent.name, folder.name) not in there:
                yield folder

    def _status(self, folder: Path) -> dict[str, Any]:
        """Return what a record that is what was written says of itself."""
        check_sealed(folder, (*self.files, _STATUS))
        status = read_json(folder / _STATUS)
        if status["format"] > _FORMAT:
            raise SpoolError(f"written by a newer version (format {status['format']}; this one: {_FORMAT}).")
        if status["attempt_id"] != folder.parent.name:
            raise UserError(f"{_STATUS} is of attempt {status['attempt_id']}.")
        return status

    def _aside(self, spool_root: Path, folder: Path, error: Exception) -> str:
        """Move a damaged record away and say so; nothing is wrong with one that cannot be read at the moment."""
        if isinstance(error, SpoolError) and not isinstance(error, DamagedFile):
            return ""
        aside = spool_root / QUARANTINE / self.folder / f"{folder.parent.name}-{folder.name}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        return f" Moved to {folder.rename(aside)}; {self.again}."


def _digest(maker: str) -> str:
    return content_id(maker)[:_DIGITS]
