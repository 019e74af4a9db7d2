"""Lake manifests: what one says, and whether it can be believed before a file that it speaks of is opened."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from exitbench import __version__
from exitbench.errors import UserError
from exitbench.results.database.tables import declared_tables, spelled
from exitbench.results.files.bounded import ROWS_PER_BYTE
from exitbench.results.files.values import LONG, OBJECT, TEXT, TEXTS, Keys, first_fault, of_form, one_of, whole
from exitbench.results.lake.layout import Kind, file_name, kinds, manifest_name
from exitbench.results.spool.schema import ATTEMPT_ID, SHA256
from exitbench.results.tables import SCHEMA_VERSION

FORMAT: Final = "exitbench-lake-1"
LARGEST_BYTES: Final = 16 << 20
"""Identities, packages and metrics of an attempt are some 10 kB."""

_KEYS: Final[Keys] = {
    "": {
        "format": one_of((FORMAT,)),
        "schema_version": whole(1, 10**6),
        "exitbench": TEXT,
        "kind": TEXT,
        "key": TEXTS,
        "rows": OBJECT,
        "files": OBJECT,
    }
}
_FILE_KEYS: Final[Keys] = {"": {"rows": LONG, "bytes": LONG, "sha256": of_form("64 hexadecimal digits", SHA256)}}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class LakeFile:
    """A file of rows: its name in the lake and what it should be."""

    table: str
    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What is in a lake as one.

    Attributes:
        kind: What kind of thing it is.
        key: Values of the kind's keys.
        rows: Rows of the kind's few-rowed tables, whole.
        files: Files of its others.
    """

    kind: Kind
    key: tuple[str, ...]
    rows: Mapping[str, tuple[Row, ...]]
    files: tuple[LakeFile, ...]

    def to_json(self) -> bytes:
        """Return the file's content."""
        files = {file.table: {"rows": file.rows, "bytes": file.bytes, "sha256": file.sha256} for file in self.files}
        record = {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "exitbench": __version__,
            "kind": self.kind.name,
            "key": list(self.key),
            "rows": {table: list(rows) for table, rows in self.rows.items()},
            "files": files,
        }
        return json.dumps(record, indent=1, ensure_ascii=False).encode()

    @classmethod
    def read(cls, content: bytes, name: str, where: str) -> "Manifest":
        """Check what a manifest says.

        Args:
            content: The file's bytes.
            name: Its name in the lake.
            where: The same for messages.

        Raises:
            UserError: It is torn, of another schema, not of its name, or speaks of what no lake has.
        """
        record = _record(content, where)
        if record["schema_version"] != SCHEMA_VERSION:
            raise UserError(f"{where}: is of schema {record['schema_version']}, in the folder of {SCHEMA_VERSION}.")
        if record["kind"] not in kinds():
            raise UserError(f"{where}: kind is {spelled(record['kind'])}. Allowed: {', '.join(kinds())}.")
        kind, key = kinds()[record["kind"]], tuple(record["key"])
        if len(key) != len(kind.keys) or manifest_name(kind, key) != name:
            raise UserError(f"{where}: is the manifest of another {kind.name}, or renamed.")
        if not (ATTEMPT_ID if kind.of_attempt else SHA256).fullmatch(key[0]):
            raise UserError(f"{where}: key {spelled(key[0])} is no {kind.keys[0]} that ExitBench gives.")
        rows = _rows(record["rows"], kind, key, where)
        partition = partition_of(kind, key, rows, where)
        return cls(kind, key, rows, tuple(_files(record["files"], kind, partition, where)))


def partition_of(kind: Kind, key: tuple[str, ...], rows: Mapping[str, tuple[Row, ...]], where: str) -> dict[str, str]:
    """Return the values that files' folders are named by: of an attempt the model's, the task's and the method's first.

    Raises:
        UserError: Rows that say them are missing or not text.
    """
    first = {kind.keys[0]: key[0]}
    if kind.name != "attempt":
        return first
    told = (("model", "model_artifact", "name"), ("task", "dataset_artifact", "label"), ("method", "cell", "method"))
    values = {}
    for column, table, name in told:
        if len(rows[table]) != 1 or not isinstance(value := rows[table][0][name], str):
            raise UserError(f"{where}: rows.{table} is not one row with a text {name}.")
        values[column] = value
    return {**values, **first}


def _record(content: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(content.decode("utf-8"))
        if b"\\u" in content:  # half of a surrogate pair is no text
            json.dumps(record, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: is not JSON, or torn: {str(error)[:200]}") from None
    fault = first_fault(record, _KEYS) if isinstance(record, dict) else "is not an object."
    if fault is not None:
        raise UserError(f"{where}: {fault}")
    return dict(record)


def _rows(told: Mapping[str, Any], kind: Kind, key: tuple[str, ...], where: str) -> dict[str, tuple[Row, ...]]:
    _require_exactly(told, kind.within, f"{where}: rows")
    rows: dict[str, tuple[Row, ...]] = {}
    for table in kind.within:
        columns = declared_tables()[table].keys()
        if not isinstance(told[table], list) or not all(isinstance(row, dict) for row in told[table]):
            raise UserError(f"{where}: rows.{table} is not a list of objects.")
        for row in told[table]:
            _require_exactly(row, columns, f"{where}: rows.{table}")
            if any(row[name] != value for name, value in zip(kind.keys, key, strict=True) if name in columns):
                raise UserError(f"{where}: rows.{table} has a row of another {kind.name}.")
        rows[table] = tuple(told[table])
    return rows


def _files(told: Mapping[str, Any], kind: Kind, partition: Mapping[str, str], where: str) -> Iterable[LakeFile]:
    for table, file in told.items():
        if table not in kind.files:
            raise UserError(f"{where}: files has {spelled(table)}. Allowed: {', '.join(kind.files)}.")
        if fault := first_fault(file, _FILE_KEYS) if isinstance(file, dict) else "is not an object.":
            raise UserError(f"{where}: files.{table}: {fault}")
        rows, size = file["rows"], file["bytes"]
        if rows > ROWS_PER_BYTE * size:
            raise UserError(f"{where}: files.{table} claims {rows} rows in {size} bytes.")
        yield LakeFile(table, file_name(table, partition, file["sha256"]), rows, size, file["sha256"])


def _require_exactly(told: Mapping[str, Any], names: Iterable[str], where: str) -> None:
    expected = tuple(names)
    if unknown := next((name for name in told if name not in expected), None):
        raise UserError(f"{where} has {spelled(unknown)}. Allowed: {', '.join(expected)}.")
    if missing := next((name for name in expected if name not in told), None):
        raise UserError(f"{where} lacks {missing}.")
