"""Write files and folders completely or not at all; check their digests, kept in a seal file; lock files."""

import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.results.files.regular import NotRegular, TooLarge, open_regular, read_regular

SEAL: Final = "DONE"
"""File with the SHA-256 of every other file of the folder, as JSON by name."""

JSON_BYTES: Final = 32 << 20
"""Maximum size of a JSON file: the largest, pytest-benchmark's with the times of all rounds, has a few MB."""


class SpoolError(UserError):
    """Raised if data in the spool, or data to be written to it, violates the spool's format or cannot be read."""


class DamagedFile(SpoolError):
    """Raised if a file is missing or its content is invalid, but not if it cannot be read, such as for permissions."""


def write_digested_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Write a folder with a seal (digests of its files), completely or not at all; keep a folder that has a seal.

    Args:
        folder: Path of the folder; parents are created.
        fill: Function that writes the files into an empty temporary folder, which is then sealed and renamed.

    Raises:
        UserError: The folder cannot be written.
    """

    def fill_and_seal(partial: Path) -> None:
        fill(partial)
        write_json(partial / SEAL, {file.name: sha256(file) for file in sorted(partial.iterdir())})

    if (folder / SEAL).is_file():
        return
    try:
        _write_beside(folder, fill_and_seal)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not (folder / SEAL).is_file():
            raise _cannot_write(folder, error) from error


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Write a folder completely or not at all.

    Args:
        folder: Path of the folder, which must not exist or be empty; parents are created.
        fill: Function that writes the files into an empty temporary folder, which is then renamed.

    Raises:
        UserError: The folder cannot be written.
    """
    try:
        _write_beside(folder, fill)
    except OSError as error:
        raise _cannot_write(folder, error) from error


def unique_name(stem: str) -> str:
    """Return a name for a temporary file or folder that no other process uses, also on machines that share the disk.

    The name ends with the process id, by which `exitbench gc` finds out whether the process is alive.
    """
    return f"{stem}-{secrets.token_hex(8)}-{os.getpid()}"


def check_digested_folder(folder: Path, files: Collection[str]) -> None:
    """Check every file of a folder against its digest in the folder's seal, which must list exactly `files`.

    Raises:
        DamagedFile: The seal lists other files, or a file is missing or was changed; the message names it.
        SpoolError: A file cannot be read.
    """
    digests = read_digests(folder / SEAL)
    if missing := sorted(set(files) - digests.keys()):
        raise DamagedFile(f"{folder / SEAL}: does not list {', '.join(missing)}.")
    if unexpected := sorted(digests.keys() - set(files)):
        raise DamagedFile(f"{folder / SEAL}: lists {unexpected[0]!r}; allowed: {', '.join(files)}.")
    for name, digest in digests.items():
        check_digest(folder / name, digest)


def read_digests(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by name, as listed in the seal file at `path`.

    Raises:
        DamagedFile: As for `read_json`, or a value is no text.
        SpoolError: As for `read_json`.
    """
    digests = read_json(path)
    for name, digest in digests.items():
        if not isinstance(digest, str):
            raise DamagedFile(f"{path}: the SHA-256 of {name!r} is not text.")
    return digests


def check_digest(path: Path, digest: str) -> None:
    """Check that a file has the SHA-256 `digest`.

    Raises:
        DamagedFile: The file is missing, no regular file or changed; the message names it.
        SpoolError: The file cannot be read.
    """
    with _as_spool_errors(path):
        actual = sha256(path)
    if actual != digest:
        raise DamagedFile(f"{path}: was changed after it was written (its SHA-256 differs from the one in {SEAL}).")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file of at most `JSON_BYTES`.

    Raises:
        DamagedFile: The file is missing, no regular file, too large, or not a JSON object in UTF-8.
        SpoolError: The file cannot be read.
    """
    with _as_spool_errors(path):
        content = read_regular(path, JSON_BYTES)
    try:
        value = json.loads(content.decode("utf-8"))
        if b"\\u" in content:  # half of a surrogate pair cannot be encoded
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except ValueError as error:  # or an integer of thousands of digits
        raise DamagedFile(f"{path}: is not JSON: {error}") from error
    except RecursionError as error:
        raise DamagedFile(f"{path}: is not JSON: nested too deeply.") from error
    except MemoryError as error:
        raise SpoolError(f"{path}: cannot be read: out of memory.") from error
    if not isinstance(value, dict):
        raise DamagedFile(f"{path}: is not a JSON object.")
    return value


def read_json_or_empty(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file; empty if `read_json` raises. Ingest reports damaged files."""
    try:
        return read_json(path)
    except SpoolError:
        return {}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as indented JSON in UTF-8; NaN and infinity are not allowed."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False), encoding="utf-8")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a regular file as hexadecimal digits.

    Raises:
        OSError: The file cannot be read.
    """
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _as_spool_errors(path: Path) -> Iterator[None]:
    """Convert any OSError to a SpoolError: a DamagedFile if the file is missing, irregular or too large."""
    try:
        yield
    except FileNotFoundError as error:
        raise DamagedFile(f"{path}: is missing.") from error
    except (NotRegular, TooLarge) as error:
        raise DamagedFile(f"{path}: {error.strerror}.") from error
    except OSError as error:
        raise SpoolError(f"{path}: cannot be read: {error.strerror}.") from error


def _write_beside(folder: Path, fill: Callable[[Path], None]) -> None:
    partial = folder.parent / unique_name(f".{folder.name[:32]}")
    try:
        partial.mkdir(parents=True)
        fill(partial)
        _to_disk(partial)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _cannot_write(folder: Path, error: OSError) -> UserError:
    return UserError(f"{folder}: cannot be written: {error.strerror or error}.")


def _to_disk(folder: Path) -> None:
    """Flush a folder and its files to disk, so that a folder with a seal is complete even after a power failure."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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
    """Yield a temporary path to write to; the written file then replaces `path`, or is removed after an exception.

    Raises:
        OSError: `path` exists and is no regular file (raised before anything is written), or it cannot be replaced.
    """
    require_replaceable(path)
    # Unpredictable: in a folder that other users can write, a link could be placed there.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        yield partial
        require_replaceable(path)  # writing may have taken hours
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def require_replaceable(path: Path) -> None:
    """Check that a path does not exist or is a regular file, not a link to one.

    Raises:
        OSError: The path is a link, a folder, a pipe, a socket or a device, which must not be replaced.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise OSError(errno.EINVAL, f"it is {kind}; only a regular file is replaced", str(path))


def write_whole_file(path: Path, content: bytes | str) -> None:
    """Write `content` (text as UTF-8 with its newlines unchanged); readers see the old or the complete new content."""
    with whole_file(path) as partial:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    _KERNEL32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _AT_ONCE, _EXCLUSIVE, _HELD_BY_ANOTHER = 1, 2, 33

    class _Overlapped(ctypes.Structure):
        _fields_ = (
            ("internal", ctypes.c_void_p),
            ("internal_high", ctypes.c_void_p),
            ("offset", wintypes.DWORD),
            ("offset_high", wintypes.DWORD),
            ("event", wintypes.HANDLE),
        )

    def lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
        """Lock an open file until it is closed; return False if another process holds the lock and `wait` is False.

        Several processes can hold a `shared` lock at once.

        Raises:
            OSError: The file cannot be locked, for example because its file system does not support locks.
        """
        handle = wintypes.HANDLE(msvcrt.get_osfhandle(descriptor))
        flags = (0 if shared else _EXCLUSIVE) | (0 if wait else _AT_ONCE)
        place = _Overlapped(offset_high=1)  # a byte far beyond the text: locked bytes cannot be read by other processes
        if _KERNEL32.LockFileEx(handle, flags, 0, 1, 0, ctypes.byref(place)):
            return True
        if (error := ctypes.get_last_error()) == _HELD_BY_ANOTHER:
            return False
        raise ctypes.WinError(error)

else:
    import fcntl

    def lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
        """Lock an open file until it is closed; return False if another process holds the lock and `wait` is False.

        Several processes can hold a `shared` lock at once.

        Raises:
            OSError: The file cannot be locked, for example because its file system does not support locks.
        """
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True
