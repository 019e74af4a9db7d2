"""Rescores: stored outputs under another metric version than their attempt's own, kept in the spool.

<spool>/rescores/<attempt_id>/<digest of the version>/{samples.parquet, metrics.parquet, status.json, DONE}
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from exitbench.results.beside.derived import Derived
from exitbench.results.files.arrow import insert_rows
from exitbench.results.files.bounded import read_table
from exitbench.results.spool.attempts import conform
from exitbench.results.spool.records import RESCORE
from exitbench.results.spool.schema import TABLES, arrow_schema
from exitbench.results.tables import TABLES as DATABASE_TABLES

RESCORES: Final = Derived(RESCORE, "metric_version", ("samples.parquet", "metrics.parquet"), "rescore again")
_SAMPLES: Final = arrow_schema(DATABASE_TABLES["sample_rescore"])
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
    return RESCORES.has(spool_root, attempt_id, metric_version)


def record_rescore(spool_root: Path, rescore: Rescore) -> None:
    """Write scores into the spool; nothing to do if they are there.

    Raises:
        UserError: The spool cannot be written, or a column is not what it should be.
    """
    metrics = conform("metrics", rescore.metrics, where="metrics.parquet")
    samples = rescore.samples.select(_SAMPLES.names).cast(_SAMPLES)
    status = {
        "attempt_id": rescore.attempt_id,
        "metric_version": rescore.metric_version,
        "scored_at": datetime.now(UTC).isoformat(timespec="microseconds"),
    }

    def fill(folder: Path) -> None:
        pq.write_table(samples, folder / "samples.parquet", compression="zstd")
        pq.write_table(metrics, folder / "metrics.parquet", compression="zstd")

    RESCORES.record(spool_root, rescore.metric_version, status, fill)


def load_rescores(engine: sa.Engine, spool_root: Path) -> list[str]:
    """Add every record whose attempt the database has, each whole or not at all; return what is wrong with others."""

    def add(folder: Path, status: Mapping[str, Any]) -> None:
        rescore, scored_at = _read(folder, status)
        _insert(engine, rescore, scored_at)

    return RESCORES.load(engine, spool_root, _KNOWN, add)


def check_rescore(folder: Path) -> None:
    """Read one record, and forget it.

    Raises:
        UserError: It is not what it should be.
    """
    _read(folder, RESCORES.status(folder))


def _read(folder: Path, status: Mapping[str, Any]) -> tuple[Rescore, datetime]:
    """Return a record, and when (UTC) it was scored."""
    scored_at = datetime.fromisoformat(status["scored_at"]).astimezone(UTC).replace(tzinfo=None)
    samples = read_table(folder / "samples.parquet", _SAMPLES)
    path = folder / "metrics.parquet"
    metrics = conform("metrics", read_table(path, TABLES["metrics"]), where=str(path))
    return Rescore(status["attempt_id"], status["metric_version"], samples, metrics), scored_at


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
