"""Atomic file writes, for files that people read while they are written anew."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a path beside `path` to write to; it takes the place of `path` if nothing was raised, else it is removed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_whole_file(path: Path, content: bytes | str) -> None:
    """Write `content` (text as UTF-8, its newlines as they are) so that a reader finds all of it or what was there."""
    with whole_file(path) as beside:
        beside.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
