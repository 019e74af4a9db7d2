"""What a file named as a database is, from its bytes: nothing but a DuckDB file is opened, written or replaced."""

import codecs
import mmap
import stat
from pathlib import Path
from typing import Final

from exitbench.errors import UserError

_MAGIC_AT, _MAGIC = 8, b"DUCK"
_HEADER_BYTES: Final = 3 * 4096
"""A shorter file holds no rows."""
_START_BYTES: Final = 4096
_PROGRAMS: Final = {b"SQLite format 3\0": "a SQLite database", b"PAR1": "a Parquet file", b"\x1f\x8b": "a gzip file"}
_SEPARATED: Final = {".csv": "a CSV file", ".tsv": "a TSV file"}
_OUR_NAMES: Final = (b"schema_version", b"spool_sha256")
"""A table and a column that every result database has; DuckDB stores their names as they are."""


def is_duckdb_file(path: Path) -> bool:
    """Return whether a regular file begins as DuckDB's do.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return file.read(_MAGIC_AT + len(_MAGIC))[_MAGIC_AT:] == _MAGIC


def require_duckdb_file(path: Path) -> None:
    """Check that a path is free, or leads to an empty file or one that begins as DuckDB's do.

    Raises:
        UserError: It leads to anything else; says to what.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise _refusal(path, "a link to a file that does not exist") from None
        return
    except OSError:
        return  # whoever opens it says why
    if not stat.S_ISREG(found.st_mode):
        raise _refusal(path, "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, a socket or a device")
    try:
        if not found.st_size or is_duckdb_file(path):
            return
        raise _refusal(path, _kind(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def is_ours(path: Path) -> bool:
    """Return whether a damaged DuckDB file was one of ExitBench, by its content, or is too short for a row."""
    if path.stat().st_size <= _HEADER_BYTES:
        return True
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return all(content.find(name) >= 0 for name in _OUR_NAMES)


def _kind(path: Path) -> str | None:
    """Name the format of a file, if it is a common one."""
    with path.open("rb") as file:
        start = file.read(_START_BYTES)
    for magic, name in _PROGRAMS.items():
        if start.startswith(magic):
            return name
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(start)  # its last character may be cut in two
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else _SEPARATED.get(path.suffix.lower(), "a text file")


def _refusal(path: Path, kind: str | None) -> UserError:
    what = f"{kind}, not a DuckDB database" if kind else "not a DuckDB database"
    return UserError(f"{path} is {what}; it is left as it is. Name a result database, or a file that does not exist.")
