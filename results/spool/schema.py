"""Spool schema: the columns of an attempt's Parquet files and the keys of its JSON files.

The meaning of tables and columns is declared in `results.tables`. Blocks are numbered 1..L, positions start at 1,
logarithms are natural, times are in nanoseconds.
"""

import re
from typing import Final

import pyarrow as pa

from exitbench.results.files.values import (
    ANY,
    COUNT,
    FLAG,
    INT32,
    INT64,
    LISTS,
    LONG,
    NUMBER,
    OBJECT,
    TEXT,
    TEXTS,
    TIME,
    Keys,
    integer,
    nullable,
    one_of,
    optional_key,
    text_matching,
)
from exitbench.results.tables import FILES, Table
from exitbench.results.tables import TABLES as DATABASE_TABLES

SCHEMA_VERSION: Final = 10
"""Version of the spool's layout, recorded in status.json; attempts of any other version are not read."""

STATUSES: Final = ("ok", "failed", "oom", "timeout", "skipped", "interrupted")
"""Possible statuses of an attempt."""

CELL_KINDS: Final = ("quality", "timing", "probe", "scores", "replay", "fit", "calibration")
EXECUTIONS: Final = ("real", "simulated")

SHA256: Final = re.compile(r"[0-9a-f]{64}")
SHORT_SHA256: Final = re.compile(r"[0-9a-f]{16}")
ATTEMPT_ID: Final = re.compile(r"[0-9]{8}T[0-9]{12}Z-[0-9a-f]{8}")
"""Patterns of names of folders: digests, and ids of attempts."""


_ARROW: Final = {
    "VARCHAR": pa.string(),
    "JSON": pa.string(),
    "BOOLEAN": pa.bool_(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TIMESTAMP": pa.timestamp("us"),
}


def arrow_schema(table: Table) -> pa.Schema:
    """Return the Arrow schema of the spool's Parquet files from which a database table is filled."""
    return pa.schema(
        [
            pa.field(column.name, _arrow_type(column.type), nullable=not column.required)
            for column in table.columns
            if not column.added
        ]
    )


def _arrow_type(name: str) -> pa.DataType:
    return pa.list_(_arrow_type(name[:-2])) if name.endswith("[]") else _ARROW[name]


FITTED_FILE: Final = "fitted.safetensors"
"""File of tensors that a fit cell leaves next to its tables, for other cells to load."""

CARD_FILE: Final = "card.json"
TRAINING_LOG_FILE: Final = "training_log.csv"
"""Files that a training leaves in its model's folder: its recipe, and values by step, block and metric."""

TRAINING_LOG: Final = arrow_schema(DATABASE_TABLES["training_log"])
TABLES: Final[dict[str, pa.Schema]] = {file: arrow_schema(table) for file, table in FILES.items()}
"""Schema of each Parquet file by its name without suffix. A writer may omit nullable columns."""

ROLES: Final = ("headline", "task", "agreement", "depth", "cost", "speed", "energy", "format", "preparation", "data")
"""Topic of a metric, given by its writer.

headline, task: scores of answers; a task's headline metric stands for it; agreement: with full depth; depth: blocks;
cost: counted work; speed: measured time; energy: from the machine's counters; format: effects of the number format;
preparation: of fits and calibrations; data: documents and prompts that were left out or truncated.
"""

CELL_KEYS: Final[Keys] = {
    "": {
        "cell_id": text_matching("64 hexadecimal digits", SHA256),
        "id_version": COUNT,
        "suite": TEXT,
        "kind": one_of(CELL_KINDS),
        "execution": one_of(EXECUTIONS),
        "random_weights": FLAG,
        "limited": FLAG,
        "method": OBJECT,
        "engine_version": COUNT,
        "engine": TEXT,
        "device_map": nullable(LISTS),
        "head_precision": TEXT,
        "kv_policy": nullable(TEXT),
        "model": OBJECT,
        "task": OBJECT,
        "generation": OBJECT,
        "dtype": TEXT,
        "device": TEXT,
        "batch_size": COUNT,
        "batch_rows": nullable(COUNT),
        "seed": integer(-INT64 - 1, INT64),
        "full_depth_cell_id": nullable(TEXT),
        "depends_on": TEXTS,
        "identity": OBJECT,
        "seeds": ANY,
        "data": optional_key(OBJECT),
        "held_out": optional_key(OBJECT),
        "conformance": optional_key(ANY),
        "not_applied": optional_key(ANY),
        "cell_timeout_s": optional_key(NUMBER),
    },
    "method": {
        "name": TEXT,
        "params": OBJECT,
        "revision": TEXT,
        "distribution": nullable(TEXT),
        "version": nullable(TEXT),
        "unused_params": TEXTS,
    },
    "model": {
        "name": TEXT,
        "weights_sha256": TEXT,
        "config_sha256": TEXT,
        "tokenizer_sha256": TEXT,
        "kind": TEXT,
        "blocks": COUNT,
        "encoder_blocks": nullable(COUNT),
        "parameters": nullable(LONG),
        "source": nullable(TEXT),
    },
    "task": {
        "name": TEXT,
        "label": TEXT,
        "split": TEXT,
        "source": ANY,
        "documents": COUNT,
        "data_sha256": TEXT,
        "metric_version": TEXT,
    },
    "generation": {},
    "identity": {},
}
"""Keys of cell.json. Only cells of a plan have the documents to read and earlier results about the method."""

ENV_KEYS: Final[Keys] = {
    "": {"environment": OBJECT, "hardware": OBJECT, "products": optional_key(OBJECT)},
    "environment": {
        "python": nullable(TEXT),
        "platform": nullable(TEXT),
        "packages": ANY,
        "git_commit": nullable(TEXT),
        "git_dirty": nullable(FLAG),
        "env_vars": ANY,
    },
    "hardware": {
        "cpu": nullable(TEXT),
        "cores": nullable(COUNT),
        "ram_bytes": nullable(LONG),
        "gpu": nullable(TEXT),
        "gpu_count": nullable(COUNT),
        "driver": nullable(TEXT),
        "cuda": nullable(TEXT),
        "threads": nullable(COUNT),
    },
}
"""Keys of env.json."""

STATUS_KEYS: Final[Keys] = {
    "": {
        "schema_version": integer(SCHEMA_VERSION, SCHEMA_VERSION),
        "status": one_of(STATUSES),
        "reason": nullable(TEXT),
        "started_at": TIME,
        "ended_at": TIME,
        "exit_code": optional_key(integer(-INT32 - 1, INT32)),
        "signal": optional_key(COUNT),
        "peak_rss_bytes": optional_key(LONG),
        "pass_cells": optional_key(COUNT),
        "log_tail": optional_key(TEXT),
    },
}
"""Keys of status.json."""
