"""Snapshots of a database: one Parquet file a table and a manifest with the digest of each.

    FOLDER/{manifest.json, TABLE.parquet ..}

A snapshot is what is handed on (`export`) and what an import keeps in the spool, so that a rebuilt database has it:
it says of which schema it is, and one of an earlier schema is migrated when it is loaded.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import duckdb
import pyarrow.parquet as pq
import sqlalchemy as sa

from exitbench import __version__
from exitbench.errors import UserError
from exitbench.results.arrow import driver_connection, parquet_path
from exitbench.results.catalogue import CELL
from exitbench.results.migrations import migration_scripts
from exitbench.results.sealed import check_digest, read_json, sha256, write_json, write_whole

MANIFEST: Final = "manifest.json"
_FORMAT: Final = "exitbench-snapshot-1"
_BATCH_ROWS: Final = 65_536
_ARTIFACTS: Final = ("environment", "hardware", "model_artifact", "dataset_artifact")
KEYED: Final = {
    "training_run": ("weights_sha256",),
    "training_log": ("weights_sha256",),
    "token_text": ("tokenizer_sha256",),
    "perf_sample": ("perf_run_id",),
    "metric": ("attempt_id", "metric_version"),
    "sample_rescore": ("attempt_id", "metric_version"),
    "token_tag": ("attempt_id", "tagger"),
}
"""Tables that hang on something else than an attempt, or on more, and what on."""
KEYS: Final = {"attempt": ("attempt_id",), **KEYED}
"""What tells whether a row of a snapshot is new, by table; what hangs on an attempt is as new as that."""
SCORES: Final = ("metric", "sample_rescore")
"""Tables with a known attempt's scores under another metric version."""
_LATER: Final = (*SCORES, "token_tag")
"""Tables to which a known attempt may get more rows."""
OF_EVERY_DATABASE: Final = ("schema_version", "view_source", "published_source", "published_result")
"""Tables that no database has from another."""
_QUOTING: Final = {
    "sample": {"output_text": "''", "output_ids": "[]::INTEGER[]"},
    "probe_token": {"gold_token_id": "NULL::INTEGER"},
    "attempt": {"log_tail": "NULL::VARCHAR"},
}
"""What quotes records of a data set, or may: answers, references, what a failing cell printed; and what stands there
instead."""
_SPELLING: Final = "token_text"
"""With it, the ids in traces of tokens are texts."""


@dataclass(frozen=True)
class Manifest:
    """What a snapshot says of itself.

    Attributes:
        schema_version: Schema of the database that it is of.
        tables: Digest of every table's file.
        rows: Rows of every table.
        texts_left_out_of: Labels of the data sets whose texts it does not have. If there is one, no token is spelled.
    """

    schema_version: int
    tables: dict[str, str]
    rows: dict[str, int]
    texts_left_out_of: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the manifest of a snapshot and check every file against it.

        Raises:
            UserError: It is not a snapshot that this version can read, or a file is not what was written.
        """
        path = folder / MANIFEST
        told = read_json(path)
        if told.get("format") != _FORMAT:
            raise UserError(f"{path}: format is {told.get('format')!r}, not {_FORMAT!r}.")
        known = len(migration_scripts())
        if told["schema_version"] > known:
            raise UserError(
                f"{path}: of schema {told['schema_version']}; this version of ExitBench knows up to {known}. "
                "Use the newer version."
            )
        tables = told["tables"]
        manifest = cls(
            schema_version=told["schema_version"],
            tables={name: table["sha256"] for name, table in tables.items()},
            rows={name: table["rows"] for name, table in tables.items()},
            texts_left_out_of=tuple(told["texts_left_out_of"]),
        )
        for name, digest in manifest.tables.items():
            check_digest(folder / f"{name}.parquet", digest)
        return manifest


def is_snapshot(folder: Path) -> bool:
    """Return whether a folder claims to be a snapshot."""
    return (folder / MANIFEST).is_file()


def left_out(labels: Collection[str]) -> str:
    """Return what a snapshot lacks, and why, if the licences of these data sets are not known to allow it."""
    columns = ", ".join(f"{table}.{column}" for table, replaced in _QUOTING.items() for column in replaced)
    return (
        f"Texts left out, since {', '.join(sorted(labels))} may not be handed on: {columns} of their runs, and "
        f"{_SPELLING} of every tokenizer, which would spell the token ids of traces."
    )


def write_snapshot(engine: sa.Engine, folder: Path, redistributable: Collection[str] | None = None) -> Manifest:
    """Write every table of a database; the folder is complete or absent.

    Args:
        engine: An open, up-to-date database.
        folder: Where; must not exist.
        redistributable: Tasks whose records may be handed on. What quotes records of others is left out, but of
            generated data, which is anybody's; and with it what tokens are spelled. None leaves nothing out.

    Raises:
        UserError: The folder exists or cannot be written.
    """
    if folder.exists():
        raise UserError(f"{folder} exists already. Name a folder that does not.")
    write_whole(folder, lambda partial: _write_tables(engine, partial, redistributable))
    return Manifest.read(folder)


def load_snapshot(engine: sa.Engine, folder: Path) -> int:
    """Add what the database does not have of a snapshot, in one transaction; return the number of attempts added.

    Args:
        engine: An open, writable, up-to-date database.
        folder: The snapshot.

    Raises:
        UserError: As `Manifest.read`; or an attempt that both have is not the same in both.
    """
    manifest = Manifest.read(folder)
    with _of_this_schema(engine, folder, manifest) as source, engine.begin() as connection:
        theirs, ours = (_digests(connection, table) for table in (source["attempt"], "attempt"))
        differ = sorted(key for key in theirs.keys() & ours.keys() if theirs[key] != ours[key])
        if differ:
            raise UserError(
                f"{folder}: {len(differ)} attempts are here already with other files, such as {differ[0]}. "
                "One of the two was changed; nothing is merged."
            )
        for table in sorted(source, key=_turn):
            if table not in OF_EVERY_DATABASE:
                connection.exec_driver_sql(_insert(table, source[table]))
    return len(theirs.keys() - ours.keys())


def new_rows(table: str, rows: str) -> str:
    """Return SQL that selects what a database lacks, and has a place for, of rows of one of its tables."""
    keys, known = (", ".join(KEYS[table]), table) if table in KEYS else ("attempt_id", "attempt")
    # What was made later of attempts that are not here (any more) stays out.
    placed = "SEMI JOIN attempt USING (attempt_id)" if table in _LATER else ""
    return f"FROM {rows} AS incoming ANTI JOIN (SELECT DISTINCT {keys} FROM {known}) AS known USING ({keys}) {placed}"


def _turn(table: str) -> int:
    """Attempts say which of their rows are new until they are in, and whose later ones have a place from then on."""
    return 2 if table in _LATER else int(table == "attempt")


def _insert(table: str, rows: str) -> str:
    """SQL that adds what a table does not have."""
    if table in _ARTIFACTS:
        return f"INSERT INTO {table} BY NAME FROM {rows} ON CONFLICT DO NOTHING"
    if table == CELL.name:
        # As with attempts of the spool, the latest attempt gives a cell its names.
        renamed = ", ".join(
            f"{name} = excluded.{name}" for column in CELL.columns if (name := column.name) != "cell_id"
        )
        return (
            f"INSERT INTO {table} BY NAME FROM {rows} ON CONFLICT (cell_id) DO UPDATE SET {renamed} "
            f"WHERE excluded.described_by > {table}.described_by"
        )
    return f"INSERT INTO {table} BY NAME {new_rows(table, rows)}"


def _digests(connection: sa.Connection, attempts: str) -> dict[str, str]:
    return dict(driver_connection(connection).execute(f"SELECT attempt_id, spool_sha256 FROM {attempts}").fetchall())


@contextmanager
def _of_this_schema(engine: sa.Engine, folder: Path, manifest: Manifest) -> Iterator[dict[str, str]]:
    """Yield what to select every table's rows from, at the schema of this version."""
    scripts = migration_scripts()
    files = {table: table_file(folder, table) for table in manifest.tables}
    if manifest.schema_version == len(scripts):
        yield files
        return
    with TemporaryDirectory(prefix="exitbench-snapshot-") as beside:
        path = Path(beside) / "snapshot.duckdb"
        with duckdb.connect(str(path)) as old:
            for script in scripts[: manifest.schema_version]:
                old.execute(script)
            for table, rows in files.items():
                old.execute(f"INSERT INTO {table} BY NAME FROM {rows}")
            for script in scripts[manifest.schema_version :]:
                old.execute(script)
            tables = [name for (name,) in old.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
        with _attached(engine, path):
            yield {table: f"incoming.{table}" for table in tables}


@contextmanager
def _attached(engine: sa.Engine, path: Path) -> Iterator[None]:
    with engine.connect() as connection:
        driver_connection(connection).execute(f"ATTACH {_quoted(str(path))} AS incoming (READ_ONLY)")
    try:
        yield
    finally:
        with engine.connect() as connection:
            driver_connection(connection).execute("DETACH incoming")


def table_file(folder: Path, table: str) -> str:
    """Return what to select a table of a snapshot from, in SQL."""
    return f"read_parquet({_quoted(parquet_path(folder / f'{table}.parquet'))}, hive_partitioning=false)"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _write_tables(engine: sa.Engine, folder: Path, redistributable: Collection[str] | None) -> None:
    with engine.connect() as connection:
        duck = driver_connection(connection)
        names = [name for (name,) in duck.execute(_TABLES).fetchall()]
        licensed = _licensed(duck, redistributable)
        tables = {}
        for name in sorted(names):
            path = folder / f"{name}.parquet"
            rows = _write_table(duck, _select(name, licensed), path)
            tables[name] = {"rows": rows, "sha256": sha256(path)}
    manifest = {
        "format": _FORMAT,
        "exitbench": __version__,
        "schema_version": len(migration_scripts()),
        "texts_left_out_of": sorted(licensed),
        "left_out": left_out(licensed) if licensed else None,
        "tables": tables,
    }
    write_json(folder / MANIFEST, manifest)


_TABLES: Final = "SELECT table_name FROM duckdb_tables() WHERE NOT temporary AND database_name = current_database()"


def _licensed(duck: Any, redistributable: Collection[str] | None) -> frozenset[str]:
    """Labels of the data sets that texts are left out of."""
    if redistributable is None:
        return frozenset()
    rows = duck.execute("SELECT DISTINCT label, task FROM dataset_artifact WHERE source <> 'builtin'").fetchall()
    return frozenset(label for label, task in rows if task not in redistributable)


def _select(table: str, licensed: Collection[str]) -> str:
    if licensed and table == _SPELLING:
        return f"SELECT * FROM {table} WHERE false"
    if table not in _QUOTING or not licensed:
        return f"SELECT * FROM {table}"
    labels = ", ".join(map(_quoted, sorted(licensed)))
    quoting = f"""
        SELECT a.attempt_id FROM attempt AS a JOIN cell USING (cell_id) JOIN dataset_artifact AS d USING (data_id)
        WHERE d.source <> 'builtin' AND d.label IN ({labels})
    """
    kept = ", ".join(
        f"if(attempt_id IN ({quoting}), {replaced}, {column}) AS {column}"
        for column, replaced in _QUOTING[table].items()
    )
    return f"SELECT * REPLACE ({kept}) FROM {table}"


def _write_table(duck: Any, query: str, path: Path) -> int:
    """Write the rows of a query batch by batch; return how many they are."""
    reader = duck.sql(query).to_arrow_reader(_BATCH_ROWS)
    with pq.ParquetWriter(path, reader.schema, compression="zstd") as writer:
        rows = 0
        for batch in reader:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows
