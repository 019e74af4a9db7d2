"""Files in tar archives, read in memory: nothing is unpacked, no path of an archive is followed."""

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from exitbench.errors import UserError
from exitbench.tasks.sources import MAX_BYTES

_MAX_MEMBERS = 10_000


def read_members(path: Path, endings: str | tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each regular file of an archive whose name has one of some endings.

    Raises:
        UserError: No archive, a damaged one, one that holds too much, or text that is not UTF-8.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file.")
    left = MAX_BYTES
    try:
        with tarfile.open(path, "r|*") as archive:
            for number, member in enumerate(archive):
                left -= member.size
                if left < 0 or number >= _MAX_MEMBERS:
                    raise UserError(f"{path}: holds more than {MAX_BYTES} bytes or {_MAX_MEMBERS} files. Split it.")
                if not member.isreg() or not member.name.endswith(endings):
                    continue
                file = archive.extractfile(member)
                assert file is not None, "a regular file"
                data = file.read()
                if member.name.endswith(".gz"):
                    data = _unpacked(data, left, path)
                    left -= len(data)
                yield member.name, _decoded(data, f"{path}, {member.name}")
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise UserError(f"{path}: not a whole tar archive ({error}). Copy it again.") from None


def _unpacked(data: bytes, most: int, path: Path) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        unpacked = file.read(most + 1)
    if len(unpacked) > most:
        raise UserError(f"{path}: holds more than {MAX_BYTES} bytes unpacked. Split it.")
    return unpacked


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{where}, line {line}: not UTF-8.") from None
