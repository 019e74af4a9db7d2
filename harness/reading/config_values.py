"""Validation of config.json and generation_config.json: type and range of each value, and token ids."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exitbench.errors import UserError

_KIND_NAMES: Mapping[type, str] = {
    int: "a whole number",
    float: "a number above 0",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True)
class AllowedValue:
    """Allowed values of a configuration key.

    Attributes:
        kind: Type of the value. Integers must be from 1 to ``most``, floats above 0 and finite.
        null: Whether null is allowed; it means the same as an absent key.
        most: Maximum of an integer.
    """

    kind: type
    null: bool = False
    most: int = 2**31 - 1

    def check(self, path: Path, key: str, value: Any) -> Any:
        """Check a value, and return it.

        Args:
            path: The file, for messages.
            key: The key, for messages.
            value: The value in the file.

        Raises:
            UserError: The value is not allowed; the message names file, key and allowed values.
        """
        if value is None and self.null:
            return None
        accepted = (int, float) if self.kind is float else (self.kind,)
        fits = isinstance(value, accepted) and (self.kind is bool or not isinstance(value, bool))
        if fits and self.kind is int:
            fits = 1 <= value <= self.most
        if fits and self.kind is float:
            value = _as_float(value)
            fits = 0 < value < math.inf
        if not fits:
            wanted = f"{_KIND_NAMES[self.kind]}" + (f" of 1 to {self.most}" if self.kind is int else "")
            raise UserError(f"{path}: {key} is {shortened(value)}; allowed: {wanted}{' or null' if self.null else ''}.")
        return value


def checked(path: Path, config: Mapping[str, Any], allowed: Mapping[str, AllowedValue]) -> dict[str, Any]:
    """Return the config values of the keys in `allowed`, checked for type and range; other keys are ignored.

    Raises:
        UserError: A value is not allowed for its key.
    """
    return {key: allowed[key].check(path, key, value) for key, value in config.items() if key in allowed}


def check_token_ids(path: Path, config: Mapping[str, Any], keys: Collection[str], several: Collection[str]) -> None:
    """Check that the token ids at ``keys`` of a config are integers, null or, for keys in ``several``, lists.

    Raises:
        UserError: A value has another type, such as a string with digits.
    """
    for key in keys:
        value = config.get(key)
        ids = value if isinstance(value, list) and key in several else [value]
        if value is not None and any(isinstance(item, bool) or not isinstance(item, int) for item in ids):
            allowed = "a whole number" + (", a list of them" if key in several else "")
            raise UserError(f"{path}: {key} is {shortened(value)}; allowed: {allowed} or null.")


def check_in_vocabulary(path: Path, key: str, token_id: int, vocab_size: int) -> int:
    """Check that a token id is within the vocabulary, and return it; ``path`` and ``key`` are for the message.

    Raises:
        UserError: The id is negative or not below the vocabulary's size.
    """
    if not 0 <= token_id < vocab_size:
        raise UserError(
            f"{path}: {key} is {shortened(token_id)}; allowed: 0 to {vocab_size - 1}, since vocab_size is {vocab_size}."
        )
    return token_id


def shortened(value: Any, most: int = 80) -> str:
    """Return the value's repr, cut to `most` characters."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf
