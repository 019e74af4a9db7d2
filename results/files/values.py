"""Validate JSON records: what their keys may hold, said once and checked where the files are read."""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

SHOWN_CHARACTERS: Final = 60
"""Of a value that is not what it should be."""


@dataclass(frozen=True)
class Value:
    """What a key holds.

    Attributes:
        words: What it should be, for messages.
        allows: Whether a value is that.
        needed: Whether the key must be there.
    """

    words: str
    allows: Callable[[Any], bool]
    needed: bool = True


Keys = Mapping[str, Mapping[str, Value]]
"""Keys of a JSON file: at the top ('') and inside its objects."""


def or_none(value: Value) -> Value:
    """The same, or null."""
    return replace(value, words=f"{value.words} or null", allows=lambda found: found is None or value.allows(found))


def optional(value: Value) -> Value:
    """The same or null, or no such key."""
    return replace(or_none(value), needed=False)


def whole(low: int, high: int) -> Value:
    """An integer from `low` to `high`."""
    return Value(f"an integer from {low} to {high}", lambda v: type(v) is int and low <= v <= high)


def one_of(words: Collection[str]) -> Value:
    """One of a few words."""
    return Value(f"one of {', '.join(words)}", lambda v: isinstance(v, str) and v in words)


def of_form(words: str, pattern: re.Pattern[str]) -> Value:
    """A text that all matches a pattern."""
    return Value(words, lambda v: isinstance(v, str) and pattern.fullmatch(v) is not None)


def _is_time(value: Any) -> bool:
    try:
        time = datetime.fromisoformat(value)
        time.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        return False
    return time.tzinfo is not None


INT32: Final = 2**31 - 1
INT64: Final = 2**63 - 1
TEXT: Final = Value("text", lambda v: isinstance(v, str))
LISTS: Final = Value("a list of lists", lambda v: isinstance(v, list) and all(isinstance(one, list) for one in v))
TEXTS: Final = Value("a list of texts", lambda v: isinstance(v, list) and all(isinstance(one, str) for one in v))
FLAG: Final = Value("true or false", lambda v: isinstance(v, bool))
OBJECT: Final = Value("an object", lambda v: isinstance(v, dict))
ANY: Final = Value("anything", lambda _: True)
NUMBER: Final = Value("a number", lambda v: type(v) in (int, float) and abs(v) < 1e300)
TIME: Final = Value("a time with its zone, such as 2026-01-02T03:04:05+00:00", _is_time)
COUNT: Final = whole(0, INT32)
LONG: Final = whole(0, INT64)


def first_fault(told: Mapping[str, Any], keys: Keys) -> str | None:
    """Return what is wrong with the first key that is not as it should be; None if all are.

    Args:
        told: The object of a JSON file.
        keys: What its keys hold; it may have others.
    """
    for section, values in keys.items():
        part = told.get(section) if section else told
        if not isinstance(part, Mapping):
            return f"key {section!r} is {'not an object' if section in told else 'missing'}."
        for name, value in values.items():
            key = f"{section}.{name}".lstrip(".")
            if name not in part:
                if value.needed:
                    return f"key {key!r} is missing."
            elif not value.allows(part[name]):
                return f"key {key!r} is {_shown(part[name])}, not {value.words}."
    return None


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}.."
