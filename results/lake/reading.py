"""Open a lake as a database: manifests become rows of a small one, Parquet files the tables beneath the same views.

Of a query's files only those are opened that its runs have: joined by attempt, DuckDB leaves out the folders of others.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import duckdb

from exitbench.errors import UserError, told
from exitbench.results.database.access_lock import AccessLock
from exitbench.results.database.connection import Database, open_database
from exitbench.results.database.sandbox import NO_EXTENSIONS, attach_sql
from exitbench.results.database.tables import declared_tables, quoted, quoted_text
from exitbench.results.files.memory import in_memory, lock_settings
from exitbench.results.ingest.soundness import require_sound
from exitbench.results.lake.export import parquet_schema
from exitbench.results.lake.layout import file_tables, kinds, manifest_name, manifests, schemas
from exitbench.results.lake.manifest import LARGEST_BYTES, LakeFile, Manifest, Row
from exitbench.results.lake.places import Place, place_of, read_all
from exitbench.results.lake.served import PROTOCOL, Served, all_files
from exitbench.results.tables import SCHEMA_VERSION

_PLANNING: Final = ("disabled_optimizers = 'join_order'", "dynamic_or_filter_threshold = 100000")
"""Views join what runs are called to their rows, in this order: then only files of the attempts left are opened.

DuckDB knows too little of files to find a better order, and leaves out files for up to 50 attempts unless told so.
"""
_NAMED_BY: Final = {
    "environment": "env_id",
    "hardware": "hw_id",
    "model_artifact": "model_id",
    "dataset_artifact": "data_id",
    "cell": "cell_id",
    "training_run": "weights_sha256",
}
"""Tables of which many manifests have the same row, and its key."""


def open_lake(text: str) -> Database:
    """Open a lake for reading: every view, saved query and table is there as in a database.

    Args:
        text: A folder, or s3://BUCKET/PREFIX.

    Raises:
        UserError: As `place_of` and `read_manifests`.
    """
    place = place_of(text)
    return open_manifests(place, read_manifests(place))


def read_manifests(place: Place) -> list[Manifest]:
    """Return every manifest of this version's schema, those of each kind by name.

    Raises:
        UserError: There is no lake, or only one of other schemas; or a manifest is not what one can be: names it.
    """
    names = sorted(name for name in place.sizes(manifests()) if name.endswith(".json"))
    of_kind = [name for name in names if name.split("/")[-2] in kinds()]
    if not of_kind:
        raise _no_lake(place)
    return [
        Manifest.read(content, name, f"{place.where}/{name}")
        for name, content in read_all(place, of_kind, LARGEST_BYTES)
    ]


def open_manifests(place: Place, found: Sequence[Manifest]) -> Database:
    """Open what manifests name.

    Raises:
        UserError: Their rows are of other types, or refer to what is not there.
    """
    folder = TemporaryDirectory(prefix="exitbench-")
    try:
        path = Path(folder.name) / "lake.duckdb"
        with open_database(path, read_only=False) as database:
            types = {table: parquet_schema(database.duck, table) for table in file_tables()}
            _insert(database.duck, place, found)
        served = Served(place, _by_table(found), types)
        duck = _connection(path, served)
    except BaseException:
        folder.cleanup()
        raise
    return Database(Path(place.where), duck, AccessLock(None), folder, fault=lambda error: served.trouble or str(error))


def _no_lake(place: Place) -> UserError:
    others = sorted(schemas(place.sizes("")))
    if not others:
        return UserError(f"{place.where}: there is no lake. `exitbench export lake {place.where}` makes one.")
    return UserError(
        f"{place.where}: has results of schema {', '.join(map(str, others))}; this version of ExitBench reads "
        f"{SCHEMA_VERSION} only. Export the databases again with this version, beside it."
    )


def _by_table(found: Sequence[Manifest]) -> dict[str, list[LakeFile]]:
    """Files by table, one of middling size first: DuckDB takes it for a picture of the others when it plans a query."""
    of_table: dict[str, list[LakeFile]] = {}
    for manifest in found:
        for file in manifest.files:
            of_table.setdefault(file.table, []).append(file)
    for files in of_table.values():
        mean = sum(file.rows for file in files) / len(files)
        middling = min(files, key=lambda file: abs(file.rows - mean))
        files.remove(middling)
        files.insert(0, middling)
    return of_table


def _insert(duck: duckdb.DuckDBPyConnection, place: Place, found: Sequence[Manifest]) -> None:
    rows: dict[str, list[Row]] = {}
    for manifest in found:
        for table, of_table in manifest.rows.items():
            rows.setdefault(table, []).extend(of_table)
    try:
        for table, every in rows.items():
            duck.execute(
                f"INSERT INTO {quoted(table)} BY NAME {_typed(table)}", [_json(_once(table, every))]
            ).fetchall()
    except duckdb.Error as error:
        raise _first_wrong(duck, place, found) or UserError(f"{place.where}: {told(error)}") from None
    require_sound(duck, {table: quoted(table) for table in rows}, place.where)


def _once(table: str, rows: Sequence[Row]) -> Sequence[Row]:
    """Rows without those that others repeat; a cell is called what its latest attempt calls it."""
    if table not in _NAMED_BY:
        return rows
    if table == "cell":
        rows = sorted(rows, key=lambda row: str(row["described_by"]))
    return list({row[_NAMED_BY[table]]: row for row in rows}.values())


def _typed(table: str) -> str:
    """SQL that makes rows of JSON text, every value of its column's type."""
    columns = declared_tables()[table]
    kinds_of = {name: "VARCHAR" if column.type == "JSON" else column.type for name, column in columns.items()}
    shape = {name: [kind.removesuffix("[]")] if kind.endswith("[]") else kind for name, kind in kinds_of.items()}
    return f"SELECT unnest(row) FROM (SELECT unnest(from_json_strict($1, {quoted_text(json.dumps([shape]))})) AS row)"


def _json(rows: Iterable[Row]) -> str:
    return json.dumps(list(rows), ensure_ascii=False)


def _first_wrong(duck: duckdb.DuckDBPyConnection, place: Place, found: Sequence[Manifest]) -> UserError | None:
    for manifest in found:
        for table, rows in manifest.rows.items():
            try:
                duck.execute(f"SELECT count(*) FROM ({_typed(table)})", [_json(rows)]).fetchall()
            except duckdb.Error as error:
                name = manifest_name(manifest.kind, manifest.key)
                return UserError(f"{place.where}/{name}: rows.{table} do not fit: {told(error)}")
    return None


def _connection(path: Path, served: Served) -> duckdb.DuckDBPyConnection:
    """Return a connection that reads the rows and the lake's files, and reaches nothing else, for good."""
    duck = in_memory(**NO_EXTENSIONS, python_enable_replacements=False)
    try:
        duck.register_filesystem(served)
        duck.execute(attach_sql(path, "results"))
        duck.execute("USE results")
        for table in file_tables():
            if served.glob(all_files(table)):
                duck.execute(f"DROP TABLE {quoted(table)}")
                duck.execute(_table_view(table))
        duck.execute("USE memory; DETACH results")
        for setting in (
            f"temp_directory = {quoted_text(str(path.with_name('spilled')))}",
            f"allowed_directories = ['{PROTOCOL}://']",
            f"allowed_paths = [{', '.join(quoted_text(f'{path}{end}') for end in ('', '.wal'))}]",
            "enable_external_access = false",
            *_PLANNING,
        ):
            duck.execute(f"SET {setting}")
        duck.execute(f"ATTACH {quoted_text(str(path))} AS results (READ_ONLY, TYPE duckdb)")
        duck.execute("USE results")
        lock_settings(duck)
    except duckdb.Error as error:
        duck.close()
        raise UserError(served.trouble or str(error)) from None
    return duck


def _table_view(table: str) -> str:
    """SQL of a view in a table's place, its columns in the table's order and of its types."""
    columns = declared_tables()[table]
    names = ", ".join(
        f"{quoted(name)}::JSON AS {quoted(name)}" if column.type == "JSON" else quoted(name)
        for name, column in columns.items()
    )
    return (
        f"CREATE VIEW {quoted(table)} AS SELECT {names} FROM read_parquet({quoted_text(all_files(table))}, "
        "hive_partitioning=true, hive_types_autocast=false)"
    )
