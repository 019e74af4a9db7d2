"""Strict TOML reader: unknown keys, wrong types and numbers out of range are errors with file, line and key.

The file may be untrusted: its size and every number in it are bounded, and names have a restricted character set.
"""

import functools
import itertools
import math
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from exitbench.errors import UserError, suggestion
from exitbench.terminal import without_middle

T = TypeVar("T")

MAX_BYTES: Final = 1 << 20
"""Maximum size of a file in bytes; the longest bundled suite has 10 kB."""
MAX_COUNT: Final = 10**9
"""Maximum of counts, such as documents and rounds."""
_INTEGERS: Final = 1 << 63
"""Exclusive bound of integers: the result database and third-party JSON readers support 64 bits."""
_MAX_NAME: Final = 100
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_MAX_SHOWN_CHARS: Final = 200
_MAX_PARTS: Final = 100
"""Maximum number of parts in a dotted key: tomllib's time is quadratic in the number of parts."""
_PART: Final = r"(?:[\w-]++|\"[^\"\n]*\"|'[^'\n]*')"
_LONG_KEY: Final = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*\.[ \t]*{_PART}){{{_MAX_PARTS}}}")
_MAX_BITS: Final = 10_000
"""Maximum number of bits of an integer: Python refuses to format larger integers, even in an error message."""

_KIND_NAMES: Mapping[type, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


@dataclass(frozen=True)
class TomlTable:
    """One table of a TOML file, with its position for error messages.

    Attributes:
        path: The file.
        text: Full text of the file, used to find line numbers.
        keys: Path to this table, e.g. ``("models", "vanilla")`` or ``("sweep", 2)`` for the third ``[[sweep]]``.
        values: The table's content.
    """

    path: Path
    text: str
    keys: tuple[str | int, ...]
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "TomlTable":
        """Read a file and return its top-level table.

        Raises:
            UserError: The file cannot be read or is not TOML.
        """
        try:
            if path.exists() and not path.is_file():
                raise UserError(f"{path}: is not a file.")
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise UserError(f"{path}: is larger than {MAX_BYTES} bytes, which is the most that is read.")
            text = data.decode("utf-8").replace("\r\n", "\n")
            if _LONG_KEY.search(text):
                raise UserError(f"{path}: a key has more than {_MAX_PARTS} parts with dots between them.")
            values = tomllib.loads(text)
            _require_numbers_to_show(values, path)
            return cls(path, text, (), values)
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not UTF-8 text (byte {error.start}).") from None
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{path}: not valid TOML: {_short(str(error))}.") from None
        except RecursionError:
            raise UserError(f"{path}: lists or tables are nested too deep.") from None
        except UserError:
            raise
        except ValueError:  # Python refuses to parse thousands of digits
            raise UserError(f"{path}: a number has too many digits; whole numbers fit into 64 bits.") from None

    @property
    def title(self) -> str:
        """Header of this table as written in the file; empty for the top-level table."""
        names = ".".join(quoted_key(key) for key in self.keys if isinstance(key, str))
        return f"[[{names}]]" if any(isinstance(key, int) for key in self.keys) else f"[{names}]" if names else ""

    def location(self, key: str | None = None, value: str | None = None) -> str:
        """Return ``file:line: [table] key``, e.g. ``mine.toml:12: [tasks.squad] split``.

        If ``value`` is given, the line is that of the value instead of the key.
        """
        place = " ".join(part for part in (self.title, key and quoted_key(key)) if part)
        return f"{self.path}:{self._line(value or key)}" + (f": {place}" if place else "")

    def error(self, key: str | None, message: str, value: str | None = None) -> UserError:
        """Return, without raising it, the error for a key (None: the whole table), or for one value of that key."""
        return UserError(f"{self.location(key, value)}: {message}")

    def allow(self, *names: str) -> None:
        """Reject every key except the given ones.

        Raises:
            UserError: The table has another key.
        """
        for key in self.values:
            if key not in names:
                raise self.error(key, f"unknown key.{suggestion(key, names)}")

    def refuse(self, keys: Iterable[str], message: str) -> None:
        """Reject the given keys, with this message.

        Raises:
            UserError: The table has one of the keys; the first in the order of `keys` is named.
        """
        for key in keys:
            if key in self.values:
                raise self.error(key, message)

    def choose(self, key: str, word: str, allowed: Collection[str], what: str) -> str:
        """Check that a key's value is one of the allowed words, and return it.

        Args:
            key: The key, for the message.
            word: Value of the key.
            allowed: Allowed values.
            what: Noun for the value, for the message.

        Raises:
            UserError: The word is not allowed.
        """
        if word not in allowed:
            raise self.error(key, f"unknown {what} {_short(repr(word))}.{suggestion(word, allowed)}", word)
        return word

    def name(self, key: str, word: str) -> str:
        """Check that a key's value is a valid name, and return it. Names become part of file names and cell ids.

        Raises:
            UserError: The word is not a valid name.
        """
        if len(word) > _MAX_NAME or not _NAME.fullmatch(word):
            raise self.error(
                key,
                f"{_short(repr(word))} cannot be a name. Allowed: 1 to {_MAX_NAME} of the letters a to z and A to Z, "
                "digits, '_', '-' and '.', the first of which is neither '-' nor '.'.",
            )
        return word

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return a key's value, checked to be of type `kind`; ``default=None`` makes the key required.

        Raises:
            UserError: The key is missing or its value has another type.
        """
        if key not in self.values:
            if default is None:
                raise self.error(None, f"key {key!r} is missing; it must be {_KIND_NAMES[kind]}.")
            return default
        return self.typed(key, self.values[key], kind)

    def optional(self, key: str, kind: type[T]) -> T | None:
        """Return a key's value, checked to be of type `kind`, or None if the key is absent.

        Raises:
            UserError: The value has another type.
        """
        return self.get(key, kind) if key in self.values else None

    def typed(self, key: str, value: Any, kind: type[T]) -> T:
        """Check that a value is of type `kind`, and return it. Integers count as floats, booleans not as numbers.

        Raises:
            UserError: The value has another type, or a number that the database cannot store.
        """
        accepted = (int, float) if kind is float else (kind,)
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise self.error(key, f"is {_short(repr(value))}; it must be {_KIND_NAMES[kind]}.")
        self.require_storable(key, value)
        return kind(value)  # type: ignore[call-arg]

    def require_storable(self, key: str, value: Any) -> None:
        """Check that a value's numbers fit into the database.

        Raises:
            UserError: An integer has more than 64 bits, or a number is infinite or NaN.
        """
        for item in value if isinstance(value, list) else [value]:
            if type(item) is int and not -_INTEGERS <= item < _INTEGERS:
                raise self.error(key, f"is {_short(str(item))}; it must lie between -2^63 and 2^63 - 1.")
            if type(item) is float and not math.isfinite(item):
                raise self.error(key, f"is {item}; it must be a finite number.")

    def positive(self, key: str, default: int | None = None, most: int = MAX_COUNT) -> int:
        """Return a key's value, checked to be an integer from 1 to `most`; ``default=None`` makes the key required.

        Raises:
            UserError: The key is missing, or its value is not such an integer.
        """
        value = self.get(key, int, default)
        if not 1 <= value <= most:
            raise self.error(key, f"is {value}; it must be 1 or more, and at most {most}.")
        return value

    def strings(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Return a key's value, checked to be a list of distinct strings; ``default=None`` makes the key required.

        Raises:
            UserError: The key is missing, or its value is not such a list.
        """
        items = self.get(key, list, None if default is None else list(default))
        words = tuple(self.typed(key, item, str) for item in items)
        if len(set(words)) != len(words):
            raise self.error(key, f"names something twice: {_short(', '.join(words))}.")
        return words

    def table(self, key: str) -> "TomlTable":
        """Return the sub-table at a key; it is empty if the key is absent.

        Raises:
            UserError: The value is not a table.
        """
        return TomlTable(self.path, self.text, (*self.keys, key), self.get(key, dict, {}))

    def tables(self, key: str) -> list["TomlTable"]:
        """Return the tables of an array of tables (``[[key]]``), which must not be empty.

        Raises:
            UserError: The array is empty or missing, or an element is not a table.
        """
        elements = self.get(key, list, [])
        if not elements:
            raise self.error(None, f"no [[{key}]]: at least one is needed.")
        return [
            TomlTable(self.path, self.text, (*self.keys, key, index), self.typed(key, element, dict))
            for index, element in enumerate(elements)
        ]

    def _line(self, word: str | None) -> int:
        """Return the line number (from 1) of a key or value in this table, or of the sub-table with that name.

        If the word is not found, return the table's first line.
        """
        lines = _lines(self.text)
        start, end = self._section(lines)
        if word is None:
            return 1 + start
        inside = itertools.chain(_lines_with(word, lines, start, end), _headers_of((*self._names(), word), lines))
        return 1 + next(inside, start)

    def _names(self) -> tuple[str, ...]:
        return tuple(key for key in self.keys if isinstance(key, str))

    def _section(self, lines: Sequence[str]) -> tuple[int, int]:
        """Return the range of lines [start, end) from this table's header to the next header.

        An inline table has no header; its section starts at the first line with its key.
        """
        headers = list(_headers_of((), lines))
        if not self.keys:
            return 0, headers[0] if headers else len(lines)
        names = self._names()
        mine = list(_headers_of(names, lines, is_exact=True))
        nth = next((key for key in self.keys if isinstance(key, int)), 0)
        if nth >= len(mine):
            return next(_lines_with(names[-1], lines, 0, len(lines)), 0), len(lines)
        return mine[nth], min((n for n in headers if n > mine[nth]), default=len(lines))


def _require_numbers_to_show(values: object, path: Path) -> None:
    pending = [values]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise UserError(f"{path}: a number has too many digits; whole numbers fit into 64 bits.")


def quoted_key(key: str) -> str:
    """Return a key as text for messages: unchanged if it is a bare TOML key, otherwise quoted."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key, re.ASCII) and len(key) <= _MAX_SHOWN_CHARS else _short(repr(key))


def _short(text: str) -> str:
    return without_middle(text, _MAX_SHOWN_CHARS)


@functools.lru_cache(maxsize=4)
def _lines(text: str) -> tuple[str, ...]:
    """Return the lines of a TOML text, with comments removed."""
    return tuple(line.split("#")[0] for line in text.split("\n"))


def _headers_of(names: tuple[str, ...], lines: Sequence[str], is_exact: bool = False) -> Iterator[int]:
    """Yield line numbers (from 0) of table headers whose key path starts with `names`, or equals it if `is_exact`."""
    title = r"\s*\.\s*".join(rf"[\"']?{re.escape(name)}[\"']?" for name in names)
    end = r"\s*\]" if is_exact else r"\s*[\].]" if names else ""
    pattern = re.compile(rf"\s*\[+\s*{title}{end}")
    return (number for number, line in enumerate(lines) if "=" not in line and pattern.match(line))


def _lines_with(word: str, lines: Sequence[str], start: int, end: int) -> Iterator[int]:
    """Yield the line numbers (from 0) in [start, end) of lines that contain the word as a whole word."""
    pattern = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    return (number for number in range(start, end) if pattern.search(lines[number]))
