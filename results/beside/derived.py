"""Derived records: made from stored attempts later on, kept in the spool beside them.

    <spool>/<folder>/<attempt_id>/<digest of what made it>/{files, status.json, DONE}

Complete or absent, as attempts are, and like them the source of truth: the database is filled from here. status.json
has `format`, `attempt_id` and what made the record.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import sqlalchemy as sa

from exitbench.errors import UserError
from exitbench.results.database.catalogue import ATTEMPT
from exitbench.results.files.atomic import (
    DamagedFile,
    SpoolError,
    check_digested_folder,
    read_json,
    write_digested_folder,
    write_json,
)
from exitbench.results.files.duckdb_files import is_trouble
from exitbench.results.files.formats import content_id
from exitbench.results.files.values import COUNT, TEXT, TIME, first_fault
from exitbench.results.spool.attempts import QUARANTINE
from exitbench.results.spool.records import RecordKind, records

_FORMAT: Final = 1
_DIGITS: Final = 16
_STATUS: Final = "status.json"
_KEYS: Final = {"format": COUNT, "attempt_id": TEXT, "scored_at": replace(TIME, needed=False)}


@dataclass(frozen=True)
class Derived:
    """A kind of record.

    Attributes:
        kind: Where they lie.
        maker: Key of status.json that says what made a record.
        files: What a record has besides status.json.
        again: What makes a damaged one anew, in words.
    """

    kind: RecordKind
    maker: str
    files: tuple[str, ...]
    again: str

    @property
    def folder(self) -> str:
        """Their folder below the spool."""
        return self.kind.folder

    @property
    def all_files(self) -> tuple[str, ...]:
        """What a record's seal lists."""
        return (*self.files, _STATUS)

    def place(self, spool_root: Path, attempt_id: str, maker: str) -> Path:
        """Return the folder of a record; what made it is named in full, which no folder's name could be."""
        return spool_root / self.kind.folder / attempt_id / _digest(maker)

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

        write_digested_folder(self.place(spool_root, status["attempt_id"], maker), fill_all)

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
        found, problems = records(spool_root, self.kind)
        for folder in self._missing(engine, found, known):
            try:
                add(folder, self.status(folder))
            except (duckdb.Error, sa.exc.DBAPIError) as error:
                if is_trouble(error):
                    raise
                problems.append(f"{folder}: does not fit the database: {error}")
            except (UserError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
                problems.append(f"{folder}: {error}{self._aside(spool_root, folder, error)}")
        return problems

    def check(self, spool_root: Path) -> list[str]:
        """Return what is wrong with records, each checked against its digests."""
        found, problems = records(spool_root, self.kind)
        for folder in found:
            try:
                self.status(folder)
            except DamagedFile as error:
                problems.append(f"{folder}: {error} The next ingest moves it to the quarantine; {self.again}.")
            except SpoolError as error:
                problems.append(f"{folder}: {error}")
        return problems

    def _missing(self, engine: sa.Engine, found: Sequence[Path], known: str) -> Iterator[Path]:
        with engine.connect() as connection:
            attempts: Set[str] = set(connection.execute(sa.select(ATTEMPT.c.attempt_id)).scalars())
            there = {(attempt_id, _digest(maker)) for attempt_id, maker in connection.exec_driver_sql(known)}
        for folder in found:
            if folder.parent.name in attempts and (folder.parent.name, folder.name) not in there:
                yield folder

    def status(self, folder: Path) -> dict[str, Any]:
        """Return what a record that is what was written says of itself.

        Raises:
            DamagedFile: A file is missing or was changed, or the record is not the one that its folder names.
            SpoolError: A newer version wrote it, or a file cannot be read.
        """
        check_digested_folder(folder, self.all_files)
        where = folder / _STATUS
        status = read_json(where)
        if fault := first_fault(status, {"": {**_KEYS, self.maker: TEXT}}):
            raise DamagedFile(f"{where}: {fault}")
        if status["format"] > _FORMAT:
            raise SpoolError(f"{where}: written by a newer version (format {status['format']}; this one: {_FORMAT}).")
        if status["attempt_id"] != folder.parent.name:
            raise DamagedFile(f"{where}: is of attempt {status['attempt_id']}, not of its folder's.")
        if _digest(status[self.maker]) != folder.name:
            raise DamagedFile(f"{where}: its folder's name is not the digest of its {self.maker}.")
        return status

    def _aside(self, spool_root: Path, folder: Path, error: Exception) -> str:
        """Move a damaged record away and say so; nothing is wrong with one that cannot be read at the moment."""
        if isinstance(error, SpoolError) and not isinstance(error, DamagedFile):
            return ""
        aside = spool_root / QUARANTINE / self.kind.folder / f"{folder.parent.name}-{folder.name}"
        aside.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        return f" Moved to {folder.rename(aside)}; {self.again}."


def _digest(maker: str) -> str:
    return content_id(maker)[:_DIGITS]
