"""Validation of JSON records: allowed values per key, declared once and checked where files are read."""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

SHOWN_CHARACTERS: Final = 60
"""Maximum length of an invalid value in messages."""


@dataclass(frozen=True)
class Value:
    """Rule for the value of one key of a JSON object.

    Attributes:
        words: Description of the allowed values, for messages.
        allows: Returns whether a value is allowed.
        needed: True if the key is required.
    """

    words: str
    allows: Callable[[Any], bool]
    needed: bool = True


Keys = Mapping[str, Mapping[str, Value]]
"""Keys of a JSON file: at the top level ('') and in its objects."""


def nullable(value: Value) -> Value:
    """Return a rule that allows null in addition to what the rule `value` allows."""
    return replace(value, words=f"{value.words} or null", allows=lambda v: v is None or value.allows(v))


def optional_key(value: Value) -> Value:
    """Return a rule that allows null and a missing key in addition to what the rule `value` allows."""
    return replace(nullable(value), needed=False)


def integer(low: int, high: int) -> Value:
    """Return a rule that allows integers from `low` to `high`, both included."""
    return Value(f"an integer from {low} to {high}", lambda v: type(v) is int and low <= v <= high)


def one_of(words: Collection[str]) -> Value:
    """Return a rule that allows only the given texts."""
    return Value(f"one of {', '.join(words)}", lambda v: isinstance(v, str) and v in words)


def text_matching(words: str, pattern: re.Pattern[str]) -> Value:
    """Return a rule that allows texts that a pattern matches completely; `words` describes them in messages."""
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
LISTS: Final = Value("a list of lists", lambda v: isinstance(v, list) and all(isinstance(item, list) for item in v))
TEXTS: Final = Value("a list of texts", lambda v: isinstance(v, list) and all(isinstance(item, str) for item in v))
FLAG: Final = Value("true or false", lambda v: isinstance(v, bool))
OBJECT: Final = Value("an object", lambda v: isinstance(v, dict))
ANY: Final = Value("anything", lambda _: True)
NUMBER: Final = Value("a number", lambda v: type(v) in (int, float) and abs(v) < 1e300)
TIME: Final = Value("a time with its zone, such as 2026-01-02T03:04:05+00:00", _is_time)
COUNT: Final = integer(0, INT32)
LONG: Final = integer(0, INT64)


def first_invalid_key(record: Mapping[str, Any], keys: Keys) -> str | None:
    """Return a sentence on the first key of a record that is missing or invalid; None if all keys are valid.

    Args:
        record: Top-level object of a JSON file.
        keys: Rules by section ('' for the record itself, or the key of an object in it) and key. Keys without a rule
            are ignored.
    """
    for section, values in keys.items():
        part = record.get(section) if section else record
        if not isinstance(part, Mapping):
            return f"key {section!r} is {'not an object' if section in record else 'missing'}."
        for name, value in values.items():
            key = f"{section}.{name}".lstrip(".")
            if name not in part:
                if value.needed:
                    return f"key {key!r} is missing."
            elif not value.allows(part[name]):
                return f"key {key!r} is {_abbreviated(part[name])}, not {value.words}."
    return None


def _abbreviated(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}.."
