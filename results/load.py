"""From checked spool folders to rows: JSON through the catalogue's tables, Parquet through Arrow."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from exitbench.results.arrow import insert_rows
from exitbench.results.canonical import canonical_json, content_id
from exitbench.results.catalogue import (
    ATTEMPT,
    ATTEMPT_FILE,
    CELL,
    DATASET_ARTIFACT,
    ENVIRONMENT,
    HARDWARE,
    MODEL_ARTIFACT,
)
from exitbench.results.spool import Attempt, AttemptRecord, SpoolError, read_attempt, scan_spool
from exitbench.results.trainings import load_trainings

# Of the identity, what says how one cell differs from another that does the same work. `probe_cell_ids` is how the
# first version of identities said `probe_cell_id`.
_NOT_SETTING: Final = (
    "kind",
    "method",
    "kv_policy",
    "timing",
    "calibration",
    "probe_cell_id",
    "probe_cell_ids",
    "scores_cell_id",
    "fit_cell_id",
)

_DATABASE_TABLE: Final = {
    "samples": "sample",
    "tokens": "token_exit",
    "probe": "probe_token",
    "scores": "score_token",
    "fit_curve": "fit_curve",
    "calibration": "calibration_step",
    "metrics": "metric",
    "timings": "timing_sample",
}


@dataclass(frozen=True)
class IngestReport:
    """What became of the attempts in a spool.

    Attributes:
        added: Attempts whose rows were added now.
        skipped: Attempts that the database already had.
        unfinished: Attempts without DONE: running, or killed.
        quarantined: One message per attempt that was left out because its files are not what they should be.
    """

    added: int
    skipped: int
    unfinished: int
    quarantined: tuple[str, ...]


def load_spool(engine: sa.Engine, spool_root: Path, progress: Callable[[int, int], None] | None = None) -> IngestReport:
    """Add every finished attempt and training record that the database does not have, each in a transaction of its own.

    Args:
        engine: An open, writable, up-to-date database.
        spool_root: The spool.
        progress: Called with (attempts seen, attempts in the spool) after each.
    """
    with engine.connect() as connection:
        known = set(connection.execute(sa.select(ATTEMPT.c.attempt_id)).scalars())
    artifacts: set[str] = set()
    attempts = sorted(scan_spool(spool_root), key=lambda attempt: attempt.attempt_id)
    added, skipped, unfinished, quarantined = 0, 0, 0, load_trainings(engine, spool_root)
    for seen, attempt in enumerate(attempts, start=1):
        if attempt.attempt_id in known:
            skipped += 1
        elif not attempt.finished:
            unfinished += 1
        elif problem := _load_attempt(engine, attempt, artifacts):
            quarantined.append(problem)
        else:
            added += 1
        if progress:
            progress(seen, len(attempts))
    return IngestReport(added, skipped, unfinished, tuple(quarantined))


def _load_attempt(engine: sa.Engine, attempt: Attempt, artifacts: set[str]) -> str | None:
    """Add one attempt, or nothing of it; return what is wrong with it, if anything is.

    `artifacts` are ids of machines, models and data known to be stored; it grows with those of this attempt.
    """
    try:
        record = read_attempt(attempt.path)
        with engine.begin() as connection:
            ids = _insert_catalogue(connection, record, artifacts)
            # A failed attempt's traces are incomplete: they stay in the spool, for whoever looks into the failure.
            if record.status["status"] == "ok":
                for table in record.tables:
                    _insert_table(connection, record, table)
    except SpoolError as error:
        return str(error)
    except (duckdb.IntegrityError, duckdb.DataError) as error:
        return f"{attempt.path}: does not fit the database: {error}"
    except (KeyError, TypeError, ValueError, sa.exc.StatementError) as error:
        return f"{attempt.path}: cell.json, env.json or status.json has a value of the wrong kind: {error}"
    artifacts |= ids
    return None


def _insert_catalogue(connection: sa.Connection, record: AttemptRecord, stored: Set[str]) -> set[str]:
    """Add the attempt, its cell, and what of its artifacts is not stored; return the ids of all its artifacts."""
    environment, hardware = record.env["environment"], record.env["hardware"]
    env_id, hw_id = content_id(environment), content_id(hardware)
    model, data = _model_row(record.cell["model"]), _data_row(record.cell["task"])
    artifacts = {
        env_id: (ENVIRONMENT, {"env_id": env_id, **_columns_of(ENVIRONMENT, environment)}),
        hw_id: (HARDWARE, {"hw_id": hw_id, **_columns_of(HARDWARE, hardware)}),
        model["model_id"]: (MODEL_ARTIFACT, model),
        data["data_id"]: (DATASET_ARTIFACT, data),
    }
    for artifact_id, (table, row) in artifacts.items():
        if artifact_id not in stored:
            connection.execute(insert(table).values(row).on_conflict_do_nothing())
    cell = _cell_row(record, model["model_id"], data["data_id"])
    comparable_id = content_id({"setting": cell["setting_id"], "environment": env_id, "hardware": hw_id})
    _add_or_describe_cell(connection, cell)
    connection.execute(ATTEMPT.insert().values(_attempt_row(record, env_id, hw_id, comparable_id)))
    attempt_id = record.attempt.attempt_id
    files = [{"attempt_id": attempt_id, "name": name, "sha256": digest} for name, digest in record.digests.items()]
    connection.execute(ATTEMPT_FILE.insert(), files)
    return set(artifacts)


def _columns_of(table: sa.Table, value: Mapping[str, Any]) -> dict[str, Any]:
    return {column.name: value[column.name] for column in table.columns if column.name in value}


def _add_or_describe_cell(connection: sa.Connection, row: Mapping[str, Any]) -> None:
    """Add the cell; its names are those of the latest attempt, in whatever order the attempts arrive."""
    statement = insert(CELL).values(row)
    renamed = {name: statement.excluded[name] for name in row if name != "cell_id"}
    later = statement.excluded.described_by > CELL.c.described_by
    connection.execute(statement.on_conflict_do_update(index_elements=["cell_id"], set_=renamed, where=later))


def _model_row(model: Mapping[str, Any]) -> dict[str, Any]:
    row = _columns_of(MODEL_ARTIFACT, model)
    return {"model_id": content_id(row), **row}


def _data_row(task: Mapping[str, Any]) -> dict[str, Any]:
    source = task["source"]
    row = {
        **_columns_of(DATASET_ARTIFACT, task),
        "task": task["name"],
        "source": source if isinstance(source, str) else canonical_json(source),
    }
    return {"data_id": content_id(row), **row}


def _cell_row(record: AttemptRecord, model_id: str, data_id: str) -> dict[str, Any]:
    cell = record.cell
    setting = {key: value for key, value in cell["identity"].items() if key not in _NOT_SETTING}
    return {
        **_columns_of(CELL, cell),
        "method": cell["method"]["name"],
        "method_sha256": cell["method"]["source_sha256"],
        "params": cell["method"]["params"],
        "method_distribution": cell["method"].get("distribution"),
        "method_version": cell["method"].get("version"),
        "model_id": model_id,
        "data_id": data_id,
        "setting_id": content_id(setting),
        "described_by": record.attempt.attempt_id,
    }


def _attempt_row(record: AttemptRecord, env_id: str, hw_id: str, comparable_id: str) -> dict[str, Any]:
    return {
        **_columns_of(ATTEMPT, record.status),
        "attempt_id": record.attempt.attempt_id,
        "cell_id": record.attempt.cell_id,
        "started_at": _utc(record.status["started_at"]),
        "ended_at": _utc(record.status["ended_at"]),
        "env_id": env_id,
        "hw_id": hw_id,
        "comparable_id": comparable_id,
        "spool_sha256": record.done_sha256,
    }


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None)


def _insert_table(connection: sa.Connection, record: AttemptRecord, table: str) -> None:
    first_row = 0
    for rows in record.batches(table):
        if table == "metrics":
            ordinals = pa.array(range(first_row, first_row + rows.num_rows), pa.int32())
            scored_at = pa.array([_utc(record.status["ended_at"])] * rows.num_rows, pa.timestamp("us"))
            rows = rows.append_column("ordinal", ordinals).append_column("scored_at", scored_at)
        first_row += rows.num_rows
        insert_rows(connection, _DATABASE_TABLE[table], rows, "attempt_id", record.attempt.attempt_id)
