"""Which rows of a database belong together in a lake, and what their files are called.

Names are made of values that were checked or encoded, here and nowhere else: a reader makes them anew from what a
manifest says, so that no name of somebody else's is ever a path.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import quote

from exitbench.results.files.canonical import canonical_json
from exitbench.results.spool.schema import ATTEMPT_ID
from exitbench.results.tables import SCHEMA_VERSION, TABLES

_CATALOGUE: Final = ("environment", "hardware", "model_artifact", "dataset_artifact", "cell", "attempt")
_MOST: Final = 80
"""Characters of a value in a name, which file systems allow 255 of."""
_SCHEMA_FOLDER: Final = re.compile(r"schema=([1-9][0-9]{0,5})")


@dataclass(frozen=True)
class Kind:
    """What is exported at one go, with a manifest of its own.

    Attributes:
        name: Also the folder of its manifests.
        keys: Columns by which its rows are found.
        within: Tables whose few rows are in the manifest, since nearly every query needs them.
        files: Tables that have a Parquet file.
        of_attempt: Whether it hangs on an attempt; else its key is a digest.
    """

    name: str
    keys: tuple[str, ...]
    within: tuple[str, ...]
    files: tuple[str, ...]
    of_attempt: bool


@cache
def kinds() -> Mapping[str, Kind]:
    """Return every kind, by name."""
    of_attempts = (table for table in TABLES.values() if table.is_of_attempts and not table.grows_later)
    traces = tuple(table.name for table in of_attempts if table.name != "attempt_file")
    return {
        kind.name: kind
        for kind in (
            Kind("attempt", ("attempt_id",), (*_CATALOGUE, "attempt_file", "metric"), traces, of_attempt=True),
            Kind("rescore", ("attempt_id", "metric_version"), ("metric",), ("sample_rescore",), of_attempt=True),
            Kind("tag", ("attempt_id", "tagger"), (), ("token_tag",), of_attempt=True),
            Kind("training", ("weights_sha256",), ("training_run",), ("training_log",), of_attempt=False),
            Kind("vocabulary", ("tokenizer_sha256",), (), ("token_text",), of_attempt=False),
            Kind("perf", ("perf_run_id",), (), ("perf_sample",), of_attempt=False),
        )
    }


def file_tables() -> tuple[str, ...]:
    """Return every table that has Parquet files."""
    return tuple(table for kind in kinds().values() for table in kind.files)


def partition_column(table: str) -> str:
    """Return the column of a table's rows that is in the names of folders and not in the files."""
    (column,) = (kind.keys[0] for kind in kinds().values() if table in kind.files)
    return column


def root() -> str:
    """Return the folder of this schema's files."""
    return f"schema={SCHEMA_VERSION}"


def is_lake(text: str) -> bool:
    """Return whether a text names a store, or a folder that looks like a lake."""
    return "://" in text or any(Path(text).glob("schema=*/manifests"))


def schemas(names: Mapping[str, int]) -> set[int]:
    """Return the schemas of which a lake has files."""
    folders = (_SCHEMA_FOLDER.fullmatch(name.partition("/")[0]) for name in names)
    return {int(found[1]) for found in folders if found}


def manifests(kind: Kind | None = None) -> str:
    """Return the folder of manifests; of a kind or of all."""
    return f"{root()}/manifests" + (f"/{kind.name}" if kind is not None else "")


def manifest_name(kind: Kind, key: tuple[str, ...]) -> str:
    """Return the name of a manifest."""
    return f"{manifests(kind)}/{_stem(key)}.json"


def file_name(table: str, partition: Mapping[str, str], sha256: str) -> str:
    """Return the name of a file of rows.

    Args:
        table: One of `file_tables`.
        partition: Values by column, in order.
        sha256: The file's digest.
    """
    folders = (f"{column}={encoded(value)}" for column, value in partition.items())
    return "/".join((root(), f"table={table}", *folders, f"{sha256[:32]}.parquet"))


def encoded(value: str) -> str:
    """Return a value as the part of a name: letters, digits and _.-~, else in percent; a long one with its digest."""
    text = quote(value, safe="")
    return text if len(text) <= _MOST else f"{quote(value[: _MOST // 4], safe='')[:_MOST]}~{_digest(value)[:16]}"


def _stem(key: tuple[str, ...]) -> str:
    (first, *others) = key
    return first if not others and ATTEMPT_ID.fullmatch(first) else _digest(canonical_json(list(key)))[:32]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
