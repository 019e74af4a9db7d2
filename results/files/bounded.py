"""Read untrusted Parquet files: reject a file with more rows or bytes than its size can plausibly contain.

A few bytes of Parquet can claim 10^12 rows, or repeat one long text in every row. Files written by ExitBench are never
that dense: the rows of a table differ.
"""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from exitbench.results.files.atomic import DamagedFile, SpoolError
from exitbench.results.files.regular import NotRegular, open_regular

ROWS_PER_BYTE: Final = 64
"""Maximum rows per byte: each row has a unique key, and most rows take 10 bytes or more."""
BATCH_ROWS: Final = 4096
BATCH_BYTES: Final = 1 << 30
"""Maximum size of a batch: this many rows of the widest table (a probe of 100 blocks: 6 kB per row) take 25 MB."""
TABLE_BYTES: Final = 4 << 30
"""Maximum size of a table read at once: a vocabulary (some MB) or the scores of a run's documents."""


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """Return the rows of an untrusted Parquet file, cast to `schema`; nullable columns that are missing become NULL.

    Raises:
        DamagedFile: As for `check_table`, or the rows take more than `TABLE_BYTES`.
        SpoolError: The file cannot be read.
    """
    tables, size = [], 0
    for batch, n_bytes in _batches(path, schema):
        size += n_bytes
        if size > TABLE_BYTES:
            raise DamagedFile(f"{path}: its rows take more than {TABLE_BYTES} bytes.")
        tables.append(_cast(path, batch, schema))
    return pa.concat_tables(tables) if tables else schema.empty_table()


def check_table(path: Path, schema: pa.Schema, n_blocks: int | None = None) -> None:
    """Check an untrusted Parquet file by reading it: columns, NULLs, size, and ranges of positions and exit layers.

    Args:
        path: The file.
        schema: Allowed columns; nullable columns may be missing.
        n_blocks: Number of blocks of the model; None to leave exit layers unchecked.

    Raises:
        DamagedFile: The file is no Parquet file, has other columns, or has NULL in a column that is not nullable. Or
            it has an invalid exit layer or position, or more rows or bytes than a file of its size can contain.
        SpoolError: The file cannot be read.
    """
    for batch, _ in _batches(path, schema):
        if n_blocks is not None:
            _check_range(path, batch, "exit_layer", n_blocks)
        if "token_id" in schema.names or "exit_layer" in schema.names:
            _check_range(path, batch, "position", None)


def _batches(path: Path, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield batches of rows, with texts dictionary-encoded, and the bytes of each batch without this encoding."""
    try:
        # Opened once, not by path: the file that is checked is the file that is read.
        with open_regular(path) as opened:
            metadata = pq.read_metadata(opened)
            _check_claims(path, os.fstat(opened.fileno()).st_size, metadata)
            names = set(metadata.schema.to_arrow_schema().names)
            texts = [field.name for field in schema if pa.types.is_string(field.type) and field.name in names]
            file = pq.ParquetFile(opened, metadata=metadata, read_dictionary=texts)
            _check_columns(path, file.schema_arrow, schema)
            for batch in file.iter_batches(BATCH_ROWS):
                n_bytes = sum(map(_full_bytes, batch.columns))
                if n_bytes > BATCH_BYTES:
                    raise DamagedFile(f"{path}: {BATCH_ROWS} of its rows take more than {BATCH_BYTES} bytes.")
                _check_nulls(path, batch, schema)
                yield batch, n_bytes
    except FileNotFoundError as error:
        raise DamagedFile(f"{path}: is missing.") from error
    except NotRegular as error:
        raise DamagedFile(f"{path}: {error.strerror}.") from error
    except MemoryError as error:
        raise SpoolError(f"{path}: cannot be read: out of memory.") from error
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise SpoolError(f"{path}: cannot be read: {error.strerror}.") from error
        raise DamagedFile(f"{path}: cannot be read as Parquet: {error}") from error


def _check_claims(path: Path, size: int, metadata: pq.FileMetaData) -> None:
    """Raise DamagedFile if the metadata claims more rows or values than a file of `size` bytes can contain."""
    allowed = ROWS_PER_BYTE * size
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    values = (
        group.column(number).num_values for group, number in itertools.product(groups, range(metadata.num_columns))
    )
    counts = (metadata.num_rows, *(group.num_rows for group in groups), *values)
    if wrong := next((count for count in counts if not 0 <= count <= allowed), None):
        raise DamagedFile(f"{path}: claims {wrong} rows or values; its size allows {allowed}.")
    if metadata.num_rows != sum(group.num_rows for group in groups):
        raise DamagedFile(f"{path}: claims {metadata.num_rows} rows, its row groups another number.")


def _check_columns(path: Path, actual: pa.Schema, schema: pa.Schema) -> None:
    if len(set(actual.names)) != len(actual.names):
        raise DamagedFile(f"{path}: has two columns of the same name.")
    for field in actual:
        if field.name not in schema.names:
            raise DamagedFile(f"{path}: has a column {field.name!r}; allowed: {', '.join(schema.names)}.")
        expected = schema.field(field.name).type
        inner = field.type.value_type if pa.types.is_list(field.type) and pa.types.is_list(expected) else field.type
        # Texts are dictionary-encoded here.
        if pa.types.is_nested(inner) or pa.types.is_dictionary(inner) != pa.types.is_string(expected):
            raise DamagedFile(f"{path}: column {field.name!r} is {str(field.type)[:80]}, not {expected}.")
    for field in schema:
        if field.name not in actual.names and not field.nullable:
            raise DamagedFile(f"{path}: has no column {field.name!r}.")


def _check_nulls(path: Path, batch: pa.RecordBatch, schema: pa.Schema) -> None:
    for name in batch.schema.names:
        if batch[name].null_count and not schema.field(name).nullable:
            raise DamagedFile(f"{path}: column {name!r} has nulls; none is allowed.")


def _check_range(path: Path, batch: pa.RecordBatch, name: str, most: int | None) -> None:
    if name not in batch.schema.names:
        return
    extremes = pc.min_max(batch[name]).as_py()
    for value in (extremes["min"], extremes["max"]):
        if value is not None and not (value >= 1 and (most is None or value <= most)):
            allowed = f"1 to {most}" if most is not None else "1 and more"
            raise DamagedFile(f"{path}: column {name!r} has {value}; allowed: {allowed}.")


def _full_bytes(column: pa.Array) -> int:
    """Return the size of a column in bytes, counting each dictionary-encoded text as often as it occurs."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = pc.take(pc.binary_length(column.dictionary), column.indices)
    return int(pc.sum(lengths.cast(pa.int64()), min_count=0).as_py())


def _cast(path: Path, batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    columns = [
        batch[field.name].cast(field.type) if field.name in batch.schema.names else pa.nulls(len(batch), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
