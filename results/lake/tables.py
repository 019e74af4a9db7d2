"""Delta tables of a lake: their schemas, how to open them, and what is refused before a row is read."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyarrow import fs

from exitbench.errors import UserError
from exitbench.results.database.keys import KEYED
from exitbench.results.database.tables import schema_version, spelled, tables_of
from exitbench.results.ingest.manifest import OF_EVERY_DATABASE

if TYPE_CHECKING:
    from deltalake import DeltaTable, Schema

SHARED: Final = {
    **{"environment": ("env_id",), "hardware": ("hw_id",), "model_artifact": ("model_id",)},
    **{"dataset_artifact": ("data_id",), "cell": ("cell_id", "described_by")},
}
"""Tables whose rows many attempts share, with their keys; of a cell, a reader takes the newest description."""
LOADED: Final = ("attempt", *SHARED, "attempt_file", "metric", "training_run")
"""Tables that a reader loads; others have many rows per attempt and are queried in place."""
_CONFIGURATION: Final = {"delta.dataSkippingNumIndexedCols": "0"}
"""Column statistics would be most of the log."""
_LOG_BYTES: Final = 256 << 20
"""An attempt takes about 500 bytes of a table's log."""
_FILE: Final = re.compile(
    r"(?:([a-z0-9_]+)=([0-9A-Za-z-]{1,80})/)?part-[0-9]{5}-[0-9a-f-]{36}-c[0-9]{3}\.zstd\.parquet"
)
_LOG: Final = re.compile(r"[0-9]{20}\.json")
_BUCKET: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?", re.DOTALL)
_TYPES: Final = {
    **{"VARCHAR": "string", "JSON": "string", "BOOLEAN": "boolean", "TIMESTAMP": "timestamp_ntz"},
    **{"SMALLINT": "short", "INTEGER": "integer", "BIGINT": "long", "FLOAT": "float", "DOUBLE": "double"},
}


@dataclass(frozen=True)
class LakeTable:
    """Checked table of a lake.

    Attributes:
        name: Its name in the database.
        url: Where it is.
        delta: The table at one version.
        files: Value of the partition column, if there is one, by file.
    """

    name: str
    url: str
    delta: "DeltaTable"
    files: Mapping[str, str | None]

    def known(self) -> set[tuple[str, ...]]:
        """Return the keys of its rows."""
        if partitioned_by(self.name):
            return {(value,) for value in self.files.values() if value is not None}
        with explained(self.url):
            return set(
                zip(
                    *self.delta.to_pyarrow_table(columns=[*keys_by_table()[self.name]]).to_pydict().values(),
                    strict=True,
                )
            )


@cache
def keys_by_table() -> Mapping[str, tuple[str, ...]]:
    """Return the columns that identify what is appended at once, by table; tables that a reader loads come first."""
    names = (*LOADED, *sorted(tables_of(schema_version()).keys() - {*LOADED, *OF_EVERY_DATABASE}))
    return {name: {**SHARED, **KEYED}.get(name, ("attempt_id",)) for name in names}


def partitioned_by(table: str) -> list[str]:
    """Return the partition column of a table, if it has one."""
    return [] if table in LOADED or len(keys_by_table()[table]) > 1 else list(keys_by_table()[table])


def is_lake(text: str) -> bool:
    """Return whether a text is a URL, or a directory that looks like a lake."""
    return "://" in text or any(Path(text).glob("schema=*/attempt/_delta_log"))


def require_lake(lake: str) -> None:
    """Check that a text can name a lake, and that a directory has no links or special files.

    Raises:
        UserError: It does not, it has, or deltalake is not installed.
    """
    try:
        import deltalake as deltalake
    except ImportError as error:
        raise UserError(f"{lake}: needs deltalake. `pip install 'exitbench[lake]'` ({error})") from None
    if not lake or ("://" in lake and not _BUCKET.fullmatch(lake)):
        raise UserError(f"{lake!r} is not a lake. Allowed: a directory, s3://BUCKET or s3://BUCKET/PREFIX.")
    for folder, folders, files in os.walk(lake) if "://" not in lake else ():
        for path in (Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise UserError(f"{path}: is a link or a special file; a lake has neither.")


def listing(url: str, folder: str) -> dict[str, int]:
    """Return the sizes of files, and 0 for folders, by name in a folder of a lake; nothing if it does not exist."""
    from deltalake.fs import DeltaStorageHandler

    with explained(url):
        if "://" not in url:
            store = fs.SubTreeFileSystem(str(Path(url).absolute()), fs.LocalFileSystem())
        else:
            store = fs.PyFileSystem(DeltaStorageHandler(url, options(url)))
        found = store.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return {info.base_name: info.size or 0 for info in found}


def options(url: str) -> dict[str, str]:
    """Return storage options: plain HTTP only for an endpoint that the user names so."""
    if "://" not in url:
        return {}
    is_plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return {"max_retries": "4", "retry_timeout": "30s", "allow_http": str(is_plain).lower()}


def table_url(lake: str, name: str) -> str:
    """Return where a table of this version's schema is."""
    return f"{lake.rstrip('/')}/schema={schema_version()}/{name}"


def delta_schema(name: str) -> "Schema":
    """Return the schema of a table in a lake."""
    from deltalake.schema import ArrayType, Field, PrimitiveType, Schema

    fields = []
    for column, (duck, *_) in tables_of(schema_version())[name].items():
        element = PrimitiveType(_TYPES[duck.removesuffix("[]")])
        fields.append(Field(column, ArrayType(element) if duck.endswith("[]") else element))
    return Schema(fields)


def create_table(lake: str, name: str) -> None:
    """Create a table, unless another exporter has."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    url = table_url(lake, name)
    with suppress(DeltaError), explained(url):
        DeltaTable.create(
            *(url, delta_schema(name)),
            partition_by=partitioned_by(name),
            configuration=_CONFIGURATION,
            storage_options=options(url),
        )


def open_table(lake: str, name: str) -> LakeTable | None:
    """Open a table of a lake; return None if there is none.

    Raises:
        UserError: Its log is too large, its schema is not this version's, or its log names other files than ExitBench.
    """
    from deltalake import DeltaTable

    url = table_url(lake, name)
    logs = listing(url, "_delta_log")
    if not logs:
        return None
    if sum(logs.values()) > _LOG_BYTES:
        raise UserError(f"{url}: its log has more than {_LOG_BYTES} bytes.")
    if strange := next((log for log in logs if not _LOG.fullmatch(log)), None):
        raise UserError(f"{url}: its log has {spelled(strange)}; ExitBench writes no checkpoints.")
    with explained(url):
        table = DeltaTable(url, storage_options=options(url))
        protocol, metadata, schema = table.protocol(), table.metadata(), table.schema()
        files = pa.table(table.get_add_actions())["path"].to_pylist()
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    for what, is_ours in {
        "columns": schema == delta_schema(name),
        "partitions": metadata.partition_columns == partitioned_by(name),
        "properties": metadata.configuration == _CONFIGURATION,
        "features of Delta Lake": features <= {"timestampNtz"},
    }.items():
        if not is_ours:
            raise UserError(f"{url}: has other {what} than ExitBench writes in schema {schema_version()}.")
    found = {file: _FILE.fullmatch(file) for file in files}
    for file, parts in found.items():
        if parts is None or [parts[1]] != (partitioned_by(name) or [None]):
            raise UserError(f"{url}: its log names the file {spelled(file)}, which ExitBench does not write.")
    return LakeTable(name, url, table, {file: parts[2] for file, parts in found.items() if parts is not None})


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turn errors of deltalake, Arrow and the operating system into one sentence; conflicts of commits pass."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except CommitFailedError:
        raise
    except (DeltaError, OSError, ValueError, pa.ArrowException) as error:
        text = " ".join(re.sub(r"\x1b\[[0-9;]*m|↳", "", str(error)).split())
        if "169.254.169.254" in text:
            text = "no credentials were found in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE or a role"
        raise UserError(f"{where}: cannot be read or written: {text[:400]}") from None
