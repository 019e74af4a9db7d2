"""Delta tables of a lake: their schemas, opening them, and the checks before a row is read."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.schema import ArrayType, Field, PrimitiveType, Schema
from pyarrow import fs

from exitbench.errors import UserError
from exitbench.results.database.tables import declared_tables, printable
from exitbench.results.tables import ARTIFACTS, KEYS, SCHEMA_VERSION, TABLES

SHARED: Final = {**{name: TABLES[name].key for name in ARTIFACTS}, "cell": ("cell_id", "described_by")}
"""Tables whose rows many attempts share, with their keys; for a cell, a reader takes the newest description."""
LOADED: Final = ("attempt", *SHARED, "attempt_file", "metric", "training_run")
"""Tables that a reader loads; others have many rows per attempt and are queried in place."""
_CONFIGURATION: Final = {"delta.dataSkippingNumIndexedCols": "0"}
"""Column statistics would be most of the log."""
_LOG_BYTES: Final = 256 << 20
"""An attempt takes about 500 bytes of a table's log."""
_COMMIT: Final = re.compile(r"[0-9]{20}\.json")
_LOG: Final = re.compile(rf"{_COMMIT.pattern}(#[0-9]+)?|_commit_[0-9a-f-]{{36}}\.json\.tmp")
_FILE: Final = re.compile(
    r"(?:([a-z0-9_]+)=([0-9A-Za-z-]{1,80})/)?part-[0-9]{5}-[0-9a-f-]{36}-c[0-9]{3}\.zstd\.parquet"
)
_BUCKET: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?", re.DOTALL)
_TYPES: Final = {
    **{"VARCHAR": "string", "JSON": "string", "BOOLEAN": "boolean", "TIMESTAMP": "timestamp_ntz"},
    **{"SMALLINT": "short", "INTEGER": "integer", "BIGINT": "long", "FLOAT": "float", "DOUBLE": "double"},
}


@dataclass(frozen=True)
class LakeTable:
    """Delta table of a lake, checked and open at one version; `files` maps each file to its partition's attempt id.

    The attempt id is None for files of a table without partitions.
    """

    name: str
    url: str
    delta: DeltaTable
    files: Mapping[str, str | None]

    def row_keys(self) -> set[tuple[str, ...]]:
        """Return the distinct values of the table's key columns, as listed in `key_columns`."""
        if partitioned_by(self.name):
            return {(value,) for value in self.files.values() if value is not None}
        with as_user_errors(self.url):
            columns = self.delta.to_pyarrow_table(columns=[*key_columns()[self.name]]).to_pydict().values()
        return set(zip(*columns, strict=True))


@cache
def key_columns() -> Mapping[str, tuple[str, ...]]:
    """Return, by table, the columns whose values identify a group of rows that is appended in one commit.

    The small tables, whose rows `open_lake` loads, come first.
    """
    not_loaded = (name for name, table in TABLES.items() if name not in LOADED and not table.local)
    return {name: {**SHARED, **KEYS}.get(name, ("attempt_id",)) for name in (*LOADED, *sorted(not_loaded))}


def partitioned_by(name: str) -> list[str]:
    """Return the partition columns of a lake's table: one, or none."""
    return [] if name in LOADED or len(key_columns()[name]) > 1 else [*key_columns()[name]]


def require_lake(lake: str) -> None:
    """Raise UserError if a text names no directory or bucket, or if the directory contains links or special files."""
    if not lake or ("://" in lake and not _BUCKET.fullmatch(lake)):
        raise UserError(f"{lake!r} is not a lake. Allowed: a directory, s3://BUCKET or s3://BUCKET/PREFIX.")
    for folder, folders, files in os.walk(lake) if "://" not in lake else ():
        for path in (Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise UserError(f"{path}: is a link or a special file; a lake has neither.")


def listing(url: str, folder: str) -> dict[str, int]:
    """Return the names in a folder of a lake, with file sizes (0 for folders); empty if the folder does not exist."""
    with as_user_errors(url):
        if "://" in url:
            store = fs.PyFileSystem(DeltaStorageHandler(url, options(url)))
        else:
            store = fs.SubTreeFileSystem(str(Path(url).absolute()), fs.LocalFileSystem())
        infos = store.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return {info.base_name: info.size or 0 for info in infos}


def options(url: str) -> dict[str, str]:
    """Return deltalake's storage options for a bucket; none for a directory.

    Plain HTTP is allowed only if the user's AWS_ENDPOINT_URL begins with ``http://``.
    """
    is_plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    of_stores = {"max_retries": "4", "retry_timeout": "30s", "allow_http": str(is_plain).lower()}
    return of_stores if "://" in url else {}


def table_url(lake: str, name: str) -> str:
    """Return the URL of a lake's table in this version's schema."""
    return f"{lake.rstrip('/')}/schema={SCHEMA_VERSION}/{name}"


def create_table(lake: str, name: str) -> None:
    """Create an empty table in a lake, unless another exporter has created it in the meantime."""
    url, by = table_url(lake, name), partitioned_by(name)
    with as_user_errors(url), suppress(DeltaError):
        DeltaTable.create(url, _schema(name), "error", by, configuration=_CONFIGURATION, storage_options=options(url))


def open_table(lake: str, name: str) -> LakeTable | None:
    """Open a table of a lake; return None if there is none, or one without a commit: another exporter is creating it.

    Raises:
        UserError: The log is too large, the schema is another version's, or the log lists files with names that
            ExitBench does not write.
    """
    url, by = table_url(lake, name), partitioned_by(name)
    logs = listing(url, "_delta_log")
    if sum(logs.values()) > _LOG_BYTES:
        raise UserError(f"{url}: its log has more than {_LOG_BYTES} bytes.")
    if strange := [log for log in logs if not _LOG.fullmatch(log)]:
        raise UserError(f"{url}: its log has {printable(strange[0])}; ExitBench writes no checkpoints.")
    if not any(map(_COMMIT.fullmatch, logs)):
        return None
    with as_user_errors(url):
        table = DeltaTable(url, storage_options=options(url))
        protocol, metadata, schema = table.protocol(), table.metadata(), table.schema()
        files = {file: _FILE.fullmatch(file) for file in pa.table(table.get_add_actions())["path"].to_pylist()}
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    differs = {
        "columns": schema != _schema(name),
        "partitions": metadata.partition_columns != by,
        "properties": metadata.configuration != _CONFIGURATION,
        "features of Delta Lake": not features <= {"timestampNtz"},
        **{
            f"files ({printable(file)})": not parts or [*filter(None, parts.groups()[:1])] != by
            for file, parts in files.items()
        },
    }
    if wrong := next((what for what, is_other in differs.items() if is_other), None):
        raise UserError(f"{url}: has other {wrong} than ExitBench writes in schema {SCHEMA_VERSION}.")
    return LakeTable(name, url, table, {file: parts[2] for file, parts in files.items() if parts})


@contextmanager
def as_user_errors(location: str) -> Iterator[None]:
    """Convert errors of deltalake, Arrow and the operating system to a UserError of one sentence about `location`."""
    try:
        yield
    except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
        text = " ".join(re.sub(r"\x1b\[[0-9;]*m|↳", "", str(error)).split())
        if "169.254.169.254" in text:
            text = "no credentials were found in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a role"
        raise UserError(f"{location}: cannot be read or written: {text[:400]}") from None


def _schema(name: str) -> Schema:
    """Return the Delta Lake schema of a database table."""
    types = {column: declared.type for column, declared in declared_tables()[name].items()}
    elements = {column: PrimitiveType(_TYPES[duck.removesuffix("[]")]) for column, duck in types.items()}
    return Schema(
        [
            Field(column, ArrayType(elements[column]) if duck.endswith("[]") else elements[column])
            for column, duck in types.items()
        ]
    )
