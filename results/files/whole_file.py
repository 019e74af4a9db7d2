"""Atomic file writes, for files that people read while they are written anew."""

import errno
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_KINDS: Final = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a path beside `path` to write to; it takes the place of `path` if nothing was raised, else it is removed.

    Raises:
        OSError: `path` is there and is no regular file, before anything is written; or it cannot be replaced.
    """
    require_replaceable(path)
    # Not to be guessed: in a folder that others can write, a link could lie there.
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        yield beside
        require_replaceable(path)  # writing may have taken hours
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def require_replaceable(path: Path) -> None:
    """Check that a path is free or leads to a regular file, and is no link to one.

    Raises:
        OSError: It is a link, a folder, a pipe, a socket or a device, which a file would take the place of.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise OSError(errno.EINVAL, f"it is {kind}; only a regular file is replaced", str(path))


def write_whole_file(path: Path, content: bytes | str) -> None:
    """Write `content` (text as UTF-8, its newlines as they are) so that a reader finds all of it or what was there."""
    with whole_file(path) as beside:
        beside.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
