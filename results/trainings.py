"""Training records: how a model came about, kept in the spool beside the attempts.

    <spool>/trainings/<weights_sha256>/{card.json, training_log.csv}

A record is complete or absent. The card is the one in the model's folder; the log has the columns step, block (empty
for the whole model), metric and value.
"""

import csv
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import duckdb
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from exitbench.results.catalogue import TRAINING_RUN
from exitbench.results.spool import SpoolError

CARD_FILE = "card.json"
LOG_FILE = "training_log.csv"
_FOLDER = "trainings"
_COLUMNS = ("step", "block", "metric", "value")


def record_training(spool_root: Path, weights_sha256: str, model_folder: Path) -> None:
    """Copy card and log of a trained model into the spool; nothing to do if it has none, or they are there.

    Args:
        spool_root: The spool.
        weights_sha256: Digest of the model's weights, as cells have it.
        model_folder: The model's folder.
    """
    files = [model_folder / CARD_FILE, model_folder / LOG_FILE]
    final = spool_root / _FOLDER / weights_sha256
    if final.is_dir() or not all(path.is_file() for path in files):
        return
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.parent / f".{weights_sha256[:16]}-{os.getpid()}"
    partial.mkdir(exist_ok=True)
    try:
        for path in files:
            shutil.copyfile(path, partial / path.name)
        partial.rename(final)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        if not final.is_dir():  # else another process was faster
            raise


def load_trainings(engine: sa.Engine, spool_root: Path) -> list[str]:
    """Add every record that the database does not have, each whole or not at all; return what is wrong with others."""
    with engine.connect() as connection:
        known = set(connection.execute(sa.select(TRAINING_RUN.c.weights_sha256)).scalars())
    problems = []
    for folder in sorted((spool_root / _FOLDER).glob("[!.]*")):
        if folder.name not in known:
            try:
                _load(engine, folder)
            except (SpoolError, duckdb.Error, sa.exc.StatementError) as error:
                problems.append(f"{folder}: {error}")
    return problems


def _load(engine: sa.Engine, folder: Path) -> None:
    try:
        card = json.loads((folder / CARD_FILE).read_text(encoding="utf-8"))
        row = {"weights_sha256": folder.name, "recipe": card["recipe"]["name"], "card": card}
        with (folder / LOG_FILE).open(encoding="utf-8", newline="") as file:
            log = _table(csv.DictReader(file))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpoolError(f"card or log cannot be read: {type(error).__name__}: {error}") from error
    with engine.begin() as connection:
        connection.execute(insert(TRAINING_RUN).values(row))
        duck = connection.connection.driver_connection
        assert duck is not None
        duck.register("incoming_rows", log)
        statement = "INSERT INTO training_log BY NAME SELECT $1::VARCHAR AS weights_sha256, * FROM incoming_rows"
        duck.execute(statement, [folder.name])
        duck.unregister("incoming_rows")


def _table(rows: Iterable[dict[str, str]]) -> pa.Table:
    found = [tuple(row[column] for column in _COLUMNS) for row in rows]
    return pa.table(
        {
            "step": pa.array([int(step) for step, *_ in found], pa.int32()),
            "block": pa.array([int(block) if block else None for _, block, *_ in found], pa.int16()),
            "metric": pa.array([metric for _, _, metric, _ in found], pa.string()),
            "value": pa.array([float(value) for *_, value in found], pa.float64()),
        }
    )
