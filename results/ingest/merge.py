"""Merge results from elsewhere into the spool, from which the database is filled."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

import duckdb
import pyarrow as pa
import sqlalchemy as sa

from exitbench.errors import UserError
from exitbench.results.database.catalogue import key_rows
from exitbench.results.database.connection import open_database
from exitbench.results.database.tables import quoted
from exitbench.results.database.trouble import driver_error
from exitbench.results.files.arrow import driver_connection
from exitbench.results.files.atomic_folder import read_json, sha256, unique_name
from exitbench.results.files.duckdb_file import is_duckdb_file
from exitbench.results.ingest.imports import IMPORTS, PERF, benchmark_rows
from exitbench.results.ingest.ingest import ingest
from exitbench.results.ingest.snapshot import MANIFEST, SCORES, is_snapshot, load_snapshot, write_snapshot
from exitbench.results.ingest.spool_import import has_records, import_spool, require_equal
from exitbench.results.spool.attempts import scan_spool
from exitbench.results.tables import KEYS, tables_of_attempts

Kind = Literal["spool", "snapshot", "benchmarks"]

_DIGITS: Final = 16
_START_BYTES: Final = 12


@dataclass(frozen=True)
class MergeReport:
    """What a source brought.

    Attributes:
        kind: What the source is.
        added: Attempts (of benchmarks: files) that are new.
        known: Attempts that were here already.
        rescored: Metric versions of known attempts that are new.
        problems: What of the source, or of the spool as it is now, was left out, and why.
    """

    kind: Kind
    added: int
    known: int
    rescored: int
    problems: tuple[str, ...]


def kind_of(source: Path) -> Kind:
    """Return what a file or folder is, by its content.

    Raises:
        UserError: It is nothing that can be imported, such as a database.
    """
    if source.is_dir():
        if is_snapshot(source):
            return "snapshot"
        if next(scan_spool(source), None) or has_records(source):
            return "spool"
    elif source.is_file():
        if is_duckdb_file(source):
            raise UserError(
                f"{source} is a database, and databases are not imported: each is one machine's. On its machine "
                f"`exitbench export FOLDER --database {source.name}` writes a snapshot of it; import that folder."
            )
        with source.open("rb") as file:
            start = file.read(_START_BYTES)
        if start.lstrip()[:1] == b"{" and read_json(source.resolve()).keys() >= {"benchmarks", "machine_info"}:
            return "benchmarks"
    what = "is nothing that can be imported" if source.exists() else "does not exist"
    hint = f" Did you mean {source / 'spool'}?" if (source / "spool").is_dir() else ""
    raise UserError(
        f"{source} {what}.{hint} Allowed: a spool folder (RUNS/spool), a snapshot (a folder that "
        "`exitbench export` wrote as Parquet), or a JSON file of pytest-benchmark."
    )


def merge(source: Path, spool_root: Path, database_path: Path) -> MergeReport:
    """Bring a source into the spool, then fill the database from it.

    Args:
        source: What to import.
        spool_root: The spool; created when missing.
        database_path: The database; created when missing.

    Raises:
        UserError: The source is nothing that can be imported or is damaged, or has an attempt that is here with other
            files: then nothing is merged.
    """
    kind = kind_of(source)
    spool_root.mkdir(parents=True, exist_ok=True)
    ingest(spool_root, database_path)
    with open_database(database_path) as database:
        ours = _digests(database.engine)
        keys = {table: key_rows(database.engine, table) for table in KEYS}
    problems: tuple[str, ...] = ()
    if kind == "spool":
        brought = import_spool(source, spool_root, ours)
        added, known, rescored, problems = brought.added, brought.known, brought.rescored, brought.problems
    elif kind == "benchmarks":
        added, known, rescored = _merge_benchmarks(source, spool_root), 0, 0
    else:
        added, known, rescored = _merge_snapshot(source, spool_root, ours, keys)
    left_out = ingest(spool_root, database_path).quarantined
    return MergeReport(kind, added, known, rescored, (*problems, *left_out))


def _digests(engine: sa.Engine) -> dict[str, str]:
    """Digest of the DONE of every attempt."""
    with engine.connect() as connection:
        rows = driver_connection(connection).execute("SELECT attempt_id, spool_sha256 FROM attempt").fetchall()
    return dict(rows)


def _merge_benchmarks(source: Path, spool_root: Path) -> int:
    source = source.resolve()
    benchmark_rows(source)
    target = spool_root / PERF / f"{sha256(source)[:_DIGITS]}.json"
    if target.exists():
        return 0
    partial = spool_root / unique_name(".importing")
    try:
        shutil.copyfile(source, partial)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(target)
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror or error}.") from error
    finally:
        partial.unlink(missing_ok=True)
    return 1


def _merge_snapshot(
    source: Path, spool_root: Path, ours: Mapping[str, str], keys: Mapping[str, pa.Table]
) -> tuple[int, int, int]:
    """Keep what is new of a snapshot as another one; return `added`, `known` and `rescored`."""
    with _as_database(source, spool_root) as engine:
        theirs = _digests(engine)
        require_equal(source, theirs, ours)
        _delete_known(engine, keys)
        new_scores = {tuple(key.values()) for table in SCORES for key in key_rows(engine, table).to_pylist()}
        if any(len(key_rows(engine, table)) for table in KEYS):
            folder = spool_root / IMPORTS
            new = folder / unique_name(".new")
            write_snapshot(engine, new)
            target = folder / sha256(new / MANIFEST)[:_DIGITS]
            if target.exists():
                shutil.rmtree(new)
            else:
                new.rename(target)
    known = len(theirs.keys() & ours.keys())
    rescored = sum(attempt_id in ours for attempt_id, _version in new_scores)
    return len(theirs) - known, known, rescored


@contextmanager
def _as_database(source: Path, spool_root: Path) -> Iterator[sa.Engine]:
    """Yield a database with the rows of a snapshot, which may be changed."""
    with TemporaryDirectory(dir=spool_root, prefix=".import-") as folder:
        copy = Path(folder) / "source.duckdb"
        try:
            with open_database(copy, read_only=False) as database:
                load_snapshot(database.engine, source)
                yield database.engine
        except UserError as error:
            raise UserError(str(error).replace(str(copy), str(source))) from error
        except (duckdb.Error, sa.exc.DBAPIError) as error:
            raise UserError(f"{source}: cannot be imported: {driver_error(error)}") from error


def _delete_known(engine: sa.Engine, keys: Mapping[str, pa.Table]) -> None:
    """Delete what is known elsewhere, and the cells that are left without attempts."""
    with engine.begin() as connection:
        duck = driver_connection(connection)
        owners = {**dict.fromkeys(tables_of_attempts(), "attempt"), **{table: table for table in KEYS}}
        for table, keyed in owners.items():
            equal = " AND ".join(f"known_keys.{quoted(key)} = {quoted(table)}.{quoted(key)}" for key in KEYS[keyed])
            duck.register("known_keys", keys[keyed])
            duck.execute(f"DELETE FROM {quoted(table)} WHERE EXISTS (SELECT 1 FROM known_keys WHERE {equal})")
            duck.unregister("known_keys")
        duck.execute("DELETE FROM cell WHERE cell_id NOT IN (SELECT cell_id FROM attempt)")
