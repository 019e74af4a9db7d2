"""Convert the JSON files of attempts to rows of the tables of cells, attempts, software, machines, models and data."""

from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from exitbench.results.database.catalogue import (
    ATTEMPT,
    ATTEMPT_FILE,
    CELL,
    DATASET_ARTIFACT,
    ENVIRONMENT,
    HARDWARE,
    MODEL_ARTIFACT,
)
from exitbench.results.files.formats import canonical_json, content_id
from exitbench.results.spool.attempts import AttemptRecord

# Parts of the identity that distinguish cells doing the same work.
_NOT_SETTING: Final = (
    "id_version",
    "engine_version",
    "kind",
    "method",
    "kv_policy",
    "timing",
    "calibration",
    "record",
    "ends_at_stop",
    "batch_rows",
    "probe_cell_id",
    "scores_cell_id",
    "fit_cell_id",
)
_DATA_KEYS: Final = ("source", "split", "limit", "seed", "level", "files")

Row = dict[str, Any]


def insert_catalogue(connection: sa.Connection, records: Sequence[AttemptRecord], stored: Set[str]) -> set[str]:
    """Insert new attempts with their files, cells and artifacts: software environments, machines, models, data sets.

    Args:
        connection: A writable database; nothing is committed here.
        records: New attempts, whose files were checked against their digests.
        stored: Ids of artifacts that the database has already.

    Returns:
        The ids of all artifacts of the attempts.
    """
    artifacts: dict[str, tuple[sa.Table, Row]] = {}
    cells: dict[str, Row] = {}
    attempts, files = [], []
    for record in records:
        record_artifacts, cell, attempt = _rows(record)
        artifacts |= record_artifacts
        # A cell takes its names from its latest attempt, in whatever order the attempts arrive.
        if cell["cell_id"] not in cells or cells[cell["cell_id"]]["described_by"] < cell["described_by"]:
            cells[cell["cell_id"]] = cell
        attempts.append(attempt)
        attempt_id = record.attempt.attempt_id
        files += [{"attempt_id": attempt_id, "name": name, "sha256": value} for name, value in record.digests.items()]
    for table in (ENVIRONMENT, HARDWARE, MODEL_ARTIFACT, DATASET_ARTIFACT):
        if new := [
            row for key, (artifact_table, row) in artifacts.items() if artifact_table is table and key not in stored
        ]:
            connection.execute(insert(table).values(new).on_conflict_do_nothing())
    _add_or_describe(connection, list(cells.values()))
    connection.execute(ATTEMPT.insert().values(attempts))
    connection.execute(ATTEMPT_FILE.insert().values(files))
    return set(artifacts)


def _rows(record: AttemptRecord) -> tuple[dict[str, tuple[sa.Table, Row]], Row, Row]:
    """Return an attempt's artifacts (table and row) by id, its row of `cell`, and its row of `attempt`."""
    environment, hardware = record.env["environment"], record.env["hardware"]
    env_id, hw_id = content_id(environment), content_id(hardware)
    model, data = _model_row(record.cell["model"]), _data_row(record.cell["task"])
    artifacts = {
        env_id: (ENVIRONMENT, {"env_id": env_id, **_columns_of(ENVIRONMENT, environment)}),
        hw_id: (HARDWARE, {"hw_id": hw_id, **_columns_of(HARDWARE, hardware)}),
        model["model_id"]: (MODEL_ARTIFACT, model),
        data["data_id"]: (DATASET_ARTIFACT, data),
    }
    cell = _cell_row(record, model["model_id"], data["data_id"])
    comparable = comparable_id(cell["setting_id"], env_id, hw_id, record.env.get("products"))
    return artifacts, cell, _attempt_row(record, env_id, hw_id, comparable)


def _add_or_describe(connection: sa.Connection, rows: Sequence[Row]) -> None:
    statement = insert(CELL).values(list(rows))
    renamed = {name: statement.excluded[name] for name in rows[0] if name != "cell_id"}
    later = statement.excluded.described_by > CELL.c.described_by
    connection.execute(statement.on_conflict_do_update(index_elements=["cell_id"], set_=renamed, where=later))


def _columns_of(table: sa.Table, value: Mapping[str, Any]) -> dict[str, Any]:
    return {column.name: value[column.name] for column in table.columns if column.name in value}


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
    return {
        **_columns_of(CELL, cell),
        "method": cell["method"]["name"],
        # The revision that distinguishes computations: the engine's version and the method's own.
        "method_revision": f"{cell['engine_version']}.{cell['method']['revision']}",
        "params": cell["method"]["params"],
        "method_distribution": cell["method"]["distribution"],
        "method_version": cell["method"]["version"],
        "seeds": cell["seeds"],
        "conformance": cell.get("conformance"),
        "not_applied": cell.get("not_applied"),
        "cell_timeout_s": cell.get("cell_timeout_s"),
        "unused_params": cell["method"]["unused_params"],
        "model_source": cell["model"]["source"],
        "data_asked": _requested_data(cell.get("data")),
        "model_id": model_id,
        "data_id": data_id,
        "setting_id": setting_id(cell["identity"]),
        "described_by": record.attempt.attempt_id,
    }


def _requested_data(data: Any) -> dict[str, Any] | None:
    """Return a cell's selection of documents (source, split, limit, ...) from its `data`.

    None if there is no selection: lm-eval and declared tasks describe their data in files of their own.
    """
    if not isinstance(data, Mapping) or any(data.get(name) is not None for name in ("settings", "declaration")):
        return None
    return {name: data[name] for name in _DATA_KEYS if name in data}


def setting_id(identity: Mapping[str, Any]) -> str:
    """Return the id shared by cells that do the same work by different methods: a digest of parts of their identity.

    The identity is a cell's complete definition. Method, KV policy, kind, and the cells that it reads are left out.
    """
    return content_id({key: value for key, value in identity.items() if key not in _NOT_SETTING})


def comparable_id(setting_id: str, env_id: str, hw_id: str, products: Mapping[str, str] | None = None) -> str:
    """Return the id shared by attempts whose times may be compared, a digest of setting, software and machine.

    Args:
        setting_id: Id of the work (model, documents, generation settings), as from the function `setting_id`.
        env_id: Id of the software environment.
        hw_id: Id of the machine.
        products: Ways chosen to multiply by each weight matrix; None if the attempt recorded none.
    """
    content: dict[str, Any] = {"setting": setting_id, "environment": env_id, "hardware": hw_id}
    return content_id(content if products is None else {**content, "products": products})


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
