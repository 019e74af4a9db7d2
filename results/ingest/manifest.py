"""Checks of snapshots: that manifest and files are valid, and that their rows are consistent.

Snapshots are third-party files. Names in them are used in paths or SQL only after they are known to be declared names.
Links are not followed, and the size of a file is checked before it is opened. Then ids, values and references between
rows are checked.
"""

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import duckdb

from exitbench.errors import UserError
from exitbench.results.database.connection import sandbox
from exitbench.results.database.tables import (
    ColumnDefinition,
    declared_tables,
    printable,
    quoted,
    quoted_text,
    require_columns,
)
from exitbench.results.files.arrow import parquet_path
from exitbench.results.files.atomic import check_digest, read_json
from exitbench.results.spool.schema import STATUSES
from exitbench.results.tables import REFERENCES, SCHEMA_VERSION, TABLES

MANIFEST: Final = "manifest.json"
FORMAT: Final = "exitbench-snapshot-1"
_LARGEST_BYTES: Final = 1_000_000
_ROWS_PER_BYTE: Final = 100
_FEW_ROWS: Final = 1_000_000
_MAX_SHOWN_CHARS: Final = 200
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Manifest:
    """Contents of a snapshot's manifest.

    Attributes:
        tables: SHA-256 of every table's file, by table.
        rows: Number of rows of every table, by table.
        texts_left_out_of: Labels of the data sets whose texts the snapshot omits. If there are any, it also omits the
            texts of token ids.
    """

    tables: dict[str, str]
    rows: dict[str, int]
    texts_left_out_of: tuple[str, ...]

    @classmethod
    def claimed(cls, folder: Path) -> "Manifest":
        """Read the manifest of a snapshot without reading the tables' files, whose digests are not checked.

        Raises:
            UserError: The folder is not a snapshot that this version can read. Or a table is unknown or missing, or
                its file is not a regular file or too small for its number of rows.
        """
        path = folder / MANIFEST
        if _size_of(path) > _LARGEST_BYTES:
            raise UserError(f"{path}: is larger than {_LARGEST_BYTES} bytes, the largest possible size of a manifest.")
        record = read_json(path)
        if record.get("format") != FORMAT:
            raise UserError(f"{path}: format is {printable(str(record.get('format')))}, not {FORMAT!r}.")
        _require_version(path, record.get("schema_version"))
        tables = _tables(path, record.get("tables"))
        labels = record.get("texts_left_out_of")
        if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
            raise UserError(f"{path}: texts_left_out_of is not a list of labels.")
        rows = {name: table["rows"] for name, table in tables.items()}
        for name, count in rows.items():
            file = _file(folder, name)
            _require_plausible(count, _size_of(file), str(file))
        return cls({name: table["sha256"] for name, table in tables.items()}, rows, tuple(labels))

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the manifest of a snapshot and check the digest of every table's file.

        Raises:
            UserError: As for `claimed`, or a file was changed.
        """
        manifest = cls.claimed(folder)
        for name, digest in manifest.tables.items():
            check_digest(_file(folder, name), digest)
        return manifest

    def columns(self, folder: Path) -> dict[str, tuple[str, ...]]:
        """Return the column names of every table's file, by table, after checking that they are declared columns.

        Raises:
            UserError: A file is not Parquet or has another number of rows than the manifest says. Or it has an unknown
                column, a column of another type, or lacks a column that must not be NULL.
        """
        files = [_file(folder.absolute(), name) for name in self.tables]
        with TemporaryDirectory(prefix="exitbench-") as spilled, sandbox(files, Path(spilled)) as duck:
            return {name: _columns(duck, folder, name, self) for name in self.tables}


def table_rows(folder: Path, table: str) -> str:
    """Return an SQL expression for the rows of a snapshot's table, to be used after FROM."""
    return f"read_parquet({quoted_text(parquet_path(_file(folder, table)))}, hive_partitioning=false)"


def _file(folder: Path, table: str) -> Path:
    return folder / f"{table}.parquet"


def _require_version(path: Path, version: Any) -> None:
    if type(version) is not int or version != SCHEMA_VERSION:
        raise UserError(
            f"{path}: schema_version is {printable(str(version))}; this version of ExitBench reads {SCHEMA_VERSION} "
            "only. Read it with the version that wrote it, or export the rebuilt database again."
        )


def _tables(path: Path, tables: Any) -> Mapping[str, Mapping[str, Any]]:
    """Return the entry `tables` of a manifest, after checking that it lists every table with valid rows and digest.

    Raises:
        UserError: A table is unknown, missing or incomplete; the message names it.
    """
    if not isinstance(tables, dict):
        raise UserError(f"{path}: tables is not an object of tables by name.")
    _require_known(tables, str(path))
    if missing := sorted(name for name, table in TABLES.items() if not table.local and name not in tables):
        raise UserError(f"{path}: lacks {', '.join(missing)}, which every snapshot has.")
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise UserError(f"{path}: tables.{name} is not an object with rows and sha256.")
        rows, digest = table.get("rows"), table.get("sha256")
        if type(rows) is not int or rows < 0:
            raise UserError(f"{path}: tables.{name}.rows is {printable(str(rows))}. Allowed: a whole number from 0 on.")
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise UserError(f"{path}: tables.{name}.sha256 is {printable(str(digest))}, not 64 hexadecimal digits.")
    return tables


def _require_known(tables: Mapping[str, object], location: str) -> None:
    """Check that all tables are declared.

    Raises:
        UserError: A table is not declared; the message names it.
    """
    for name in tables:
        if name not in TABLES:
            raise UserError(
                f"{location} has a table {printable(name)}, which no result database has. "
                f"Allowed: {', '.join(sorted(TABLES))}."
            )


def _require_plausible(rows: int, size_bytes: int, location: str) -> None:
    """Check that a file's claimed number of rows is plausible for its size.

    Raises:
        UserError: The file claims more rows than a file of its size can have.
    """
    if rows > _FEW_ROWS + _ROWS_PER_BYTE * size_bytes:
        raise UserError(
            f"{location} has {rows} rows in a file of {size_bytes} bytes. Allowed: {_ROWS_PER_BYTE} per byte."
        )


def _size_of(path: Path) -> int:
    """Return the size in bytes of a regular file.

    Raises:
        UserError: The file is missing or cannot be read, or is a link, a pipe or a device.
    """
    try:
        info = path.lstat()
    except FileNotFoundError as error:
        raise UserError(f"{path}: is missing.") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(info.st_mode):
        raise UserError(f"{path}: is {'a link' if stat.S_ISLNK(info.st_mode) else 'not a file'}; only files are read.")
    return info.st_size


def _columns(duck: duckdb.DuckDBPyConnection, folder: Path, table: str, manifest: Manifest) -> tuple[str, ...]:
    path, rows = _file(folder, table), table_rows(folder.absolute(), table)
    try:
        described = duck.execute(f"DESCRIBE FROM {rows}").fetchall()
        ((count,),) = duck.execute(f"SELECT count(*) FROM {rows}").fetchall()
    except (duckdb.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as Parquet: {ascii(str(error))[1:_MAX_SHOWN_CHARS]}") from error
    columns = {name: ColumnDefinition(_in_parquet(kind), True, None, False) for name, kind, *_ in described}
    expected = {
        name: column._replace(type=_in_parquet(column.type))
        for name, column in declared_tables()[table].items()
        if name in columns or not column.nullable
    }
    require_columns(columns, expected, str(path))
    if count != manifest.rows[table]:
        raise UserError(f"{path}: has {count} rows; {MANIFEST} says {manifest.rows[table]}.")
    return tuple(columns)


def _in_parquet(kind: str) -> str:
    """Return the type that a column of a DuckDB type has in a Parquet file: JSON is stored as text."""
    return "VARCHAR" if kind == "JSON" else kind


_IDS: Final = (
    ("attempt", "attempt_id", "[0-9]{8}T[0-9]{12}Z-[0-9a-f]{8}"),
    ("cell", "cell_id", "[0-9a-f]{64}"),
)
"""Ids that are names of folders in the spool."""
_POSITIONS_FROM_0: Final = ("timing_sample", "energy_sample")
"""Tables whose position is an index in the order of arms, not of a token."""
_BLOCKS: Final = (
    "(SELECT attempt_id, blocks FROM ({attempt}) JOIN ({cell}) USING (cell_id) "
    "JOIN ({model_artifact}) USING (model_id))"
)


def require_sound(duck: Any, sources: Mapping[str, str], location: str) -> None:
    """Check the ids, references and values of third-party rows.

    Args:
        duck: DuckDB connection that can read the rows.
        sources: SQL expression for every table's rows, to be used after FROM, by table.
        location: Origin of the rows, for messages.

    Raises:
        UserError: An id, a status, an exit layer or a position is invalid, or a row refers to a missing row of another
            table, such as an attempt; the message names it.
    """
    for table, column, pattern in _IDS:
        bad_id = duck.execute(
            f"SELECT {quoted(column)} FROM {sources[table]} WHERE NOT regexp_full_match({quoted(column)}, $1) LIMIT 1",
            [pattern],
        ).fetchone()
        if bad_id is not None:
            raise UserError(f"{location}: {table}.{column} {printable(bad_id[0])} is not an id in ExitBench's format.")
    for table, column, owner in REFERENCES:
        # Tables that grow later may be in a snapshot without their attempts.
        if TABLES[table].grows_later or table not in sources or owner not in sources:
            continue
        key = quoted(column)
        n, example = duck.execute(
            f"SELECT count(*), min({key}) FROM (SELECT {key} FROM {sources[table]}) ANTI JOIN "
            f"(SELECT {key} FROM {sources[owner]}) USING ({key})"
        ).fetchone()
        if n:
            raise UserError(
                f"{location}: {n} rows of {table} refer to a {column} that is missing in {owner}, such as "
                f"{printable(example)}. Nothing is imported."
            )
    _require_values(duck, sources, location)


def _require_values(duck: Any, sources: Mapping[str, str], location: str) -> None:
    """Check that statuses are known, exit layers are blocks of the model, and positions count from 1.

    Arguments and errors as in `require_sound`.
    """
    selected = {table: f"SELECT * FROM {source}" for table, source in sources.items()}
    statuses = ", ".join(f"'{status}'" for status in STATUSES)
    for table, columns in declared_tables().items():
        if table not in sources:
            continue
        faults: list[tuple[str, str, str]] = []
        if table == "attempt":
            faults.append(("status", f"status NOT IN ({statuses})", ", ".join(STATUSES)))
        if "position" in columns and table not in _POSITIONS_FROM_0:
            faults.append(("position", "position < 1", "1 and more"))
        if "exit_layer" in columns and "attempt_id" in columns:
            low, high = ("list_min({})", "list_max({})") if columns["exit_layer"].type.endswith("[]") else ("{}", "{}")
            wrong = f"{low.format('exit_layer')} < 1 OR {high.format('exit_layer')} > blocks"
            faults.append(("exit_layer", wrong, "1 to the model's number of blocks"))
        for column, wrong, allowed in faults:
            rows = f"({selected[table]})"
            if "blocks" in wrong:
                rows += f" JOIN {_BLOCKS.format(**selected)} USING (attempt_id)"
            bad = duck.execute(f"SELECT {column} FROM {rows} WHERE {wrong} LIMIT 1").fetchone()
            if bad is not None:
                raise UserError(f"{location}: {table}.{column} has {printable(str(bad[0]))}. Allowed: {allowed}.")
