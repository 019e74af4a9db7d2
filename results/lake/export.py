"""Lake export: copy what a database has and a lake has not, a file a table and the manifest last.

What quotes data of others is left out as in a snapshot (`results/ingest/snapshot.py`).
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from exitbench.results.database.tables import declared_tables, quoted
from exitbench.results.files.atomic_folder import sha256
from exitbench.results.ingest.snapshot import licensed_labels, select_rows, without_paths
from exitbench.results.lake.layout import Kind, file_name, kinds, manifest_name, manifests, partition_column
from exitbench.results.lake.manifest import LakeFile, Manifest, Row, partition_of
from exitbench.results.lake.places import Place

_BATCH_ROWS: Final = 30_720
_KEYS: Final = {
    "attempt": "SELECT attempt_id FROM attempt",
    "rescore": "SELECT DISTINCT attempt_id, metric_version FROM metric JOIN attempt USING (attempt_id) WHERE {later}",
    "tag": "SELECT DISTINCT attempt_id, tagger FROM token_tag",
    "training": "SELECT weights_sha256 FROM training_run",
    "vocabulary": "SELECT DISTINCT tokenizer_sha256 FROM token_text",
    "perf": "SELECT DISTINCT perf_run_id FROM perf_sample",
}
_LATER: Final = "scored_at > ended_at"


@dataclass(frozen=True)
class Exported:
    """What became of a database's results.

    Attributes:
        added: Attempts that the lake did not have.
        there: Attempts that it had.
        beside: Manifests of other kinds that it did not have: scores, tags, trainings, vocabularies.
        files: Files of rows that were written.
        bytes: Their size.
        texts_left_out_of: Labels of the data sets whose texts were left out.
    """

    added: int
    there: int
    beside: int
    files: int
    bytes: int
    texts_left_out_of: tuple[str, ...]


def export_lake(
    duck: duckdb.DuckDBPyConnection,
    place: Place,
    redistributable: Collection[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write what a lake lacks of a database; may be killed, repeated, and run beside others at any moment.

    Args:
        duck: An open, up-to-date database.
        place: The lake; what is above it is created.
        redistributable: Tasks whose records may be handed on; None leaves nothing out.
        progress: Called with (manifests written, manifests to write) after each.

    Raises:
        UserError: The place cannot be read or written. What was written before stays, and counts.
    """
    there = place.sizes(manifests())
    exporter = _Exporter(duck, place, licensed_labels(duck, redistributable))
    wanted = [(kind, key) for kind in kinds().values() for key in exporter.keys(kind)]
    missing = [(kind, key) for kind, key in wanted if manifest_name(kind, key) not in there]
    for done, (kind, key) in enumerate(missing, 1):
        exporter.write(kind, key)
        if progress is not None:
            progress(done, len(missing))
    attempts, new = (sum(kind.name == "attempt" for kind, _ in of) for of in (wanted, missing))
    return Exported(
        added=new,
        there=attempts - new,
        beside=len(missing) - new,
        files=exporter.files,
        bytes=exporter.bytes,
        texts_left_out_of=tuple(sorted(exporter.licensed)),
    )


def parquet_schema(duck: duckdb.DuckDBPyConnection, table: str) -> pa.Schema:
    """Return the columns of a table's files in a lake: of a database of this schema, but for the one in their names."""
    reader = duck.sql(f"SELECT {_columns(table)} FROM {quoted(table)} LIMIT 0").to_arrow_reader(1)
    try:
        return reader.schema
    finally:
        reader.close()


class _Exporter:
    """Writes one thing after the other, and counts."""

    def __init__(self, duck: duckdb.DuckDBPyConnection, place: Place, licensed: Collection[str]) -> None:
        self.licensed = licensed
        self.files = self.bytes = 0
        self._duck, self._place = duck, place
        self._with_rows: dict[str, set[str]] = {}

    def keys(self, kind: Kind) -> Iterator[tuple[str, ...]]:
        """Yield the keys of all of a kind that the database has; no spelling where texts are left out."""
        if kind.name == "vocabulary" and self.licensed:
            return
        yield from sorted(self._duck.execute(_KEYS[kind.name].format(later=_LATER)).fetchall())

    def write(self, kind: Kind, key: tuple[str, ...]) -> None:
        """Write the files of one thing, then its manifest."""
        rows = {table: tuple(self._rows(table, kind, key)) for table in kind.within}
        partition = partition_of(kind, key, rows, str(key))
        with TemporaryDirectory(prefix="exitbench-") as folder:
            files = tuple(
                self._write_file(table, kind, key, partition, Path(folder) / f"{table}.parquet")
                for table in kind.files
                if key[0] in self._keys_with_rows(table)
            )
        self._place.add(manifest_name(kind, key), Manifest(kind, key, rows, files).to_json())

    def _write_file(
        self, table: str, kind: Kind, key: Sequence[str], partition: Mapping[str, str], path: Path
    ) -> LakeFile:
        query = f"SELECT {_columns(table)} FROM ({select_rows(table, self.licensed)}) WHERE {_where(kind.keys)}"
        reader = self._duck.sql(query, params=list(key)).to_arrow_reader(_BATCH_ROWS)
        count = 0
        try:
            texts = [
                field.name for field in reader.schema if pa.types.is_string(field.type)
            ]  # else numbers read slowly
            with pq.ParquetWriter(path, reader.schema, compression="zstd", use_dictionary=texts) as writer:
                for batch in reader:
                    writer.write_batch(batch)
                    count += batch.num_rows
        finally:
            reader.close()
        file = LakeFile(table, file_name(table, partition, digest := sha256(path)), count, path.stat().st_size, digest)
        self._place.add(file.name, path)
        self.files, self.bytes = self.files + 1, self.bytes + file.bytes
        return file

    def _keys_with_rows(self, table: str) -> set[str]:
        if table not in self._with_rows:
            found = self._duck.execute(f"SELECT DISTINCT {partition_column(table)} FROM {quoted(table)}").fetchall()
            self._with_rows[table] = {key for (key,) in found}
        return self._with_rows[table]

    def _rows(self, table: str, kind: Kind, key: Sequence[str]) -> Iterator[Row]:
        """Yield the rows of a table that belong to a key, as JSON has values."""
        columns = declared_tables()[table]
        source = f"({select_rows(table, self.licensed)})"
        names = ", ".join(
            f"{quoted(name)}::VARCHAR AS {quoted(name)}" if column.type == "JSON" else quoted(name)
            for name, column in columns.items()
        )
        found = self._duck.execute(f"SELECT {names} FROM {source} AS t WHERE {_found_by(table, kind)}", list(key))
        for values in found.fetchall():
            row = {name: _plain(value) for name, value in zip(columns, values, strict=True)}
            yield without_paths(table, row)


def _found_by(table: str, kind: Kind) -> str:
    """SQL that says which rows of a table with few of them belong to a key."""
    if kind.name != "attempt":
        return _where(kind.keys)
    if table == "metric":  # those of later scores are the rescore's
        return f"attempt_id = $1 AND NOT EXISTS (FROM attempt AS a WHERE a.attempt_id = $1 AND t.{_LATER})"
    of_attempt, of_cell = "FROM attempt WHERE attempt_id = $1", "FROM cell WHERE cell_id = "
    cell = f"{of_cell}(SELECT cell_id {of_attempt})"
    return {
        "environment": f"env_id = (SELECT env_id {of_attempt})",
        "hardware": f"hw_id = (SELECT hw_id {of_attempt})",
        "cell": f"cell_id = (SELECT cell_id {of_attempt})",
        "model_artifact": f"model_id = (SELECT model_id {cell})",
        "dataset_artifact": f"data_id = (SELECT data_id {cell})",
    }.get(table, "attempt_id = $1")


def _where(keys: Sequence[str]) -> str:
    return " AND ".join(f"{quoted(name)} = ${number}" for number, name in enumerate(keys, 1))


def _columns(table: str) -> str:
    """The columns of a file: JSON as the text that it is, in Parquet of whatever program."""
    columns = declared_tables()[table]
    return ", ".join(
        f"{quoted(name)}::VARCHAR AS {quoted(name)}" if column.type == "JSON" else quoted(name)
        for name, column in columns.items()
        if name != partition_column(table)
    )


def _plain(value: Any) -> Any:
    """As JSON can say it; numbers that are none as text, which becomes the same number again."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value.isoformat() if isinstance(value, datetime) else value
