"""File locks that the system lets go of however their holder ends."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from exitbench.errors import UserError


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a lock while the context lasts; the context is given whether it is held.

    The file is there only as long as somebody holds it or waits for it. Where a file system has no locks, the lock
    counts as held: whoever relies on it there has been told so (docs/cluster.md).

    Args:
        path: The file; its folder is made when missing.
        wait: Whether to wait for another holder. Without, the context is given False if there is one.

    Raises:
        UserError: The file is a link.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _acquire(path, wait)
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        # Removed before it is let go: who waits for it finds that it is no longer there, and makes a new one.
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path, wait: bool) -> int | None:
    while True:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:  # no locks here
            return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        if _is_at(descriptor, path):
            return descriptor
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UserError(f"{path} is a link, which a lock never is. Remove it.") from None


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the locked file is still the one that others find."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False
