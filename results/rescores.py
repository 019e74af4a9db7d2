"""Scores of stored outputs under another metric version than their attempt's own, kept in the spool.

    <spool>/rescores/<attempt_id>/<digest of the version>/{samples.parquet, metrics.parquet, status.json, DONE}

Complete or absent, as attempts are, and like them the source of truth: the database is filled from here.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from exitbench.errors import UserError
from exitbench.results.arrow import insert_rows
from exitbench.results.canonical import content_id
from exitbench.results.catalogue import ATTEMPT
from exitbench.results.schema import SAMPLES
from exitbench.results.sealed import DamagedFile, SpoolError, check_sealed, read_json, write_json, write_sealed
from exitbench.results.spool import QUARANTINE, conform
from exitbench.results.trouble import is_trouble

RESCORES: Final = "rescores"
_FORMAT: Final = 1
_VERSION_DIGITS: Final = 16
_SAMPLES: Final = pa.schema([SAMPLES.field(name) for name in ("doc_key", "scores", "statistics")])
_FILES: Final = ("samples.parquet", "metrics.parquet", "status.json")
_KNOWN: Final = "SELECT DISTINCT attempt_id, metric_version FROM sample_rescore"


@dataclass(frozen=True)
class Rescore:
    """What one attempt's outputs score under one metric version.

    Attributes:
        samples: doc_key, scores, statistics: as in the spool's samples.
        metrics: As in the spool's metrics, the task's headline metric first.
    """

    attempt_id: str
    metric_version: str
    samples: pa.Table
    metrics: pa.Table


def is_rescored(spool_root: Path, attempt_id: str, metric_version: str) -> bool:
    """Return whether the spool has an attempt's scores under a version."""
    return (_place(spool_root, attempt_id, metric_version) / "DONE").is_file()


def record_rescore(spool_root: Path, rescore: Rescore) -> None:
    """Write scores into the spool; nothing to do if they are there.

    Raises:
        UserError: The spool cannot be written, or a column is not what it should be.
    """
    metrics = conform("metrics", rescore.metrics, where="metrics.parquet")
    samples = rescore.samples.select(_SAMPLES.names).cast(_SAMPLES)
    status = {
        "format": _FORMAT,
        "attempt_id": rescore.attempt_id,
        "metric_version": rescore.metric_version,
        "scored_at": datetime.now(UTC).isoformat(timespec="microseconds"),
    }

    def fill(folder: Path) -> None:
        pq.write_table(samples, folder / "samples.parquet", compression="zstd")
        pq.write_table(metrics, folder / "metrics.parquet", compression="zstd")
        write_json(folder / "status.json", status)

    write_sealed(_place(spool_root, rescore.attempt_id, rescore.metric_version), fill)


def load_rescores(engine: sa.Engine, spool_root: Path) -> list[str]:
    """Add every record whose attempt the database has, each whole or not at all; return what is wrong with others."""
    with engine.connect() as connection:
        attempts = set(connection.execute(sa.select(ATTEMPT.c.attempt_id)).scalars())
        known = {
            (attempt_id, content_id(version)[:_VERSION_DIGITS])
            for attempt_id, version in connection.exec_driver_sql(_KNOWN)
        }
    problems = []
    for folder in sorted((spool_root / RESCORES).glob("*/[!.]*")):
        attempt_id = folder.parent.name
        if attempt_id in attempts and (attempt_id, folder.name) not in known:
            try:
                rescore, scored_at = _read(folder)
            except (UserError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
                if isinstance(error, SpoolError) and not isinstance(error, DamagedFile):
                    problems.append(f"{folder}: {error}")  # nothing is wrong with it
                    continue
                problems.append(f"{folder}: {error} Moved to {_set_aside(spool_root, folder)}; rescore again.")
                continue
            try:
                _insert(engine, rescore, scored_at)
            except (duckdb.Error, sa.exc.DBAPIError) as error:
                if is_trouble(error):
                    raise
                problems.append(f"{folder}: does not fit the database: {error}")
    return problems


def _set_aside(spool_root: Path, folder: Path) -> Path:
    """Move a damaged record out of the way of a new one."""
    aside = spool_root / QUARANTINE / RESCORES / f"{folder.parent.name}-{folder.name}"
    aside.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    return folder.rename(aside)


def check_rescores(spool_root: Path) -> list[str]:
    """Return what is wrong with records, each checked against its digests."""
    problems = []
    for folder in sorted((spool_root / RESCORES).glob("*/[!.]*")):
        try:
            check_sealed(folder, _FILES)
        except UserError as error:
            problems.append(f"{folder}: {error} The next ingest moves it to the quarantine; rescore again.")
    return problems


def _read(folder: Path) -> tuple[Rescore, datetime]:
    """Return a record that is what was written, and when (UTC) it was scored."""
    check_sealed(folder, _FILES)
    status = read_json(folder / "status.json")
    if status["format"] > _FORMAT:
        raise SpoolError(f"written by a newer version (format {status['format']}; this one: {_FORMAT}).")
    if status["attempt_id"] != folder.parent.name:
        raise UserError(f"status.json is of attempt {status['attempt_id']}.")
    scored_at = datetime.fromisoformat(status["scored_at"]).astimezone(UTC).replace(tzinfo=None)
    samples, metrics = pq.read_table(folder / "samples.parquet"), pq.read_table(folder / "metrics.parquet")
    metrics = conform("metrics", metrics, where=str(folder / "metrics.parquet"))
    return Rescore(status["attempt_id"], status["metric_version"], samples.cast(_SAMPLES), metrics), scored_at


def _insert(engine: sa.Engine, rescore: Rescore, scored_at: datetime) -> None:
    n = len(rescore.samples)
    samples = _with(rescore.samples, "metric_version", [rescore.metric_version] * n, pa.string())
    metrics = _with(rescore.metrics, "ordinal", range(len(rescore.metrics)), pa.int32())
    with engine.begin() as connection:
        for table, rows in (("sample_rescore", samples), ("metric", metrics)):
            rows = _with(rows, "scored_at", [scored_at] * len(rows), pa.timestamp("us"))
            insert_rows(connection, table, rows, "attempt_id", rescore.attempt_id)


def _with(rows: pa.Table, name: str, values: Sequence[object], kind: pa.DataType) -> pa.Table:
    return rows.append_column(name, pa.array(values, kind))


def _place(spool_root: Path, attempt_id: str, metric_version: str) -> Path:
    """Versions name settings and packages in full, which no folder's name could."""
    return spool_root / RESCORES / attempt_id / content_id(metric_version)[:_VERSION_DIGITS]
