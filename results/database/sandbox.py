"""Sandboxed DuckDB connections for untrusted files: they reach the named files and nothing else."""

import glob
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import duckdb

from exitbench.results.database.tables import quoted_text
from exitbench.results.files.duckdb_files import in_memory

NO_EXTENSIONS: Final[dict[str, Any]] = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
"""Configuration of every connection: what DuckDB lacks is neither fetched nor loaded because a file asks for it."""
# A probed token's lists make DuckDB's default of 122,880 rows a row group larger than most attempts; and what fills a
# row group is written straight into the file. Everything else is written into its log first, then into the file, and
# once more when row groups that are not full are joined.
_ROW_GROUP_ROWS: Final = 8_192
# The oldest DuckDB that can read a new database: people have older command lines than we have libraries.
_STORAGE_VERSION: Final = "v1.2.0"
_LOGS: Final = ("", ".wal", ".wal.checkpoint", ".wal.recovery")
"""What DuckDB keeps beside a database, by the end of its name."""


def attach_sql(path: Path, name: str) -> str:
    """Return SQL that makes a file a database of a connection's, to be written; only this can say how it is stored."""
    stored = f"ROW_GROUP_SIZE {_ROW_GROUP_ROWS}"
    if not path.exists():  # one that exists keeps its version, which cannot be lowered
        stored += f", STORAGE_VERSION '{_STORAGE_VERSION}'"
    return f"ATTACH {quoted_text(str(path))} AS {name} (TYPE duckdb, {stored})"


def sandbox(
    readable: Iterable[Path], folder: Path, folders: Iterable[Path] = (), settings: Iterable[str] = ()
) -> duckdb.DuckDBPyConnection:
    """Return a connection that reaches some files and a folder of one's own, for good.

    Args:
        readable: Files of others, and of a database what DuckDB keeps beside it.
        folder: Where it may write, and does so when memory is short.
        folders: Folders of others.
        settings: Further settings, as NAME = VALUE.
    """
    # DuckDB asks first whether a pattern is allowed, and then each file that it matches.
    names = [name for path in map(str, readable) for name in (path, glob.escape(path))]
    files = [quoted_text(name + end) for name in names for end in _LOGS]
    duck = in_memory(**NO_EXTENSIONS, python_enable_replacements=False)
    for setting in (
        f"temp_directory = {quoted_text(str(folder / 'spilled'))}",
        f"allowed_paths = [{', '.join(files)}]",
        f"allowed_directories = [{', '.join(quoted_text(str(each)) for each in (folder, *folders))}]",
        *settings,
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        duck.execute(f"SET {setting}")
    return duck
