"""Regular files in real folders: links are not followed, and nothing else (pipes, devices) is opened.

A third-party spool may contain a link to a private file of the user who reads it, or a device whose data never ends.
The root of a spool may be a link, since users keep results on another disk; paths inside may not.
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
    """Return `os.open` flags for reading, plus those of the named flags that the platform has."""
    return os.O_RDONLY | sum(getattr(os, name, 0) for name in names)


_NO_LINK: Final = _flags("O_NOFOLLOW")
_FILE: Final = _NO_LINK | _flags("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")
"""Non-blocking, since opening a pipe waits for a writer."""
_FOLDER: Final = _flags("O_DIRECTORY", "O_CLOEXEC")
_CHUNK_BYTES: Final = 1 << 20


class NotRegular(OSError):
    """Raised for a link, a pipe, a device, a file in place of a folder, or a folder in place of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "is a link, or something else than a regular file in a folder", str(path))


class TooLarge(OSError):
    """Raised for a file with more bytes than allowed."""

    def __init__(self, path: Path, limit: int) -> None:
        super().__init__(errno.EFBIG, f"has more than {limit} bytes, which no file of its kind has", str(path))


def open_regular(path: Path, folder: int | None = None) -> BufferedReader:
    """Open a regular file for reading.

    Args:
        path: The file; only its last component must not be a link.
        folder: Descriptor of the folder that contains `path.name`; None: the path's own folder.

    Raises:
        NotRegular: The path is a link, a folder, a pipe, a socket or a device.
        OSError: The file is missing or cannot be opened.
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
        TooLarge: The file has more than `limit` bytes.
        OSError: As for `open_regular`.
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise TooLarge(path, limit)
    return content


class Folder:
    """Open folder, from which files and folders are opened by name.

    Files are opened in this very folder, even if its path is replaced in the meantime. Use it as a context manager.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def root(cls, path: Path) -> Self:
        """Open a folder by its path, which may be a link."""
        return cls(path, os.open(path, _FOLDER))

    def folder(self, name: str) -> "Folder":
        """Open a subfolder.

        Raises:
            NotRegular: The subfolder is a link, or not a folder.
            OSError: The subfolder is missing or cannot be opened.
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
            OSError: As for `open_regular`.
        """
        return open_regular(self.path / name, self._descriptor)

    def copy(self, name: str, target: Path, limit: int) -> None:
        """Copy a file of this folder to `target`, which must not exist.

        Raises:
            NotRegular: The source is no regular file.
            TooLarge: The source has more than `limit` bytes.
            OSError: The source cannot be read, or the copy cannot be written.
        """
        with self.open(name) as source, target.open("xb") as copy:
            if os.fstat(source.fileno()).st_size > limit:
                raise TooLarge(self.path / name, limit)
            remaining = limit
            while chunk := source.read(_CHUNK_BYTES):
                remaining -= len(chunk)
                if remaining < 0:  # the file grew in the meantime
                    raise TooLarge(self.path / name, limit)
                copy.write(chunk)

    def close(self) -> None:
        """Close the folder; further calls do nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def opened(root: Path, *names: str) -> Iterator[Folder]:
    """Yield the open folder `root/name/...`; names are opened one by one, so that no link below `root` is followed.

    Raises:
        NotRegular: A component is a link or no folder.
        OSError: A component is missing or cannot be opened.
    """
    folder = Folder.root(root)
    try:
        for name in names:
            with folder as parent:
                folder = parent.folder(name)
        yield folder
    finally:
        folder.close()
