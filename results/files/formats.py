"""Text formats: canonical JSON and its digests, TOML, CSV, and paths without a home folder."""

import csv
import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TextIO


def canonical_json(value: Any) -> str:
    """Return the JSON text of `value` with sorted keys, no spaces, and no NaN or infinity.

    >>> canonical_json({"b": 1, "a": [True, "x"]})
    '{"a":[true,"x"],"b":1}'

    Raises:
        ValueError: `value` contains NaN or infinity, which JSON does not have.
        TypeError: `value` contains something that JSON does not have, or keys that cannot be sorted.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_id(value: Any) -> str:
    """Return the SHA-256 (64 hex digits) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def source_files(package: ModuleType, pattern: str = "*.py") -> list[tuple[str, Path]]:
    """Return (relative name, path) of a package's files that match `pattern`, without compiled files."""
    return [
        (str(path.relative_to(folder)), path)
        for folder in package.__path__
        for path in sorted(Path(folder).rglob(pattern))
        if path.suffix != ".pyc" and path.is_file()
    ]


@cache
def sources_sha256(package: ModuleType) -> str:
    """Return the SHA-256 of the names and contents of all Python files of a package."""
    digest = hashlib.sha256()
    for name, path in source_files(package):
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def toml_table(header: str, values: Mapping[str, Any]) -> list[str]:
    """Return an empty line and the lines of a TOML table; `header` includes the brackets."""
    return ["", header, *(f"{toml_key(name)} = {toml_value(value)}" for name, value in values.items())]


def toml_key(name: str) -> str:
    """Return a name as a TOML key, quoted if necessary."""
    return name if _BARE.fullmatch(name) else toml_value(name)


def toml_value(value: Any) -> str:
    """Return a JSON value in TOML syntax.

    Raises:
        TypeError: The value is None, which TOML does not have, or not a JSON value.
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_key(name)} = {toml_value(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, str):
        # JSON's escapes are TOML's, except for characters beyond 16 bits, which JSON may escape as two
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if value is None or not isinstance(value, bool | int | float):
        raise TypeError(f"TOML has no {value!r}")
    return json.dumps(value)


_LINE_END: Final = "\r\n"


class _LineFeeds:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, line: str) -> None:
        self._stream.write(line.removesuffix(_LINE_END) + "\n")


def csv_writer(stream: TextIO) -> Any:
    """Return a `csv.writer` that ends lines with a line feed.

    With this line end, the standard writer would leave a carriage return in a value unquoted, and readers would take
    it as a line end.
    """
    return csv.writer(_LineFeeds(stream), lineterminator=_LINE_END)


_PACKAGES: Final = re.compile(r"[~/][^\s\"':]*/((?:site|dist)-packages|lib/python3\.\d+)(?=/)")
"""Folders of an interpreter's packages."""
_ENDS: Final = r"(?=[/\\\s\"'`:;,)\]>]|$)"
"""Characters that may follow a folder's path."""
_HOMES: Final = re.compile(r"(?<![\w.~/-])(?:/home|/Users)/[^/\s\"'`:;,)\]>]+|(?<![\w.~/-])/root" + _ENDS)
"""Usual home folders: texts stored on another machine contain another user's."""


def abbreviate_home(text: str) -> str:
    """Return a text with ``~`` for home folders, and ``...`` for the path to ``site-packages`` or ``lib/python3.N``."""
    for home in _home_paths():
        text = re.sub(re.escape(home) + _ENDS, "~", text)
    return _PACKAGES.sub(r".../\1", _HOMES.sub("~", text))


def _home_paths() -> list[str]:
    """Return all paths of the user's home folder, with and without links resolved, longest first."""
    named = [os.environ.get("HOME", ""), os.environ.get("USERPROFILE", "")]
    with suppress(ImportError, KeyError):  # Windows has no pwd; a container's user may not be in it
        import pwd

        named.append(pwd.getpwuid(os.getuid()).pw_dir)
    paths = {path for home in named if home for path in (home.rstrip("/"), os.path.realpath(home))}
    return sorted((path for path in paths if len(Path(path).parts) > 1), key=len, reverse=True)
