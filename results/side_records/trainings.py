"""Training records: the recipe and log of a trained model, kept in the spool next to the attempts.

    <spool>/trainings/<weights_sha256>/{card.json, training_log.csv}

A record is complete or absent. Both files are copied from the model's folder. The log has the columns of
`schema.TRAINING_LOG`; if its column `block` is empty, a row is about the whole model.
"""

import io
import shutil
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa
from pyarrow import csv
from sqlalchemy.dialects.postgresql import insert

from exitbench.results.database.catalogue import TRAINING_RUN
from exitbench.results.files.arrow import insert_rows
from exitbench.results.files.atomic import SpoolError, read_json, unique_name
from exitbench.results.files.regular import read_regular
from exitbench.results.files.values import OBJECT, TEXT, Keys, first_invalid_key
from exitbench.results.side_records.derived import check_records, load_records
from exitbench.results.spool.records import TRAINING
from exitbench.results.spool.schema import CARD_FILE, TRAINING_LOG, TRAINING_LOG_FILE

_LOG_BYTES: Final = 1 << 28
"""Maximum size: a row takes about 30 bytes, and trainings log some hundred steps per block."""
_CARD_KEYS: Final[Keys] = {"": {"recipe": OBJECT}, "recipe": {"name": TEXT}}
_LOG_COLUMNS = csv.ConvertOptions(column_types=TRAINING_LOG, include_columns=TRAINING_LOG.names)


def record_training(spool_root: Path, weights_sha256: str, model_folder: Path) -> None:
    """Copy a trained model's card and log into the spool, unless a file is missing or the spool has them already."""
    files = [model_folder / CARD_FILE, model_folder / TRAINING_LOG_FILE]
    final = spool_root / TRAINING.folder / weights_sha256
    if final.is_dir() or not all(path.is_file() for path in files):
        return
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.parent / unique_name(f".{weights_sha256[:16]}")
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
    """Add to the database the spool's training records that it lacks; return a message per record not added."""
    with engine.connect() as connection:
        stored = set(connection.execute(sa.select(TRAINING_RUN.c.weights_sha256)).scalars())
    return load_records(
        spool_root, TRAINING, lambda folder: folder.name not in stored, lambda folder: _load(engine, folder)
    )


def check_trainings(spool_root: Path) -> list[str]:
    """Read every training record in the spool; return a message per invalid record."""
    return check_records(spool_root, TRAINING, read_training)


def read_training(folder: Path) -> tuple[dict[str, Any], pa.Table]:
    """Return the training card and the log in the folder of a training record.

    Raises:
        SpoolError: A file is missing or not as a training writes it; the message names the file.
    """
    card = read_json(folder / CARD_FILE)
    if fault := first_invalid_key(card, _CARD_KEYS):
        raise SpoolError(f"{folder / CARD_FILE}: {fault}")
    path = folder / TRAINING_LOG_FILE
    try:
        with io.BytesIO(read_regular(path, _LOG_BYTES)) as file:
            log = csv.read_csv(file, convert_options=_LOG_COLUMNS)
    except OSError as error:
        raise SpoolError(f"{path}: {error.strerror or error}.") from error
    except (pa.ArrowException, KeyError) as error:
        raise SpoolError(f"{path}: cannot be read: {error}") from error
    for field in TRAINING_LOG:
        if log[field.name].null_count and not field.nullable:
            raise SpoolError(f"{path}: column {field.name!r} has empty fields; none is allowed.")
    return card, log


def _load(engine: sa.Engine, folder: Path) -> None:
    card, log = read_training(folder)
    row = {"weights_sha256": folder.name, "recipe": card["recipe"]["name"], "card": card}
    with engine.begin() as connection:
        connection.execute(insert(TRAINING_RUN).values(row))
        insert_rows(connection, "training_log", log, "weights_sha256", folder.name)
