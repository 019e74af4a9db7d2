"""Regular files in real folders: no link is followed, and nothing else (a pipe, a device) is opened.

Who hands on a spool may have put a link to a file of the reader's into it, or a device that never ends. The root of a
spool may be a link, since people keep results on another disk; what is inside may not.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Final, Self


def _flags(*names: str) -> int:
    """Flags of `os.open`; Windows lacks some, and others lack those of Windows."""
    return os.O_RDONLY | sum(getattr(os, name, 0) for name in names)


_NO_LINK: Final = _flags("O_NOFOLLOW")
_FILE: Final = _NO_LINK | _flags("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")
"""Not blocking, since opening a pipe waits for who writes it."""
_FOLDER: Final = _flags("O_DIRECTORY", "O_CLOEXEC")
_CHUNK_BYTES: Final = 1 << 20


class NotRegular(OSError):
    """A link, a pipe, a device, or a file where a folder should be, and the other way round."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "is a link, or something else than a regular file in a folder", str(path))


class TooLarge(OSError):
    """A file of more bytes than it may have."""

    def __init__(self, path: Path, limit: int) -> None:
        super().__init__(errno.EFBIG, f"has more than {limit} bytes, which no file of its kind has", str(path))


def open_regular(path: Path, folder: int | None = None) -> BufferedReader:
    """Open a regular file for reading.

    Args:
        path: The file; only its last part may not be a link.
        folder: Descriptor of the folder that `path.name` is in, in place of the path's.

    Raises:
        NotRegular: It is a link, a folder, a pipe, a socket or a device.
        OSError: It is missing or cannot be opened.
    """
    if not _NO_LINK and path.is_symlink():  # Windows
        raise NotRegular(path)
    try:
        descriptor = os.open(path if folder is None else path.name, _FILE, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, or a socket
            raise NotRegular(path) from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise NotRegular(path)


def read_regular(path: Path, limit: int) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        TooLarge: It has more than `limit` bytes.
        OSError: As `open_regular`.
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise TooLarge(path, limit)
    return content


class Folder:
    """An open folder, from which files and folders are opened by name.

    What is opened lies in this very folder, whatever takes the place of its path meanwhile. Use it as a context
    manager.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def root(cls, path: Path) -> Self:
        """Open a folder by its path, which may be a link."""
        return cls(path, os.open(path, _FOLDER))

    def folder(self, name: str) -> "Folder":
        """Open a folder in this one.

        Raises:
            NotRegular: It is a link, or no folder.
            OSError: It is missing or cannot be opened.
        """
        try:
            return Folder(self.path / name, os.open(name, _FOLDER | _NO_LINK, dir_fd=self._descriptor))
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise NotRegular(self.path / name) from error
            raise

    def open(self, name: str) -> BufferedReader:
        """Open a file of this folder for reading.

        Raises:
            OSError: As `open_regular`.
        """
        return open_regular(self.path / name, self._descriptor)

    def copy(self, name: str, target: Path, limit: int) -> None:
        """Copy a file of this folder to `target`, which must not exist.

        Raises:
            NotRegular: It is something else than a regular file.
            TooLarge: It has more than `limit` bytes.
            OSError: It cannot be read, or the copy cannot be written.
        """
        with self.open(name) as source, target.open("xb") as copy:
            if os.fstat(source.fileno()).st_size > limit:
                raise TooLarge(self.path / name, limit)
            left = limit
            while chunk := source.read(_CHUNK_BYTES):
                left -= len(chunk)
                if left < 0:  # it grew meanwhile
                    raise TooLarge(self.path / name, limit)
                copy.write(chunk)

    def close(self) -> None:
        """Close it, once."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def opened(root: Path, *names: str) -> Iterator[Folder]:
    """Open a folder below a root, each part of its path in the one before.

    Raises:
        NotRegular: A part is a link or no folder.
        OSError: A part is missing or cannot be opened.
    """
    folder = Folder.root(root)
    try:
        for name in names:
            with folder as above:
                folder = above.folder(name)
        yield folder
    finally:
        folder.close()
