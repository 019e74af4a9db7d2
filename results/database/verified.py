"""Cache of verified databases: those that were checked and whose file has not changed since.

A run opens its database hundreds of times, and looking at all tables, views and macros takes longer than opening it.
Whoever fills a database leaves a mark beside it, so that the next process need not look either: a mark counts where
it and the database belong to the user and nobody else may write them, and names the file's inode and the time of its
last change, which nobody can choose.
"""

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Final

from exitbench.results.files.whole_file import write_whole_file

_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH

_verified: dict[Path, tuple[str, tuple[int, ...]]] = {}


def remember(path: Path, version: str) -> None:
    """Note that a database is as `version` makes it.

    Args:
        path: The file; nobody may be able to write it at this moment.
        version: Digest of tables and views.
    """
    state = file_state(path)
    if state is None:
        _verified.pop(path.absolute(), None)
    else:
        _verified[path.absolute()] = version, state


def leave_mark(path: Path, version: str) -> None:
    """Note it for other processes too, in a file beside the database; for those who have written it.

    Args:
        path: As for `remember`.
        version: Likewise.
    """
    with contextlib.suppress(OSError):  # who finds no mark looks for himself
        if (state := file_state(path)) is not None:
            write_whole_file(mark_of(path), json.dumps([version, state]))
            mark_of(path).chmod(0o600)


def mark_of(path: Path) -> Path:
    """Return where the mark of a database lies."""
    return path.with_name(f".{path.name}.verified")


def is_verified(path: Path, version: str) -> bool:
    """Return whether a database was remembered with this version, and its file has not changed since."""
    state = file_state(path)
    if state is None:
        return False
    return _verified.get(path.absolute()) == (version, state) or _marked(path) == [version, list(state)]


def was_marked(path: Path) -> bool:
    """Return whether a mark lies beside a file: it was a database of ExitBench, whatever has happened to it since."""
    return _marked(path) is not None


def _marked(path: Path) -> object:
    """What the mark says; nothing where somebody else could have made it."""
    try:
        if not all(_is_private(file) for file in (path, mark_of(path))):
            return None
        return json.loads(mark_of(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _is_private(file: Path) -> bool:
    found = file.lstat()
    owned = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    return stat.S_ISREG(found.st_mode) and owned and not found.st_mode & _WRITABLE_BY_OTHERS


def file_state(path: Path) -> tuple[int, ...] | None:
    """Return what changes with a database's file; None where there is none, or a log of what is not in it yet."""
    if path.with_name(f"{path.name}.wal").exists():
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    # The time of the last change cannot be chosen, as that of the last writing can.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
