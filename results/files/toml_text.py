"""Writes TOML, which the standard library only reads."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def toml_table(header: str, values: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table, an empty one before it; `header` with its brackets."""
    return ["", header, *(f"{toml_key(name)} = {toml_value(value)}" for name, value in values.items())]


def toml_key(name: str) -> str:
    """Return a key, in quotes where it needs them."""
    return name if _BARE.fullmatch(name) else toml_value(name)


def toml_value(value: Any) -> str:
    """Return a value of JSON as TOML spells it.

    Raises:
        TypeError: It is null, which TOML has not, or nothing that JSON has.
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_key(name)} = {toml_value(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for a character beyond 16 bits, which JSON can write as two
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if value is None or not isinstance(value, bool | int | float):
        raise TypeError(f"TOML has no {value!r}")
    return json.dumps(value)
