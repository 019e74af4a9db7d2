"""Folders that are complete or absent: written beside their place, sealed with the digest of every file, renamed."""

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError

SEAL: Final = "DONE"
"""JSON of every other file's SHA-256, by name."""


class SpoolError(UserError):
    """Something in the spool, or about to be written to it, is not what the contract says."""


class DamagedFile(SpoolError):
    """A file is not what was written; one that the device cannot read at the moment is none."""


def write_sealed(folder: Path, fill: Callable[[Path], None]) -> None:
    """Write a folder with a seal; one that is there already (another process was faster) stays as it is.

    Args:
        folder: Its place; what is above it is created.
        fill: Writes the files into an empty folder.

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


def write_whole(folder: Path, fill: Callable[[Path], None]) -> None:
    """Write a folder, or nothing of it.

    Args:
        folder: Its place, empty so far; what is above it is created.
        fill: Writes the files into an empty folder beside it, which is then renamed.

    Raises:
        UserError: The folder cannot be written.
    """
    try:
        _write_beside(folder, fill)
    except OSError as error:
        raise _cannot_write(folder, error) from error


def own_name(stem: str) -> str:
    """Return a name that no other process has, on this machine or another one that shares the folder.

    It ends with the number of the process, by which `exitbench gc` sees that it is alive.
    """
    return f"{stem}-{secrets.token_hex(8)}-{os.getpid()}"


def check_sealed(folder: Path, needed: Collection[str]) -> None:
    """Check every file of a sealed folder against its digest.

    Args:
        folder: The folder.
        needed: Names of files that must be among them.

    Raises:
        UserError: A file is missing or not what was written; names it.
    """
    digests = read_json(folder / SEAL)
    if missing := sorted(set(needed) - digests.keys()):
        raise UserError(f"{folder / SEAL}: does not list {', '.join(missing)}.")
    for name, digest in digests.items():
        check_digest(folder / name, digest)


def check_digest(path: Path, digest: str) -> None:
    """Check one file.

    Raises:
        DamagedFile: It is missing or not what was written; names it.
        SpoolError: It cannot be read.
    """
    try:
        found = sha256(path)
    except FileNotFoundError as error:
        raise DamagedFile(f"{path}: is missing.") from error
    except OSError as error:
        raise SpoolError(f"{path}: cannot be read: {error.strerror}.") from error
    if found != digest:
        raise DamagedFile(f"{path}: is not what was written (its SHA-256 differs from the one in {SEAL}).")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file.

    Raises:
        DamagedFile: It is missing, or not a JSON object.
        SpoolError: It cannot be read.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DamagedFile(f"{path}: is missing.") from error
    except OSError as error:
        raise SpoolError(f"{path}: cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise DamagedFile(f"{path}: is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DamagedFile(f"{path}: is not a JSON object.")
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False), encoding="utf-8")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_beside(folder: Path, fill: Callable[[Path], None]) -> None:
    partial = folder.parent / own_name(f".{folder.name[:32]}")
    try:
        partial.mkdir(parents=True)
        fill(partial)
        _to_disk(partial)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _cannot_write(folder: Path, error: OSError) -> UserError:
    return UserError(f"{folder}: cannot be written: {error.strerror}.")


def _to_disk(folder: Path) -> None:
    """Let no power cut leave a sealed folder with files that are not there."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
