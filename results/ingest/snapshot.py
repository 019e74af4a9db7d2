"""Snapshots of a database: one Parquet file per table and a manifest with the digest of each.

    FOLDER/{manifest.json, TABLE.parquet ..}

Tables that every database fills itself, such as published results, are left out.

A snapshot is written by `export`, and an import keeps it in the spool, so that a rebuilt database includes it. Its
manifest states the schema; other schemas are rejected. Two kinds of imports are kept unchanged in the spool: attempts
whose own spool is elsewhere, and runs of benchmarks:

    <spool>/imports/<digest>/       a snapshot
    <spool>/perf/<digest>.json      as pytest-benchmark wrote it: one run of benchmarks
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from exitbench import __version__
from exitbench.errors import UserError
from exitbench.results.database.catalogue import known_keys
from exitbench.results.database.tables import quoted, quoted_text
from exitbench.results.files.arrow import driver_connection, insert_rows
from exitbench.results.files.atomic import read_json, sha256, write_folder, write_json
from exitbench.results.files.duckdb_files import driver_error, is_system_error
from exitbench.results.files.formats import abbreviate_home
from exitbench.results.files.regular import open_regular
from exitbench.results.ingest.manifest import FORMAT, MANIFEST, Manifest, require_sound, table_rows
from exitbench.results.spool.records import BENCHMARK, IMPORT, records
from exitbench.results.spool.schema import arrow_schema
from exitbench.results.tables import ARTIFACTS, KEYS, SCHEMA_VERSION, TABLES
from exitbench.terminal import number_of

_BATCH_ROWS: Final = 65_536
_GROUP_BYTES: Final = 64 << 20
"""Bytes of a row group before compression. In large groups, names and digests are stored once, not once per batch."""
_ALIKE_IN_ATTEMPTS: Final = ("document_exit", "sample", "sequence_block")
"""Tables in which many attempts have equal rows for a document."""
SCORES: Final = ("metric", "sample_rescore")
"""Tables with a known attempt's scores under another metric version."""
_QUOTING: Final = {
    table.name: {
        entry.name: f"{entry.redacted_sql}::{entry.type}" for entry in table.columns if entry.redacted_sql is not None
    }
    for table in TABLES.values()
}
"""Columns that quote, or may quote, records of a data set (prompts, answers, references, output of a failed cell),
and their replacement values.
"""
_NAMES_PATHS: Final = {
    table.name: tuple(column.name for column in table.columns if column.names_paths) for table in TABLES.values()
}
_SPELLING: Final = "token_text"
"""With this table, the token ids in traces can be turned into texts."""


@dataclass(frozen=True)
class _Rows:
    """SQL expression for a table's rows, to be used after FROM, and the names of its columns."""

    source: str
    columns: tuple[str, ...]


def is_snapshot(folder: Path) -> bool:
    """Return whether a folder has the manifest of a snapshot."""
    return (folder / MANIFEST).is_file()


def omission_note(labels: Collection[str]) -> str:
    """Return a message on the columns that a snapshot omits because of the licences of data sets with these labels."""
    columns = ", ".join(f"{table}.{column}" for table, replaced in _QUOTING.items() for column in replaced)
    return (
        f"Texts omitted, since the licenses of {', '.join(sorted(labels))} do not allow copies: "
        f"{columns} of their runs, and {_SPELLING} of every tokenizer, with which token ids of traces could be read."
    )


def write_snapshot(engine: sa.Engine, folder: Path, redistributable: Collection[str] | None = None) -> Manifest:
    """Write the tables of a database as a snapshot, completely or not at all.

    Args:
        engine: An open, up-to-date database.
        folder: Folder to write; it must not exist.
        redistributable: Tasks whose records may be redistributed. For other tasks, except on generated data, columns
            that quote records are omitted, and then also the texts of token ids. None omits nothing.

    Raises:
        UserError: The folder exists or cannot be written.
    """
    if folder.exists():
        raise UserError(f"{folder} exists already. Name a folder that does not.")
    write_folder(folder, lambda partial: _write_tables(engine, partial, redistributable))
    return Manifest.read(folder)


def load_snapshot(engine: sa.Engine, folder: Path) -> int:
    """Add the rows of a snapshot that the database lacks, in one transaction; return the number of attempts added.

    Raises:
        UserError: The folder is not a snapshot that this version can read, or a file is damaged or was changed. Or rows
            refer to missing rows, or an attempt in both snapshot and database has different files.
    """
    columns_of = Manifest.read(folder).columns(folder)
    tables = {table: _Rows(table_rows(folder.absolute(), table), columns) for table, columns in columns_of.items()}
    with engine.begin() as connection:
        sources = {name: rows.source for name, rows in tables.items()}
        require_sound(driver_connection(connection), sources, str(folder))
        incoming, stored = (attempt_digests(connection, table) for table in (sources["attempt"], "attempt"))
        require_equal_digests(folder, incoming, stored)
        for table in sorted(tables, key=_insert_rank):
            if not TABLES[table].local:
                connection.exec_driver_sql(_insert(table, tables[table]))
    return len(incoming.keys() - stored.keys())


def _new_rows(table: str, rows: str) -> str:
    """Return an SQL FROM clause that selects from `rows` those that a database's table lacks and can add.

    Rows such as rescores can be added only if the database has their attempt.
    """
    by, existing = (KEYS[table], table) if table in KEYS else (("attempt_id",), "attempt")
    keys = _names(by)
    # Rows added later to attempts that are not in the database (any more) are left out.
    placed = "SEMI JOIN attempt USING (attempt_id)" if TABLES[table].grows_later else ""
    return (
        f"FROM {rows} AS incoming ANTI JOIN (SELECT DISTINCT {keys} FROM {quoted(existing)}) AS known USING ({keys}) "
        f"{placed}"
    )


def _insert_rank(table: str) -> int:
    """Return the rank by which tables are sorted for insertion: 1 for `attempt`, 0 for tables that must precede it.

    Most rows of an attempt are inserted before its row of `attempt`, since they count as new only until then. Tables
    that may grow after an attempt has ended, such as rescores, have rank 2: their attempts must be in the database.
    """
    return 2 if TABLES[table].grows_later else int(table == "attempt")


def _insert(table: str, rows: _Rows) -> str:
    """Return SQL that inserts into a database's table those rows of a snapshot's table that it lacks."""
    names = _names(rows.columns)
    into = f"INSERT INTO {quoted(table)} ({names}) SELECT {names}"
    if table in ARTIFACTS:
        return f"{into} FROM {rows.source} ON CONFLICT DO NOTHING"
    if table == "cell":
        # As with attempts of the spool, a cell takes its names from the latest attempt.
        columns = (quoted(column.name) for column in TABLES[table].columns if not column.key)
        renamed = ", ".join(f"{name} = excluded.{name}" for name in columns)
        return (
            f"{into} FROM {rows.source} ON CONFLICT (cell_id) DO UPDATE SET {renamed} "
            "WHERE excluded.described_by > cell.described_by"
        )
    return f"{into} {_new_rows(table, rows.source)}"


def _names(columns: Iterable[str]) -> str:
    return ", ".join(map(quoted, columns))


def require_equal_digests(source: Path, incoming: Mapping[str, str], stored: Mapping[str, str]) -> None:
    """Check that attempts in both `incoming` and `stored` have equal digests of their DONE files.

    Args:
        source: Origin of the incoming attempts, for messages.
        incoming: Digest of each incoming attempt, by id.
        stored: Digest of each attempt in the database, by id.

    Raises:
        UserError: An attempt has different digests.
    """
    differ = sorted(key for key in incoming.keys() & stored.keys() if incoming[key] != stored[key])
    if differ:
        raise UserError(
            f"{source}: already here with different files: {number_of(len(differ), 'attempt')}, such as {differ[0]}. "
            "One of the two copies was changed; nothing is imported."
        )


def attempt_digests(connection: sa.Connection, attempts: str = "attempt") -> dict[str, str]:
    """Return the digest of the DONE file of every attempt, by id; `attempts` is a table or other SQL source of rows."""
    return dict(driver_connection(connection).execute(f"SELECT attempt_id, spool_sha256 FROM {attempts}").fetchall())


def _write_tables(engine: sa.Engine, folder: Path, redistributable: Collection[str] | None) -> None:
    with engine.connect() as connection:
        duck = driver_connection(connection)
        licensed = licensed_labels(duck, redistributable)
        tables = {}
        for name in sorted(name for name, table in TABLES.items() if not table.local):
            path = folder / f"{name}.parquet"
            # Sorted by key, so that equal rows give equal bytes. Rows that are alike are neighbours, which makes files
            # smaller: those of one document and block under all methods, or else of one attempt and block.
            last = "attempt_id" if name in _ALIKE_IN_ATTEMPTS else "doc_key"
            order = sorted(TABLES[name].key, key=lambda column: column == last)
            query = f"FROM ({select_rows(name, licensed)}) ORDER BY {_names(order)}"
            rows = _write_table(duck, query, path, _NAMES_PATHS[name])
            tables[name] = {"rows": rows, "sha256": sha256(path)}
    manifest = {
        "format": FORMAT,
        "exitbench": __version__,
        "schema_version": SCHEMA_VERSION,
        "texts_left_out_of": sorted(licensed),
        "left_out": omission_note(licensed) if licensed else None,
        "tables": tables,
    }
    write_json(folder / MANIFEST, manifest)


def licensed_labels(duck: Any, redistributable: Collection[str] | None) -> frozenset[str]:
    """Return the labels of a database's data sets whose texts an export must omit for their licences.

    Args:
        duck: DuckDB connection to an up-to-date database.
        redistributable: Tasks whose records may be redistributed; None omits nothing.
    """
    if redistributable is None:
        return frozenset()
    rows = duck.execute("SELECT DISTINCT label, task FROM dataset_artifact WHERE source <> 'builtin'").fetchall()
    return frozenset(label for label, task in rows if task not in redistributable)


def select_rows(table: str, licensed: Collection[str]) -> str:
    """Return SQL that selects a table's rows, and blanks columns that quote data sets whose label is in `licensed`."""
    columns, replaced = [column.name for column in TABLES[table].columns], _QUOTING[table]
    if not licensed or not replaced:
        nothing = "WHERE false" if licensed and table == _SPELLING else ""
        return f"SELECT {_names(columns)} FROM {quoted(table)} {nothing}"
    labels = ", ".join(map(quoted_text, sorted(licensed)))
    quoting = f"""
        SELECT a.attempt_id FROM attempt AS a JOIN cell USING (cell_id) JOIN dataset_artifact AS d USING (data_id)
        WHERE d.source <> 'builtin' AND d.label IN ({labels})
    """
    selected = ", ".join(
        f"if(attempt_id IN ({quoting}), {replaced[name]}, {quoted(name)}) AS {quoted(name)}"
        if name in replaced
        else quoted(name)
        for name in columns
    )
    return f"SELECT {selected} FROM {quoted(table)}"


def without_paths(table: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a table with home folders abbreviated in the columns that may contain paths."""
    texts = {name: row[name] and abbreviate_home(row[name]) for name in _NAMES_PATHS[table]}
    return {**row, **texts}


def _write_table(duck: Any, query: str, path: Path, names_paths: Sequence[str]) -> int:
    """Write the rows of a query to a Parquet file, with home folders abbreviated in columns `names_paths`.

    Returns:
        The number of rows.
    """
    reader = duck.sql(query).to_arrow_reader(_BATCH_ROWS)
    try:
        split, others = _leaf_paths(reader.schema)
        encoding = {"use_byte_stream_split": split, "use_dictionary": others, "dictionary_pagesize_limit": _GROUP_BYTES}
        with pq.ParquetWriter(path, reader.schema, compression="zstd", compression_level=19, **encoding) as writer:
            rows, group, group_bytes = 0, list[pa.RecordBatch](), 0
            for batch in reader:
                for name in names_paths:
                    texts = [text and abbreviate_home(text) for text in batch[name].to_pylist()]
                    place = batch.schema.get_field_index(name)
                    batch = batch.set_column(place, batch.schema.field(name), pa.array(texts, pa.string()))
                rows += batch.num_rows
                group.append(batch)
                group_bytes += batch.nbytes
                if group_bytes >= _GROUP_BYTES:
                    _write_group(writer, group)
                    group, group_bytes = [], 0
            if group:
                _write_group(writer, group)
        return rows
    finally:
        reader.close()  # remaining batches would prevent closing the connection


def _write_group(writer: pq.ParquetWriter, batches: Sequence[pa.RecordBatch]) -> None:
    table = pa.Table.from_batches(batches)
    writer.write_table(table, row_group_size=table.num_rows)


def _leaf_paths(schema: pa.Schema) -> tuple[list[str], list[str]]:
    """Return the Parquet paths of the columns with floating-point numbers, or lists of them, and of all other columns.

    The former are written in Parquet's byte-stream-split encoding, in which probabilities and scores take about half
    the space of the default encoding.
    """
    split: list[str] = []
    others: list[str] = []
    for field in schema:
        path, kind = field.name, field.type
        while pa.types.is_list(kind):
            path, kind = f"{path}.list.element", kind.value_type
        (split if pa.types.is_floating(kind) else others).append(path)
    return split, others


_BENCHMARKS: Final = arrow_schema(TABLES["perf_sample"])
_ODD: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""Errors raised by a file with other values in place of numbers, texts and objects."""


def load_imports(engine: sa.Engine, spool_root: Path) -> tuple[int, list[str]]:
    """Add to the database the imported snapshots and benchmark files in the spool that it lacks.

    Returns:
        The number of attempts added, and one message per import that could not be added.
    """
    snapshots, odd_snapshots = records(spool_root, IMPORT)
    benchmarks, odd_benchmarks = records(spool_root, BENCHMARK)
    added, problems = _load_snapshots(engine, snapshots)
    problems += [*odd_snapshots, *odd_benchmarks]
    stored = known_keys(engine, "perf_sample")
    for path in benchmarks:
        if path.stem not in stored:
            try:
                rows = benchmark_rows(path)
                with engine.begin() as connection:
                    insert_rows(connection, "perf_sample", rows, "perf_run_id", path.stem)
            except (UserError, duckdb.Error, sa.exc.DBAPIError) as error:
                if is_system_error(error):
                    raise
                problems.append(f"{path}: {error}")
    return added, problems


def _load_snapshots(engine: sa.Engine, folders: Sequence[Path]) -> tuple[int, list[str]]:
    added, problems, loaded = 0, [], []
    for folder in folders:
        try:
            if not _is_fully_loaded(engine, folder):
                added += load_snapshot(engine, folder)
            loaded.append(folder)
        except (UserError, duckdb.Error, sa.exc.DBAPIError) as error:
            if is_system_error(error):
                raise
            problems.append(str(error) if isinstance(error, UserError) else f"{folder}: {driver_error(error)}")
    for folder in loaded:
        # Scores of attempts that came with a later folder.
        if not _is_fully_loaded(engine, folder):
            load_snapshot(engine, folder)
    return added, problems


def imported_attempts(spool_root: Path) -> set[str]:
    """Return the ids of attempts in the spool's imported snapshots, without damaged snapshots, which ingest reports."""
    attempt_ids: set[str] = set()
    for folder in records(spool_root, IMPORT)[0]:
        try:
            Manifest.claimed(folder)
            with open_regular(folder / "attempt.parquet") as file:
                attempt_ids.update(pq.read_table(file, columns=["attempt_id"])["attempt_id"].to_pylist())
        except (UserError, OSError, KeyError, pa.ArrowException):
            continue
    return attempt_ids


def benchmark_rows(path: Path) -> pa.Table:
    """Return the benchmarks in a JSON file of pytest-benchmark as rows of `perf_sample`, without `perf_run_id`.

    Raises:
        UserError: The file was not written by pytest-benchmark.
    """
    record = read_json(path)
    try:
        commit = record.get("commit_info", {})
        common = {
            "measured_at": _utc(record["datetime"]),
            # Value that pytest-benchmark writes outside a repository.
            "git_commit": None if commit.get("id") == "unversioned" else commit.get("id"),
            "git_dirty": commit.get("dirty"),
            "machine": _json(record["machine_info"]),
        }
        rows = [{**common, **_benchmark_row(benchmark)} for benchmark in record["benchmarks"]]
        if len({row["benchmark"] for row in rows}) < len(rows):
            raise ValueError("a benchmark is listed twice")
        return pa.Table.from_pylist(rows, schema=_BENCHMARKS)
    except (*_ODD, pa.ArrowException) as error:
        raise UserError(f"{path}: is not a file of pytest-benchmark: {type(error).__name__}: {error}") from error


def _benchmark_row(benchmark: dict[str, Any]) -> dict[str, Any]:
    return {
        "benchmark": benchmark["fullname"],
        "params": _json(benchmark["params"]),
        "extra": _json(benchmark["extra_info"]),
        "median_s": benchmark["stats"]["median"],
        # Only kept by pytest-benchmark with --benchmark-save-data.
        "data": benchmark["stats"].get("data", []),
    }


def _json(value: Any) -> str:
    """Return a value as JSON text that DuckDB accepts; raise ValueError for NaN or half of a surrogate pair."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False).encode().decode()


def _utc(text: str) -> datetime:
    """Parse a time written by pytest-benchmark and return it in UTC; a time without a zone is in UTC."""
    time = datetime.fromisoformat(text)
    return (time if time.tzinfo is None else time.astimezone(UTC)).replace(tzinfo=None)


def _is_fully_loaded(engine: sa.Engine, folder: Path) -> bool:
    """Return whether the database has all rows of a snapshot; False if the snapshot cannot be read."""
    try:
        manifest = Manifest.claimed(folder)
        with engine.connect() as connection:
            duck = driver_connection(connection)
            return not any(
                duck.execute(f"SELECT 1 {_new_rows(table, table_rows(folder, table))} LIMIT 1").fetchone()
                for table in KEYS
                if table in manifest.tables
            )
    except (UserError, duckdb.Error) as error:
        if is_system_error(error):
            raise
        return False
