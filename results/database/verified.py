"""Cache of verified databases: those this process has checked and whose file has not changed since.

A run opens its database hundreds of times, and looking at all tables, views and macros takes longer than opening it.
"""

from pathlib import Path

_verified: dict[Path, tuple[str, tuple[int, ...]]] = {}


def remember(path: Path, version: str) -> None:
    """Note that a database is as `version` makes it.

    Args:
        path: The file; nobody may be able to write it at this moment.
        version: Digest of migrations and views.
    """
    state = _state(path)
    if state is None:
        _verified.pop(path.absolute(), None)
    else:
        _verified[path.absolute()] = version, state


def is_verified(path: Path, version: str) -> bool:
    """Return whether a database was remembered with this version, and its file has not changed since."""
    state = _state(path)
    return state is not None and _verified.get(path.absolute()) == (version, state)


def _state(path: Path) -> tuple[int, ...] | None:
    """What changes with a file; None where there is none, or a log of what is not in it yet."""
    if path.with_name(f"{path.name}.wal").exists():
        return None
    try:
        info = path.stat()
    except OSError:
        return None
    # The time of the last change cannot be chosen, as that of the last writing can.
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns
