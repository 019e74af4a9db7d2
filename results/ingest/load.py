"""Load the spool's attempts into the database: JSON files through SQLAlchemy, Parquet files with DuckDB's reader."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import duckdb
import sqlalchemy as sa

from exitbench.errors import UserError
from exitbench.results.database.catalogue import ATTEMPT
from exitbench.results.database.differences import fill_differences
from exitbench.results.files.arrow import driver_connection, parquet_path
from exitbench.results.files.atomic import DamagedFile, SpoolError
from exitbench.results.files.bounded import check_table
from exitbench.results.files.duckdb_files import driver_error, is_damage, is_system_error
from exitbench.results.ingest.catalogue_rows import insert_catalogue
from exitbench.results.ingest.snapshot import load_imports
from exitbench.results.side_records.derived import load_rescores, load_tags
from exitbench.results.side_records.trainings import load_trainings
from exitbench.results.side_records.vocabularies import load_vocabularies
from exitbench.results.spool.attempts import (
    Attempt,
    AttemptRecord,
    links_in,
    quarantine,
    read_attempt,
    scan_spool,
)
from exitbench.results.spool.records import link_message
from exitbench.results.spool.schema import TABLES
from exitbench.results.tables import FILES

_GROUP_ATTEMPTS: Final = 100
_GROUP_BYTES: Final = 32_000_000
"""Maximum number of attempts, and of bytes, per transaction: a commit costs as much as the rows of a small attempt.

A process that waits for the database waits for one group, or for one larger attempt: an attempt becomes visible as a
whole."""

_READERS: Final = 2


@dataclass(frozen=True)
class IngestReport:
    """Result of an ingest: numbers of attempts in the spool by outcome.

    Attributes:
        added: Number of attempts whose rows were added now.
        skipped: Number of attempts that the database had already.
        unfinished: Number of attempts without a DONE file: running, or killed.
        quarantined: One message per attempt, record or link that was left out because it is invalid.
    """

    added: int
    skipped: int
    unfinished: int
    quarantined: tuple[str, ...]


@dataclass
class SpoolLoader:
    """Loader that adds the missing attempts of a spool to a database, in one or more calls of `load`.

    The spool is listed once, at the beginning; every call queries the database again.

    Attributes:
        spool_root: The spool.
        progress: Called with (attempts seen, attempts in the spool) after each group of attempts.
        report: Report on the attempts seen so far.
        finished: True if all attempts have been seen.
    """

    spool_root: Path
    progress: Callable[[int, int], None] | None = None
    report: IngestReport = field(init=False, default=IngestReport(0, 0, 0, ()))
    finished: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._attempts = sorted(scan_spool(self.spool_root), key=lambda attempt: attempt.attempt_id)
        self._seen = 0
        self._pool = ThreadPoolExecutor(_READERS)
        self._checks: dict[Attempt, Future[AttemptRecord | SpoolError]] = {}

    def load(self, engine: sa.Engine, until: Callable[[], bool] = lambda: False) -> None:
        """Add the missing attempts, one group at a time, until all are seen or ``until`` returns True.

        Args:
            engine: An open, writable, up-to-date database.
            until: Called after each group; returns whether to stop, for example because another process waits.

        Raises:
            UserError: The database cannot take more rows (for example, the disk is full); rows added before are kept.
        """
        with engine.connect() as connection:
            stored = set(connection.execute(sa.select(ATTEMPT.c.attempt_id)).scalars())
        if self._seen == 0:
            side_problems = (*load_trainings(engine, self.spool_root), *load_vocabularies(engine, self.spool_root))
            links = (link_message(link) for link in links_in(self.spool_root))
            self._count(quarantined=(*side_problems, *links))
        artifacts: set[str] = set()
        for group, checked in self._checked_groups(stored):
            problems = _load_group(engine, checked, artifacts)
            self._seen += len(group)
            self._count(
                added=len(checked) - len(problems),
                skipped=sum(attempt.attempt_id in stored for attempt in group),
                unfinished=sum(not attempt.finished and attempt.attempt_id not in stored for attempt in group),
                quarantined=tuple(_quarantine_attempt(self.spool_root, *problem) for problem in problems),
            )
            if self.progress:
                self.progress(self._seen, len(self._attempts))
            if until():
                break
        self.finished = self._seen == len(self._attempts)
        if self.finished:
            self._pool.shutdown()
            added, import_problems = load_imports(engine, self.spool_root)
            derived = (*load_rescores(engine, self.spool_root), *load_tags(engine, self.spool_root))
            self._count(added=added, quarantined=(*import_problems, *derived))
            with engine.begin() as connection:
                fill_differences(connection)

    def _checked_groups(
        self, stored: Set[str]
    ) -> Iterator[tuple[list[Attempt], dict[Attempt, "Future[AttemptRecord | SpoolError]"]]]:
        """Yield (group of attempts, checks of its new attempts) as long as there are attempts not seen yet.

        A check is a future, by attempt: the files are read and compared with their digests. Checks of the next group
        run while the yielded group is added, and also between two calls of `load`. `stored` are the ids of attempts in
        the database.
        """
        before: tuple[list[Attempt], dict[Attempt, Future[AttemptRecord | SpoolError]]] | None = None
        for group in self._groups(stored):
            fresh = [attempt for attempt in group if attempt.finished and attempt.attempt_id not in stored]
            checks = {attempt: self._checks.get(attempt) or self._pool.submit(_read, attempt) for attempt in fresh}
            self._checks = checks
            if before is not None:
                yield before
            before = group, checks
        if before is not None:
            yield before

    def _groups(self, stored: Set[str]) -> Iterator[list[Attempt]]:
        """Yield the attempts not seen yet, in groups whose new attempts are small enough for one transaction.

        New attempts are finished and not in `stored`, the ids of attempts in the database.
        """
        group: list[Attempt] = []
        fresh, n_bytes = 0, 0
        for attempt in self._attempts[self._seen :]:
            size = _parquet_bytes(attempt.path) if attempt.finished and attempt.attempt_id not in stored else None
            if size is not None and fresh and (fresh >= _GROUP_ATTEMPTS or n_bytes + size > _GROUP_BYTES):
                yield group
                group, fresh, n_bytes = [], 0, 0
            group.append(attempt)
            if size is not None:
                fresh, n_bytes = fresh + 1, n_bytes + size
        if group:
            yield group

    def _count(self, added: int = 0, skipped: int = 0, unfinished: int = 0, quarantined: tuple[str, ...] = ()) -> None:
        before = self.report
        self.report = IngestReport(
            before.added + added,
            before.skipped + skipped,
            before.unfinished + unfinished,
            before.quarantined + quarantined,
        )


def _parquet_bytes(path: Path) -> int:
    return sum(file.lstat().st_size for file in path.glob("*.parquet"))


def _quarantine_attempt(spool_root: Path, attempt: Attempt, problem: Exception) -> str:
    """Return a message on an attempt's problem; move a damaged attempt to quarantine, so that its cell runs again."""
    if not isinstance(problem, DamagedFile):
        return str(problem)
    return f"{problem} Moved to {quarantine(spool_root, attempt, str(problem))}; its cell will be run again."


Problem = tuple[Attempt, SpoolError]


def _load_group(
    engine: sa.Engine, checked: Mapping[Attempt, "Future[AttemptRecord | SpoolError]"], artifacts: set[str]
) -> list[Problem]:
    """Add attempts to the database in one transaction; if one of them cannot be added, add the attempts one by one.

    Args:
        engine: An open, writable database.
        checked: Checks of the attempts, as futures.
        artifacts: Ids of machines, models and data sets known to be stored; the attempts' ids are added to it.

    Returns:
        The attempts that were not added, with their problems.
    """
    reads = {attempt: check.result() for attempt, check in checked.items()}
    problems = [(attempt, read) for attempt, read in reads.items() if isinstance(read, SpoolError)]
    records = [read for read in reads.values() if isinstance(read, AttemptRecord)]
    if records and _load_records(engine, records, artifacts) is not None:
        for record in records:
            problem = _load_records(engine, [record], artifacts)
            if problem is not None:
                problems.append((record.attempt, problem))
    return problems


def _read(attempt: Attempt) -> AttemptRecord | SpoolError:
    try:
        return read_attempt(attempt.path)
    except SpoolError as error:
        return error


def _load_records(engine: sa.Engine, records: Sequence[AttemptRecord], artifacts: set[str]) -> SpoolError | None:
    """Add checked attempts to the database, all or none; return the problem of one of them, or None if all were added.

    `artifacts` has the ids of machines, models and data sets known to be stored; those of the attempts are added to it.

    Raises:
        UserError: The database cannot take more rows, for example because the disk is full.
    """
    path = records[-1].attempt.path  # exact if it is the only attempt
    try:
        with engine.begin() as connection:
            ids = insert_catalogue(connection, records, artifacts)
            # A failed attempt's traces are incomplete: they stay in the spool, for analysis of the failure.
            successes = [record for record in records if record.status["status"] == "ok"]
            for table in TABLES:
                _insert_files(connection, table, [record for record in successes if table in record.tables])
    except (duckdb.Error, sa.exc.StatementError, KeyError, TypeError, ValueError) as error:
        cause = driver_error(error)
        if is_system_error(cause):
            if (fault := _fault(records)) is not None:
                return fault  # the file itself caused the trouble
            if is_damage(cause):
                raise
            raise _full(cause) from error
        if isinstance(error, duckdb.Error):
            return SpoolError(f"{path}: does not fit the database: {cause}")
        return SpoolError(f"{path}: cell.json, env.json or status.json has a value of the wrong kind: {cause}")
    artifacts |= ids
    return None


def _fault(records: Sequence[AttemptRecord]) -> SpoolError | None:
    """Return the first problem found in the Parquet files of attempts; None if all of them can be read."""
    try:
        for record in records:
            for table in record.tables:
                check_table(record.attempt.path / f"{table}.parquet", TABLES[table])
    except SpoolError as error:
        return error
    return None


def _full(error: BaseException) -> UserError:
    return UserError(
        f"The results cannot be added to the database: {error}\nNothing is lost: they are in the spool, and the next "
        "run or `exitbench db rebuild` adds them."
    )


def _insert_files(connection: sa.Connection, table: str, records: Sequence[AttemptRecord]) -> None:
    """Insert into the database the Parquet files ``TABLE.parquet`` of several attempts.

    Each attempt has one such file, in a folder whose name is the attempt's id. From rows per token, also compute and
    insert one row per document: from table `token_exit` into `document_exit`, from `probe_token` into `document_probe`.

    Args:
        connection: Connection to the database.
        table: Name of the files without suffix, such as ``metrics``.
        records: The attempts; each must have the file.
    """
    if not records:
        return
    more = ""
    if table == "metrics":  # in the order in which they were written
        ended_at = "(SELECT ended_at FROM attempt WHERE attempt.attempt_id = string_split(filename, '/')[-2])"
        more = f", file_row_number AS ordinal, {ended_at} AS scored_at"
    files = [parquet_path(record.attempt.path / f"{table}.parquet") for record in records]
    rows = f"""
        SELECT string_split(filename, '/')[-2] AS attempt_id, * EXCLUDE (filename, file_row_number) {more}
        FROM read_parquet($1, filename=true, file_row_number=true, hive_partitioning=false)
    """
    duck = driver_connection(connection)
    duck.execute(f"INSERT INTO {FILES[table].name} BY NAME {rows}", [files])
    if (fill := fill_sql(FILES[table].name, rows)) is not None:
        duck.execute(fill, [files])


_IN_ORDER: Final = "min(position) = 1 AND max(position) = count(*)"
"""SQL condition that index and position agree in a list; every version of ExitBench has written positions 1..n."""

_FILL: Final = {
    "token_exit": f"""
        INSERT INTO document_exit BY NAME
        SELECT
            attempt_id, doc_key, count(full_token_id) > 0 AS is_known,
            min(position) FILTER (token_id IS DISTINCT FROM full_token_id) AS first_divergence,
            arg_min_null(score, position) FILTER (token_id IS DISTINCT FROM full_token_id) AS divergence_score,
            CASE WHEN {_IN_ORDER} THEN list(exit_layer ORDER BY position) END AS exit_layer,
            CASE WHEN {_IN_ORDER} THEN list(coalesce(token_id = full_token_id, false) ORDER BY position) END AS is_equal
        FROM ({{rows}}) WHERE choice IS NULL GROUP BY attempt_id, doc_key
    """,
    "probe_token": f"""
        INSERT INTO document_probe BY NAME
        SELECT
            attempt_id, doc_key, CASE WHEN {_IN_ORDER} THEN list(first_match ORDER BY position) END AS first_match
        FROM ({{rows}}) WHERE choice IS NULL
        GROUP BY attempt_id, doc_key
    """,
}


def fill_sql(table: str, rows: str) -> str | None:
    """Return SQL that derives rows per document from new rows per token of a table, and inserts them.

    None for tables from which no rows are derived. Rows of `document_exit` are derived from `token_exit`, and rows of
    `document_probe` from `probe_token`.

    Args:
        table: Table of the new rows.
        rows: SQL that selects the new rows.
    """
    fill = _FILL.get(table)
    return None if fill is None else fill.format(rows=rows)
