"""Reading a TOML file strictly: unknown keys and wrong types are errors that name file, line and key."""

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from exitbench.errors import UserError, suggestion

T = TypeVar("T")

_KIND_NAMES: Mapping[type, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


@dataclass(frozen=True)
class Table:
    """One table of a TOML file, which knows where it stands.

    Attributes:
        path: The file.
        text: Its whole text, in which lines are looked up.
        keys: The way to this table, e.g. ``("models", "vanilla")`` or ``("sweep", 2)`` for the third ``[[sweep]]``.
        values: The table's content.
    """

    path: Path
    text: str
    keys: tuple[str | int, ...]
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "Table":
        """Read a file as its top table.

        Raises:
            UserError: It cannot be read or is not TOML.
        """
        try:
            text = path.read_text(encoding="utf-8")
            return cls(path, text, (), tomllib.loads(text))
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not UTF-8 text (byte {error.start}).") from None
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{path}: not valid TOML: {error}.") from None

    @property
    def title(self) -> str:
        """How the file writes this table's header; empty for the top table."""
        names = ".".join(str(key) for key in self.keys if isinstance(key, str))
        return f"[[{names}]]" if any(isinstance(key, int) for key in self.keys) else f"[{names}]" if names else ""

    def where(self, key: str | None = None, value: str | None = None) -> str:
        """Return ``file:line: [table] key``; the line is that of ``value`` where one is given."""
        return f"{self.path}:{self._line(value or key)}: " + " ".join(part for part in (self.title, key) if part)

    def error(self, key: str | None, message: str, value: str | None = None) -> UserError:
        """Return the error to raise about a key of this table, or about one value of that key."""
        return UserError(f"{self.where(key, value)}: {message}")

    def allow(self, *names: str) -> None:
        """Refuse every key but these.

        Raises:
            UserError: Another key is there.
        """
        for key in self.values:
            if key not in names:
                raise self.error(key, f"unknown key.{suggestion(key, names)}")

    def choose(self, key: str, word: str, allowed: Collection[str], what: str) -> str:
        """Return ``word`` if it is allowed.

        Raises:
            UserError: It is not; ``what`` says what it should have named.
        """
        if word not in allowed:
            raise self.error(key, f"unknown {what} {word!r}.{suggestion(word, allowed)}", word)
        return word

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return a value of a type; ``default=None`` makes the key required.

        Raises:
            UserError: The key is missing or its value has another type.
        """
        if key not in self.values:
            if default is None:
                raise self.error(None, f"key {key!r} is missing; it must be {_KIND_NAMES[kind]}.")
            return default
        return self.typed(key, self.values[key], kind)

    def optional(self, key: str, kind: type[T]) -> T | None:
        """Return a value of a type, or None where the key is absent."""
        return self.get(key, kind) if key in self.values else None

    def typed(self, key: str, value: Any, kind: type[T]) -> T:
        """Return the value if it has the type; whole numbers count as numbers, booleans do not."""
        accepted = (int, float) if kind is float else (kind,)
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise self.error(key, f"is {value!r}; it must be {_KIND_NAMES[kind]}.")
        return kind(value)  # type: ignore[call-arg]

    def positive(self, key: str, default: int | None = None) -> int:
        """Return a whole number from 1 up."""
        value = self.get(key, int, default)
        if value < 1:
            raise self.error(key, f"is {value}; it must be 1 or more.")
        return value

    def strings(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Return a list of distinct strings."""
        items = self.get(key, list, None if default is None else list(default))
        words = tuple(self.typed(key, item, str) for item in items)
        if len(set(words)) != len(words):
            raise self.error(key, f"names something twice: {', '.join(words)}.")
        return words

    def table(self, key: str) -> "Table":
        """Return a sub-table, empty where the key is absent."""
        return Table(self.path, self.text, (*self.keys, key), self.get(key, dict, {}))

    def tables(self, key: str) -> list["Table"]:
        """Return the tables of an array of tables (``[[key]]``), at least one.

        Raises:
            UserError: There is none, or an element is not a table.
        """
        elements = self.get(key, list, [])
        if not elements:
            raise self.error(None, f"no [[{key}]]: at least one is needed.")
        return [
            Table(self.path, self.text, (*self.keys, key, index), self.typed(key, element, dict))
            for index, element in enumerate(elements)
        ]

    def _line(self, word: str | None) -> int:
        """Find a word in this table's part of the text; 1-based, the table's first line where it is not found."""
        lines = [line.split("#")[0] for line in self.text.splitlines()]
        start, end = self._section(lines)
        return 1 + (start if word is None else next(_lines_with(word, lines, start, end), start))

    def _section(self, lines: list[str]) -> tuple[int, int]:
        """Return the lines [start, end) from this table's header to the next one.

        A table written inline has no header; its part starts where its key is first named.
        """
        headers = [n for n, line in enumerate(lines) if re.match(r"\s*\[", line) and "=" not in line]
        if not self.keys:
            return 0, headers[0] if headers else len(lines)
        names = [key for key in self.keys if isinstance(key, str)]
        title = r"\s*\.\s*".join(rf"[\"']?{re.escape(name)}[\"']?" for name in names)
        mine = [n for n in headers if re.match(rf"\s*\[+\s*{title}\s*\]", lines[n])]
        nth = next((key for key in self.keys if isinstance(key, int)), 0)
        if nth >= len(mine):
            return next(_lines_with(names[-1], lines, 0, len(lines)), 0), len(lines)
        return mine[nth], min((n for n in headers if n > mine[nth]), default=len(lines))


def _lines_with(word: str, lines: list[str], start: int, end: int) -> Iterator[int]:
    """Yield the lines in [start, end) that have the word as a word of its own, 0-based."""
    pattern = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    return (number for number in range(start, end) if pattern.search(lines[number]))
