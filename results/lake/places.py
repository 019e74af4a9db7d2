"""Where a lake lies: a folder of this machine, or a bucket of an S3-compatible store by fsspec.

A place lists, reads and adds files by names with slashes, and replaces none. Credentials of a store are s3fs's matter
(environment, profile, role): they are neither asked for nor kept here.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

from exitbench.errors import UserError, told
from exitbench.results.files.atomic_folder import unique_name
from exitbench.results.files.regular import NotRegular, TooLarge, opened

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_S3: Final = "s3://"
_OTHER: Final = re.compile(r"[a-z0-9+.-]+://", re.IGNORECASE)
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_READ_AHEAD_BYTES: Final = 1 << 20
"""A store takes as long for a few bytes as for so many."""
_READERS: Final = 16
_UNFINISHED: Final = ".unfinished"
"""Folder of what a local exporter is writing; nobody reads there."""


class Parts(Protocol):
    """An open file of so many bytes, of which any thread may ask for any part."""

    size: int

    def at(self, start: int, stop: int) -> bytes:
        """Return the bytes from one place to another."""

    def close(self) -> None:
        """Let go of it."""


class Place(Protocol):
    """Files by name; `where` is how a person names the place."""

    where: str

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of every file below a folder (of all of them for ''), by name; none where there is none."""

    def read(self, name: str, limit: int) -> bytes:
        """Return a file of at most `limit` bytes."""

    def parts(self, name: str, size: int) -> Parts:
        """Open a file that should have `size` bytes, to read parts of it."""

    def add(self, name: str, content: bytes | Path) -> None:
        """Write a file, all of it at once; one that is there already stays."""


def place_of(text: str) -> Place:
    """Return the place that a person names.

    Raises:
        UserError: It is neither a folder nor s3://BUCKET/PREFIX, or what reads S3 is not installed.
    """
    if text.startswith(_S3):
        bucket, _, prefix = text.removeprefix(_S3).partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise UserError(
                f"{text}: {bucket!r} is not the name of a bucket. Allowed: s3://BUCKET or s3://BUCKET/PREFIX."
            )
        return BucketPlace(text.rstrip("/"), f"{bucket}/{prefix.strip('/')}".rstrip("/"))
    if _OTHER.match(text):
        raise UserError(f"{text}: a lake is a folder, or s3://BUCKET/PREFIX. Other stores are not known.")
    if not text:
        raise UserError("'': names no lake. Allowed: a folder, or s3://BUCKET/PREFIX.")
    return FolderPlace(Path(text))


def read_all(place: Place, names: Sequence[str], limit: int) -> Iterator[tuple[str, bytes]]:
    """Yield many small files, several being fetched at a time."""
    with ThreadPoolExecutor(_READERS) as pool:
        yield from zip(names, pool.map(lambda name: place.read(name, limit), names), strict=True)


class FolderPlace:
    """A folder, which may be a link itself; no link below it is followed."""

    def __init__(self, root: Path) -> None:
        self.where = str(root)
        self._root = root

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of every regular file."""
        found: dict[str, int] = {}
        waiting = [folder]
        while waiting:
            parent = waiting.pop()
            with _explained(self.where), suppress(FileNotFoundError), os.scandir(self._root / parent) as entries:
                for entry in entries:
                    name = f"{parent}/{entry.name}".lstrip("/")
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(name)
                    elif entry.is_file(follow_symlinks=False):
                        found[name] = entry.stat(follow_symlinks=False).st_size
        return found

    def read(self, name: str, limit: int) -> bytes:
        """Return a regular file's bytes."""
        with closing(self.parts(name, limit)) as file:
            if file.size > limit:
                raise _too_large(f"{self.where}/{name}", limit)
            return file.at(0, file.size)

    def parts(self, name: str, size: int) -> Parts:
        """Open a regular file in regular folders."""
        *folders, last = name.split("/")
        where = f"{self.where}/{name}"
        with _explained(where), opened(self._root, *folders) as folder:
            return _FileParts(folder.open(last), where)

    def add(self, name: str, content: bytes | Path) -> None:
        """Write beside, then link into place: who comes second finds it there."""
        target, unfinished = self._root / name, self._root / _UNFINISHED
        beside = unfinished / unique_name(target.name[:32])
        with _explained(f"{self.where}/{name}"):
            for folder in (unfinished, target.parent):
                folder.mkdir(parents=True, exist_ok=True)
            try:
                with beside.open("xb") as file:
                    with BytesIO(content) if isinstance(content, bytes) else content.open("rb") as source:
                        shutil.copyfileobj(source, file)
                    file.flush()
                    os.fsync(file.fileno())
                _put_in_place(beside, target)
            finally:
                beside.unlink(missing_ok=True)


def _put_in_place(beside: Path, target: Path) -> None:
    try:
        os.link(beside, target)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        beside.replace(target)


class BucketPlace:
    """A prefix in a bucket; an object there is written whole, which is how such stores work."""

    def __init__(self, where: str, root: str) -> None:
        self.where = where
        self._root = root
        self._store = _s3()

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of every object."""
        with _explained(self.where):
            found: Mapping[str, Any] = self._store.find(self._key(folder), detail=True)
        start = len(self._root) + 1
        return {key[start:]: about["size"] for key, about in found.items()}

    def read(self, name: str, limit: int) -> bytes:
        """Return an object's bytes."""
        with _explained(f"{self.where}/{name}"):
            content: bytes = self._store.cat_file(self._key(name), start=0, end=limit + 1)
        if len(content) > limit:
            raise _too_large(f"{self.where}/{name}", limit)
        return content

    def parts(self, name: str, size: int) -> Parts:
        """Return what fetches parts of an object."""
        return _ObjectParts(self._store, self._key(name), size, f"{self.where}/{name}")

    def add(self, name: str, content: bytes | Path) -> None:
        """Write an object; the store itself refuses a second one of the name where it can."""
        key = self._key(name)
        with _explained(f"{self.where}/{name}"), suppress(FileExistsError):
            if isinstance(content, bytes):
                self._store.pipe_file(key, content, mode="create")
            else:
                self._store.put_file(str(content), key, mode="create")

    def _key(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")


class _FileParts:
    """An open file, read by several threads."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file, self._where = file, where
        self._lock = Lock()
        self.size = file.seek(0, os.SEEK_END)

    def at(self, start: int, stop: int) -> bytes:
        """Return the bytes from one place to another."""
        with self._lock, _explained(self._where):
            self._file.seek(start)
            return self._file.read(stop - start)

    def close(self) -> None:
        """Close it."""
        self._file.close()


class _ObjectParts:
    """An object of a store, fetched in parts of at least `_READ_AHEAD_BYTES`."""

    def __init__(self, store: "AbstractFileSystem", key: str, size: int, where: str) -> None:
        self._store, self._key, self._where = store, key, where
        self.size = size
        self._held = (0, b"")

    def at(self, start: int, stop: int) -> bytes:
        """Return the bytes from one place to another; those after them are kept for the next call."""
        begin, held = self._held
        if not begin <= start <= stop <= begin + len(held):
            # The end of a file is where its table of contents is: one request for all of it.
            begin = min(start, max(0, self.size - _READ_AHEAD_BYTES))
            with _explained(self._where):
                held = self._store.cat_file(
                    self._key, start=begin, end=min(max(stop, begin + _READ_AHEAD_BYTES), self.size)
                )
            self._held = begin, held
        return held[start - begin : stop - begin]

    def close(self) -> None:
        """Nothing is open."""


def _too_large(where: str, limit: int) -> UserError:
    return UserError(f"{where}: {TooLarge(Path(where), limit).strerror}.")


def _s3() -> "AbstractFileSystem":
    try:
        from s3fs import S3FileSystem
    except ImportError as error:
        raise UserError(
            f"s3://: needs s3fs, which is not installed. `pip install 'exitbench[lake]'` ({error})"
        ) from None
    return S3FileSystem(use_listings_cache=False, skip_instance_cache=True)


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Say in one sentence why a place cannot be read or written; what a store says may hold no secret but its own."""
    try:
        yield
    except FileExistsError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{where}: is not there, or there is no such bucket ({told(error)}).") from None
    except PermissionError as error:
        raise UserError(f"{where}: access is denied ({told(error)}).") from None
    except NotRegular as error:
        raise UserError(f"{where}: {error.strerror}.") from None
    except OSError as error:
        raise UserError(f"{where}: cannot be read or written: {error.strerror or told(error)}.") from None
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("botocore", "aiobotocore", "aiohttp"):
            raise
        if type(error).__name__ == "NoCredentialsError":
            raise UserError(
                f"{where}: no credentials were found. s3fs takes them from AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, from AWS_PROFILE, or from the machine's role."
            ) from None
        raise UserError(f"{where}: cannot be reached: {told(error)}.") from None
