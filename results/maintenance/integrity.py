"""Integrity check of spool and database: that files and rows are unchanged and agree."""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from exitbench.errors import UserError
from exitbench.results.database.catalogue import ATTEMPT, ATTEMPT_FILE
from exitbench.results.database.connection import DamagedDatabase, Database, open_database
from exitbench.results.database.tables import quoted
from exitbench.results.files.atomic import DamagedFile, SpoolError
from exitbench.results.ingest.manifest import Manifest
from exitbench.results.ingest.snapshot import imported_attempts
from exitbench.results.side_records.derived import RESCORES, TAGS, check_records
from exitbench.results.side_records.trainings import check_trainings
from exitbench.results.side_records.vocabularies import check_vocabularies
from exitbench.results.spool.attempts import (
    QUARANTINE,
    Attempt,
    AttemptRecord,
    freed_tables,
    links_in,
    read_attempt,
    scan_spool,
)
from exitbench.results.spool.records import IMPORT, link_message
from exitbench.results.tables import FILES, REFERENCES, TABLES
from exitbench.terminal import number_of

_INDEX_ROWS: Final = 1_000
"""DuckDB uses an index for up to 2,048 rows, and scans the table for more."""
_REBUILD: Final = "`exitbench db rebuild` rebuilds the database."


@dataclass(frozen=True)
class CheckReport:
    """Result of an integrity check of spool and database.

    Attributes:
        attempts: Number of finished attempts in the spool.
        files: Number of files whose digest was computed.
        rows: Number of rows of the database that were read.
        problems: Messages that say what is wrong, where, and what to do.
    """

    attempts: int
    files: int
    rows: int
    problems: tuple[str, ...]


@dataclass
class _DatabaseContents:
    """Contents of the database by attempt id, for comparison with the spool.

    Attributes:
        done_sha256: SHA-256 of the attempt's DONE file.
        files: SHA-256 of the attempt's other files, by name.
        rows: Number of the attempt's rows, by table.
        total: Number of rows of all tables together.
    """

    done_sha256: dict[str, str] = field(default_factory=dict)
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: dict[str, dict[str, int]] = field(default_factory=dict)
    total: int = 0


def check(spool_root: Path, path: Path, progress: Callable[[int, int], None] | None = None) -> CheckReport:
    """Compare every file of the spool with its digest, and the rows of every attempt in the database with its files.

    `path` is the database. `progress` is called with (attempts checked, attempts in the spool).

    Raises:
        UserError: There is no database, or it is in use.
    """
    attempts = [attempt for attempt in scan_spool(spool_root) if attempt.finished]
    stored = _DatabaseContents()
    problems: list[str] = []
    try:
        with open_database(path) as database:
            problems += _rows_without_owner(database)
            problems += _rows_twice(database)
            stored = _read_all(database)
    except DamagedDatabase as error:
        problems.append(str(error))
    n_files = 0
    damaged = bool(problems) and not stored.done_sha256
    for n_checked, attempt in enumerate(attempts, start=1):
        try:
            record = read_attempt(attempt.path)
        except DamagedFile as error:
            problems.append(f"{error} The next run moves it to the quarantine if the database does not have it.")
        except SpoolError as error:
            problems.append(f"{error} No database takes it; move {attempt.path} away, and its cell is run again.")
        else:
            n_files += len(record.digests) - len(record.freed)
            if not damaged:
                problems += _differences(record, stored)
        if progress:
            progress(n_checked, len(attempts))
    if not damaged:
        here = {attempt.attempt_id for attempt in attempts} | imported_attempts(spool_root)
        problems += _attempts_missing_from_spool(stored.done_sha256.keys() - here, spool_root, path)
    problems += [*RESCORES.check(spool_root), *TAGS.check(spool_root)]
    problems += [
        *check_vocabularies(spool_root),
        *check_trainings(spool_root),
        *check_records(spool_root, IMPORT, Manifest.read),
    ]
    problems += [link_message(link) for link in links_in(spool_root)]
    return CheckReport(len(attempts), n_files, stored.total, tuple(problems))


def counted_rows(record: AttemptRecord) -> dict[str, int]:
    """Return the number of rows that the database should have of an attempt, by table; none for a failed attempt.

    Raises:
        SpoolError: A file is not Parquet.
    """
    if record.status["status"] != "ok":
        return {}
    counts = {FILES[table].name: rows for table, rows in record.freed.items()}
    for table in record.tables:
        path = record.attempt.path / f"{table}.parquet"
        try:
            counts[FILES[table].name] = pq.read_metadata(path).num_rows
        except (OSError, pa.ArrowException) as error:
            raise SpoolError(f"{path}: cannot be read as Parquet: {error}") from error
    return {table: rows for table, rows in counts.items() if rows}


def stored_rows(database: Database) -> dict[str, dict[str, int]]:
    """Return the number of rows in the database by attempt and table, without metrics that were rescored later."""
    counts: dict[str, dict[str, int]] = {}
    for table in (filled.name for filled in FILES.values()):
        condition = "JOIN attempt USING (attempt_id) WHERE scored_at = ended_at" if table == "metric" else ""
        query = f"SELECT attempt_id, count(*) AS n FROM {table} {condition} GROUP BY attempt_id"
        for row in database.query(query).to_pylist():
            counts.setdefault(row["attempt_id"], {})[table] = row["n"]
    return counts


def _read_all(database: Database) -> _DatabaseContents:
    """Read every value of the database, since damage is only noticed when it is read; return digests and row counts."""
    stored = _DatabaseContents(rows=stored_rows(database))
    for table in sorted(TABLES):
        row = database.query(f"SELECT count(*) AS n, bit_xor(hash(t)) FROM {quoted(table)} AS t").to_pylist()[0]
        stored.total += row["n"]
    _read_indexes(database)
    with database.engine.connect() as connection:
        digests = connection.execute(sa.select(ATTEMPT.c.attempt_id, ATTEMPT.c.spool_sha256))
        stored.done_sha256.update({attempt_id: digest for attempt_id, digest in digests})
        for attempt_id, name, digest in connection.execute(sa.select(ATTEMPT_FILE)):
            stored.files.setdefault(attempt_id, {})[name] = digest
    return stored


def _read_indexes(database: Database) -> None:
    """Look up rows by primary key, so that DuckDB reports damage in the index, which a table scan does not read.

    Indexes over several columns are left out: only writers use them, and DuckDB then reports damage.
    """
    keys = "SELECT table_name AS t, constraint_column_names AS k FROM duckdb_constraints() WHERE constraint_type = $1"
    for row in database.query(keys, ["PRIMARY KEY"]).to_pylist():
        if len(row["k"]) > 1:
            continue
        table, key = quoted(row["t"]), quoted(row["k"][0])
        numbered = f"SELECT {key} AS k, row_number() OVER (ORDER BY {key}) AS n FROM {table}"
        steps = database.query(f"SELECT k FROM ({numbered}) WHERE n % {_INDEX_ROWS} = 1 ORDER BY n")["k"].to_pylist()
        for low, high in pairwise([*steps, None]):
            # Not `>=`: DuckDB does not evaluate a condition that is true for every row.
            database.query(f"SELECT count(*) FROM {table} WHERE {key} = ?", [low])
            upper, bounds = ("", [low]) if high is None else (f"AND {key} < ?", [low, high])
            database.query(f"SELECT count(*) FROM {table} WHERE {key} > ? {upper}", bounds)


def _differences(record: AttemptRecord, stored: _DatabaseContents) -> Iterator[str]:
    """Yield a message for each difference between an attempt's files and its rows in the database."""
    attempt_id, path = record.attempt.attempt_id, record.attempt.path
    if attempt_id not in stored.done_sha256:
        yield f"{path}: is not in the database; the next run adds it."
        return
    if stored.done_sha256[attempt_id] != record.done_sha256:
        yield f"{path / 'DONE'}: is not what the database was filled from. {_REBUILD}"
    stored_digests = stored.files.get(attempt_id, {})
    if stored_digests != record.digests:
        names = sorted(
            name
            for name in stored_digests.keys() | record.digests
            if stored_digests.get(name) != record.digests.get(name)
        )
        yield f"{path}: attempt_file has other digests of {', '.join(names)}. {_REBUILD}"
    try:
        expected = counted_rows(record)
    except SpoolError as error:
        yield str(error)
        return
    n_rows = stored.rows.get(attempt_id, {})
    for table in sorted(expected.keys() | n_rows):
        if expected.get(table, 0) != n_rows.get(table, 0):
            yield (
                f"{path}: {table} has {number_of(n_rows.get(table, 0), 'row')} of it, its file "
                f"{expected.get(table, 0)}. {_REBUILD}"
            )


def _rows_without_owner(database: Database) -> Iterator[str]:
    for table, column, owner in REFERENCES:
        query = f"SELECT min({column}) AS id, count(*) AS n FROM {quoted(table)} ANTI JOIN {owner} USING ({column})"
        row = database.query(query).to_pylist()[0]
        if row["n"]:
            rows = number_of(row["n"], "row")
            yield f"{table}: {rows} of a {column} that {owner} does not have, such as {row['id']}. {_REBUILD}"


def _rows_twice(database: Database) -> Iterator[str]:
    for table in (table_ for table_ in TABLES.values() if not table_.indexed):
        repeated = f"SELECT {', '.join(table.key)} FROM {table.name} GROUP BY ALL HAVING count(*) > 1"
        rows = database.query(f"SELECT *, count(*) OVER () AS n FROM ({repeated}) LIMIT 1").to_pylist()
        if rows:
            n = rows[0].pop("n")
            which = ", ".join(f"{name} {value}" for name, value in rows[0].items())
            yield f"{table.name}: {number_of(n, 'row')} more than once, such as {which}. {_REBUILD}"


def _attempts_missing_from_spool(attempt_ids: Set[str], spool_root: Path, path: Path) -> Iterator[str]:
    if attempt_ids:
        moved = {folder.name for folder in (spool_root / QUARANTINE).glob("*/*")} & attempt_ids
        quarantined = f" ({len(moved)} of them damaged, in {spool_root / QUARANTINE})" if moved else ""
        yield (
            f"{path}: has {number_of(len(attempt_ids), 'attempt')} that the spool lacks{quarantined}, such as "
            f"{min(attempt_ids)}: a rebuilt database would not have them. `exitbench export` saves them, `exitbench db "
            "rebuild --force` does without them."
        )


def require_whole_spool(spool_root: Path, path: Path) -> None:
    """Check that the spool still has the traces of its attempts, so that a database rebuilt from it has their rows.

    Raises:
        UserError: `exitbench gc` removed the traces of an attempt.
    """
    if freed := sum(map(_is_freed, scan_spool(spool_root))):
        raise UserError(
            f"{spool_root}: `exitbench gc` removed the traces of {number_of(freed, 'attempt')}, since {path} "
            "has them; a rebuilt database would not have them. Add --force to discard them."
        )


def _is_freed(attempt: Attempt) -> bool:
    try:
        return bool(freed_tables(attempt.path))
    except SpoolError:
        return False  # the rebuild reports it, and keeps the old database if that has the attempt
