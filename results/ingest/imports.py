"""Imported snapshots and pytest-benchmark results, kept in the spool: attempts whose spool is elsewhere.

    <spool>/imports/<digest>/       a snapshot (`results.ingest.snapshot`)
    <spool>/perf/<digest>.json      as pytest-benchmark wrote it: one run of benchmarks

A database can only be rebuilt from what the spool has, so that imports are kept as they came.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from exitbench.errors import UserError
from exitbench.results.database.catalogue import known_keys
from exitbench.results.files.arrow import insert_rows
from exitbench.results.files.atomic import read_json
from exitbench.results.files.duckdb_files import driver_error, is_trouble
from exitbench.results.files.regular import open_regular
from exitbench.results.ingest.manifest import Manifest
from exitbench.results.ingest.snapshot import is_loaded, load_snapshot
from exitbench.results.spool.records import BENCHMARK, IMPORT, records
from exitbench.results.spool.schema import arrow_schema
from exitbench.results.tables import TABLES

IMPORTS: Final = IMPORT.folder
PERF: Final = BENCHMARK.folder
_BENCHMARKS: Final = arrow_schema(TABLES["perf_sample"])
_ODD: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""What comes of a file that has other things where numbers, texts and objects should be."""


def load_imports(engine: sa.Engine, spool_root: Path) -> tuple[int, list[str]]:
    """Add every import that the database does not have; return the attempts added, and what is wrong with others."""
    snapshots, odd_snapshots = records(spool_root, IMPORT)
    benchmarks, odd_benchmarks = records(spool_root, BENCHMARK)
    added, problems = _load_snapshots(engine, snapshots)
    problems += [*odd_snapshots, *odd_benchmarks]
    stored = known_keys(engine, "perf_sample")
    for path in benchmarks:
        if path.stem not in stored:
            try:
                rows = benchmark_rows(path)
                with engine.begin() as connection:
                    insert_rows(connection, "perf_sample", rows, "perf_run_id", path.stem)
            except (UserError, duckdb.Error, sa.exc.DBAPIError) as error:
                if is_trouble(error):
                    raise
                problems.append(f"{path}: {error}")
    return added, problems


def _load_snapshots(engine: sa.Engine, folders: Sequence[Path]) -> tuple[int, list[str]]:
    added, problems, loaded = 0, [], []
    for folder in folders:
        try:
            if not _is_loaded(engine, folder):
                added += load_snapshot(engine, folder)
            loaded.append(folder)
        except (UserError, duckdb.Error, sa.exc.DBAPIError) as error:
            if is_trouble(error):
                raise
            problems.append(str(error) if isinstance(error, UserError) else f"{folder}: {driver_error(error)}")
    for folder in loaded:
        # Scores of attempts that a folder further on brought.
        if not _is_loaded(engine, folder):
            load_snapshot(engine, folder)
    return added, problems


def imported_attempts(spool_root: Path) -> set[str]:
    """Return the attempts of which a snapshot was imported; a damaged import has none, and is named when loaded."""
    attempt_ids: set[str] = set()
    for folder in records(spool_root, IMPORT)[0]:
        try:
            Manifest.claimed(folder)
            with open_regular(folder / "attempt.parquet") as file:
                attempt_ids.update(pq.read_table(file, columns=["attempt_id"])["attempt_id"].to_pylist())
        except (UserError, OSError, KeyError, pa.ArrowException):
            continue
    return attempt_ids


def benchmark_rows(path: Path) -> pa.Table:
    """Return a file of pytest-benchmark as rows of `perf_sample`, without their run.

    Raises:
        UserError: It is not what pytest-benchmark writes.
    """
    record = read_json(path)
    try:
        commit = record.get("commit_info", {})
        common = {
            "measured_at": _utc(record["datetime"]),
            # What it writes outside of a repository.
            "git_commit": None if commit.get("id") == "unversioned" else commit.get("id"),
            "git_dirty": commit.get("dirty"),
            "machine": _json(record["machine_info"]),
        }
        rows = [{**common, **_benchmark_row(benchmark)} for benchmark in record["benchmarks"]]
        if len({row["benchmark"] for row in rows}) < len(rows):
            raise ValueError("a benchmark is there twice")
        return pa.Table.from_pylist(rows, schema=_BENCHMARKS)
    except (*_ODD, pa.ArrowException) as error:
        raise UserError(f"{path}: is not what pytest-benchmark writes: {type(error).__name__}: {error}") from error


def _benchmark_row(benchmark: dict[str, Any]) -> dict[str, Any]:
    return {
        "benchmark": benchmark["fullname"],
        "params": _json(benchmark["params"]),
        "extra": _json(benchmark["extra_info"]),
        "median_s": benchmark["stats"]["median"],
        # Only kept by pytest-benchmark where it was asked to (--benchmark-save-data).
        "data": benchmark["stats"].get("data", []),
    }


def _json(value: Any) -> str:
    """Return JSON as DuckDB takes it: without NaN, and without the halves of characters that no text has."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False).encode().decode()


def _utc(text: str) -> datetime:
    """A time as pytest-benchmark writes it: UTC, which older versions do not say."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo is None else time.astimezone(UTC)).replace(tzinfo=None)


def _is_loaded(engine: sa.Engine, folder: Path) -> bool:
    """Whether the database has all of a snapshot; what cannot be read is left to `load_snapshot` to name."""
    try:
        return is_loaded(engine, folder)
    except (UserError, duckdb.Error) as error:
        if is_trouble(error):
            raise
        return False
