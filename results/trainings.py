"""Training records: how a model came about, kept in the spool beside the attempts.

    <spool>/trainings/<weights_sha256>/{card.json, training_log.csv}

A record is complete or absent. Both are those of the model's folder (`schema.TRAINING_LOG`; an empty block is the whole
model).
"""

import json
import shutil
from pathlib import Path

import duckdb
import sqlalchemy as sa
from pyarrow import csv
from sqlalchemy.dialects.postgresql import insert

from exitbench.results.arrow import insert_rows
from exitbench.results.catalogue import TRAINING_RUN
from exitbench.results.schema import CARD_FILE, TRAINING_LOG, TRAINING_LOG_FILE
from exitbench.results.sealed import SpoolError, own_name
from exitbench.results.trouble import is_trouble

_FOLDER = "trainings"
_LOG_COLUMNS = csv.ConvertOptions(column_types=TRAINING_LOG, include_columns=TRAINING_LOG.names)


def record_training(spool_root: Path, weights_sha256: str, model_folder: Path) -> None:
    """Copy card and log of a trained model into the spool; nothing to do if it has none, or they are there.

    Args:
        spool_root: The spool.
        weights_sha256: Digest of the model's weights, as cells have it.
        model_folder: The model's folder.
    """
    files = [model_folder / CARD_FILE, model_folder / TRAINING_LOG_FILE]
    final = spool_root / _FOLDER / weights_sha256
    if final.is_dir() or not all(path.is_file() for path in files):
        return
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.parent / own_name(f".{weights_sha256[:16]}")
    partial.mkdir()
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
                if is_trouble(error):
                    raise
                problems.append(f"{folder}: {error}")
    return problems


def _load(engine: sa.Engine, folder: Path) -> None:
    try:
        card = json.loads((folder / CARD_FILE).read_text(encoding="utf-8"))
        row = {"weights_sha256": folder.name, "recipe": card["recipe"]["name"], "card": card}
        log = csv.read_csv(folder / TRAINING_LOG_FILE, convert_options=_LOG_COLUMNS)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpoolError(f"card or log cannot be read: {type(error).__name__}: {error}") from error
    with engine.begin() as connection:
        connection.execute(insert(TRAINING_RUN).values(row))
        insert_rows(connection, "training_log", log, "weights_sha256", folder.name)
