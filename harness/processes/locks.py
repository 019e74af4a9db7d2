"""Advisory file locks, which the system releases when a process dies."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from exitbench.errors import UserError

_NO_LOCKS: Final = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
"""Error numbers of file systems that do not support locks."""


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Context manager that holds an exclusive file lock; its value is True if the lock was obtained.

    The file exists only while a process holds the lock or waits for it. On a file system without locks, the lock counts
    as held (see docs/guide/cluster.md).

    Args:
        path: The lock file; its folder is created if missing.
        wait: Whether to wait if another process holds the lock. If False, yield False in this case.

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
        # The file is removed before the release: a waiting process then creates a new file.
        with contextlib.suppress(PermissionError):  # on Windows, releasing the lock removes the file
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
