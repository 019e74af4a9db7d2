"""Settings whose golden traces are stored: a method's defaults, and other values of every parameter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin, get_type_hints

from exitbench.errors import UserError
from exitbench.methods.base import Method

Params = dict[str, Any]

_SHARES = (0.25, 0.5, 0.75)
"""Tested positions between the bounds of a number."""
_BASES: Mapping[str, Params] = {
    "heads": {"threshold": 0.01},
    "adainfer": {"threshold": 0.6},
    "mee-lstm": {"threshold": 0.6},
    "random": {"mean_exit": 4.0},
    "static": {"exit_layer": 3},
}
"""Replacements for defaults with which no token, or every token, exits on the included models."""


def settings(cls: type[Method], n_blocks: int, exit_blocks: tuple[int, ...]) -> list[Params]:
    """Return the parameters to test on a model of this shape, each as its difference from the method's defaults.

    The defaults themselves (or their replacements) come first; the others change one parameter each. If a choice makes
    other parameters effective (a rule its levels, a head its size), these are changed too.
    """
    found: list[Params] = []
    for varied in _varied(cls, n_blocks, exit_blocks):
        params = {**base(cls), **varied}
        if params not in found and _fits(cls, params, n_blocks, exit_blocks):
            found.append(params)
    return found


def base(cls: type[Method]) -> Params:
    """Return the values that replace a method's defaults in these tests; empty for most methods."""
    return dict(_BASES.get(cls.name, {}))


def _varied(cls: type[Method], n_blocks: int, exit_blocks: tuple[int, ...]) -> Iterator[Params]:
    values = {field.name: list(_others(cls, field, n_blocks, exit_blocks)) for field in dataclasses.fields(cls)}
    without_effect = cls.from_params({}).unused_params()
    yield {}
    for name, others in values.items():
        for value in others if name not in without_effect else ():
            yield {name: value}
            gained = without_effect - cls.from_params({name: value}).unused_params() - {name}
            yield from ({name: value, other: with_it} for other in sorted(gained) for with_it in values[other])


def _others(
    cls: type[Method], field: dataclasses.Field[Any], n_blocks: int, exit_blocks: tuple[int, ...]
) -> Iterator[Any]:
    """Yield the values of a parameter to test, other than its default."""
    kind, rule = get_type_hints(cls)[field.name], field.metadata
    if rule["choices"]:
        yield from (choice for choice in rule["choices"] if choice != field.default)
    elif get_origin(kind) is tuple:
        is_float = get_args(kind)[0] is float
        yield [1 - share / n_blocks for share in range(1, n_blocks)] if is_float else list(exit_blocks[:1])
    elif kind is bool:
        yield not field.default
    elif kind is int:
        yield from (value for value in (field.default - 1, field.default + 1) if _is_within(value, rule))
    elif rule["low"] is not None and rule["high"] is not None:
        yield from (rule["low"] + share * (rule["high"] - rule["low"]) for share in _SHARES)
    elif kind is float:
        near = (field.default / 2, field.default * 2 or 1.0)
        yield from (value for value in near if value != field.default and _is_within(value, rule))


def _is_within(value: float, rule: Mapping[str, Any]) -> bool:
    low, high = rule["low"], rule["high"]
    return (low is None or low <= value) and (high is None or value <= high)


def _fits(cls: type[Method], params: Mapping[str, Any], n_blocks: int, exit_blocks: tuple[int, ...]) -> bool:
    try:
        method = cls.from_params(params).bound_to(exit_blocks)
        method.check(n_blocks)
    except UserError:
        return False
    return True
