"""A lake's files as DuckDB sees them: those that manifests name, for reading, each looked at before its first row is.

DuckDB opens them by fsspec (`register_filesystem`), without an extension. It is given names of ours, asks for all of a
table by one pattern, and can open nothing else.
"""

import hashlib
import io
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from threading import Lock, local
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem

from exitbench.errors import UserError, told
from exitbench.results.database.tables import spelled
from exitbench.results.lake.manifest import LakeFile
from exitbench.results.lake.places import Parts, Place

PROTOCOL: Final = "exitbench-lake"
_URL: Final = f"{PROTOCOL}://"
_WHOLE_BYTES: Final = 1 << 20
"""Files up to this size are read at one go, held to their digest, and kept."""
_KEPT_BYTES: Final = 128 << 20
_UNCHANGING: Final = datetime(2000, 1, 1, tzinfo=UTC)


def all_files(table: str) -> str:
    """Return the pattern that stands for every file of a table."""
    return f"{_URL}{table}/*"


class _Whole:
    """A small file, which is in memory."""

    def __init__(self, content: bytes) -> None:
        self.size = len(content)
        self._content = content

    def at(self, start: int, stop: int) -> bytes:
        """Return the bytes from one place to another."""
        return self._content[start:stop]

    def close(self) -> None:
        """Nothing is open."""


class Handle(io.RawIOBase):
    """A file as DuckDB reads it: its threads share one, and each goes to a place and reads there."""

    def __init__(self, parts: Parts) -> None:
        self.size = parts.size
        self._parts = parts
        self._place = local()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, as seen by this thread."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: self.size}[whence]
        self._place.at = base + offset
        return base + offset

    def tell(self) -> int:
        """Return this thread's place."""
        return getattr(self._place, "at", 0)

    def seekable(self) -> bool:
        """Return that one can."""
        return True

    def readable(self) -> bool:
        """Return that one can."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, fewer at the end."""
        start = self.tell()
        content = self._parts.at(start, self.size if size < 0 else min(start + size, self.size))
        self._place.at = start + len(content)
        return content

    def close(self) -> None:
        """Let go of the file."""
        self._parts.close()
        super().close()


class _Footer(Handle):
    """A file of which somebody else reads the end and closes it; it stays open."""

    def close(self) -> None:
        """Leave it open."""


class Served(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The files of a lake by name.

    Attributes:
        opened: Names of the files opened so far, each as often as it was.
        trouble: What was wrong with the first file that was not what its manifest says; None so far.
    """

    protocol = PROTOCOL
    cachable = False

    def __init__(self, place: Place, files: Mapping[str, Sequence[LakeFile]], schemas: Mapping[str, pa.Schema]) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.trouble: str | None = None
        self._place, self._schemas = place, schemas
        self._of_table = {table: [file.name for file in of_table] for table, of_table in files.items()}
        self._files = {file.name: file for of_table in files.values() for file in of_table}
        self._found_good: set[str] = set()
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = Lock()

    def glob(self, path: str, maxdepth: int | None = None, **_: Any) -> list[str]:
        """Return the names that a pattern of `all_files` stands for, or the one name."""
        name = path.removeprefix(_URL)
        return self._of_table.get(name.removesuffix("/*"), [name] if name in self._files else [])

    def unstrip_protocol(self, name: str) -> str:
        """Return a name as DuckDB has it; asked for each file of a pattern."""
        return name if name.startswith(_URL) else _URL + name

    def exists(self, path: str, **_: Any) -> bool:
        """Return whether a manifest names the file."""
        return path.removeprefix(_URL) in self._files

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return a file's size, as its manifest says."""
        file = self._file(path)
        return {"name": file.name, "size": file.bytes, "type": "file"}

    def modified(self, path: str) -> datetime:
        """Return one moment, since no file changes."""
        return _UNCHANGING

    def open(self, path: str, mode: str = "rb", **_: Any) -> Handle:
        """Open a file for reading.

        Raises:
            OSError: It is none of the lake's, is not what its manifest says, or cannot be read; `trouble` says which.
        """
        if mode != "rb":
            raise PermissionError(f"{path}: a lake is only read")
        file = self._file(path)
        try:
            handle = self._opened(file)
        except UserError as error:
            self.trouble = self.trouble or str(error)
            raise OSError(str(error)) from None
        self.opened.append(file.name)
        return handle

    def _file(self, path: str) -> LakeFile:
        file = self._files.get(path.removeprefix(_URL))
        if file is None:
            raise FileNotFoundError(f"{path}: no manifest names it")
        return file

    def _opened(self, file: LakeFile) -> Handle:
        small = file.bytes <= _WHOLE_BYTES
        parts = _Whole(self._content(file)) if small else self._place.parts(file.name, file.bytes)
        try:
            self._require_good(file, parts)
        except BaseException:
            parts.close()
            raise
        return Handle(parts)

    def _content(self, file: LakeFile) -> bytes:
        """Return the bytes of a small file; one that is asked for again soon was kept."""
        with self._lock:
            if (content := self._kept.get(file.name)) is not None:
                self._kept.move_to_end(file.name)
                return content
        content = self._place.read(file.name, _WHOLE_BYTES)
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise self._torn(file, "its SHA-256 is not the manifest's")
        with self._lock:
            self._kept[file.name] = content
            while sum(map(len, self._kept.values())) > _KEPT_BYTES:
                self._kept.popitem(last=False)
        return content

    def _require_good(self, file: LakeFile, parts: Parts) -> None:
        """Check size, columns, types and rows of a file that is opened for the first time.

        Raises:
            UserError: They are not what the manifest, and this version's schema, say.
        """
        if file.name in self._found_good:
            return
        if parts.size != file.bytes:
            raise self._torn(file, f"it has {parts.size} bytes, not {file.bytes}")
        try:
            metadata = pq.read_metadata(_Footer(parts))
            found = metadata.schema.to_arrow_schema()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._torn(file, f"it cannot be read as Parquet: {told(error)}") from None
        groups = sum(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
        if not metadata.num_rows == groups == file.rows:
            raise self._torn(file, f"it has {metadata.num_rows} rows, not {file.rows}")
        expected = self._schemas[file.table]
        types = {name: found.field(name).type for name in found.names}
        for field in expected:
            if types.get(field.name) != field.type:
                said = spelled(str(types.get(field.name, "missing")))
                raise self._torn(file, f"column {field.name} is {said}, not {field.type}")
        if len(found.names) != len(expected):
            unknown = next((name for name in found.names if name not in expected.names), found.names[-1])
            raise self._torn(file, f"it has a column {spelled(unknown)} too many")
        self._found_good.add(file.name)

    def _torn(self, file: LakeFile, why: str) -> UserError:
        return UserError(f"{self._place.where}/{file.name}: is not what was exported: {why}.")
