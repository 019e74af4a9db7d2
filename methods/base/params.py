"""Parameters of methods: their declaration, and the check of untrusted values."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, get_args, get_origin, get_type_hints

from exitbench.errors import UserError, suggestion


def param(
    default: Any, doc: str, *, low: float | None = None, high: float | None = None, choices: tuple[str, ...] = ()
) -> Any:
    """Return a dataclass field that declares a method's parameter, its meaning and its allowed values.

    Args:
        default: Default value.
        doc: Meaning of the parameter, shown by the command line and in the documentation.
        low: Smallest allowed value; None for no limit.
        high: Largest allowed value; None for no limit.
        choices: Allowed values of a text parameter; () allows all values.
    """
    return field(default=default, metadata={"doc": doc, "low": low, "high": high, "choices": choices})


_types = functools.cache(get_type_hints)


def checked_params(cls: type, method: str, params: Mapping[str, Any], location: str = "") -> dict[str, Any]:
    """Return untrusted parameters, checked against the fields of a method's class and converted to their types.

    Args:
        cls: Class of the method.
        method: Name of the method, for error messages.
        params: Parameter values by name.
        location: File and line that contain them, for error messages.

    Raises:
        UserError: A parameter is unknown, or its value has the wrong type or is not allowed.
    """
    fields_by_name = {item.name: item for item in fields(cls)}
    types = _types(cls)
    checked: dict[str, Any] = {}
    for name, value in params.items():
        at = f"{location}: " if location else ""
        if name not in fields_by_name:
            allowed = suggestion(name, fields_by_name) if fields_by_name else " It has no parameters."
            raise UserError(f"{at}method {method!r} has no parameter {name!r}.{allowed}")
        checked[name] = _checked(value, types[name], fields_by_name[name].metadata, f"{at}{method}.{name}")
    return checked


def _checked(value: Any, kind: Any, rule: Mapping[str, Any], what: str) -> Any:
    if get_origin(kind) is tuple:
        if not isinstance(value, (list, tuple)):
            raise UserError(f"{what} must be a list, not {value!r}.")
        return tuple(_checked(item, get_args(kind)[0], rule, f"{what}[{place}]") for place, item in enumerate(value))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UserError(f"{what} must be of type {kind.__name__}, not {value!r}.")
    if rule["choices"] and value not in rule["choices"]:
        raise UserError(f"{what} cannot be {value!r}.{suggestion(str(value), rule['choices'])}")
    if kind is float and not math.isfinite(value):
        raise UserError(f"{what} must be a finite number, not {value}.")
    low, high = rule["low"], rule["high"]
    if (low is not None and value < low) or (high is not None and value > high):
        bounds = f"between {low} and {high}" if high is not None else f"at least {low}"
        raise UserError(f"{what} = {value} is out of range; allowed: {bounds}.")
    return value
