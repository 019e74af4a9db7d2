"""Advisory file locks, released on process death."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from exitbench.errors import UserError

_NO_LOCKS: Final = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
"""What file systems say that have none."""


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a lock while the context lasts; the context is given whether it is held.

    The file is there only as long as somebody holds it or waits for it. Where a file system has no locks, the lock
    counts as held: whoever relies on it there has been told so (docs/guide/cluster.md).

    Args:
        path: The file; its folder is made when missing.
        wait: Whether to wait for another holder. Without, the context is given False if there is one.

    Raises:
        UserError: The file is a link.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, fallback_to_soft=False)
    if not _acquire(lock, path, wait):
        yield False
        return
    try:
        yield True
    finally:
        # Removed before it is let go: who waits for it finds that it is no longer there, and makes a new one.
        with contextlib.suppress(PermissionError):  # Windows, where letting go removes it
            path.unlink(missing_ok=True)
        lock.release()


def _acquire(lock: FileLock, path: Path, wait: bool) -> bool:
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path} is a link, which a lock never is. Remove it.") from None
        if error.errno not in _NO_LOCKS:
            raise
    return True
