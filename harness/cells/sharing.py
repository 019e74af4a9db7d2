"""Which cells one pass can see to: sweeps decode together, and replays of a probe read it once.

Cells that decode share a pass where they ask the same of the same documents, and their methods differ in nothing but
what scores are compared with. That is not taken from the names of parameters: gate, head and KV policy of both are
built and compared, attribute by attribute, so that a gate that looks at its threshold shares with nobody. Replays, of
whatever methods, share a pass where they read the same probe, or the same scores.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from exitbench.harness.cells.job import CellJob
from exitbench.methods.base import Gate, Head, KVPolicy, Parts

PASS_ROWS: Final = 64
"""Rows that cells sharing a pass decode together, at most, where a single one may not have more (`Cell.rows`)."""

KEPT_TOKENS: Final = 2**22
"""Tokens that wait for their cells, at most: 100 bytes each or so."""

_OF_A_METHOD: Final = ("method", "kv_policy", "fit_cell_id")
"""What an identity says of the method."""


def asking_the_same(item: CellJob, others: Iterable[CellJob]) -> list[CellJob]:
    """Return the cells that ask the same of the same documents: of a replay all, else those of its method."""
    if not may_share(item):
        return []
    asked = _asked(item)
    return [other for other in others if other.data == item.data and _asked(other) == asked]


def may_share(item: CellJob) -> bool:
    """Whether a cell could share a pass with another at all."""
    decodes = item.cell.kind == "quality" and item.data.task_object.output_type == "generate_until"
    return decodes or item.cell.kind == "replay"


def _asked(item: CellJob) -> dict[str, Any]:
    cell = item.cell
    asked = {name: value for name, value in cell.identity.items() if name not in _OF_A_METHOD}
    return asked if cell.kind == "replay" else {**asked, "method": cell.method.name, "kv_policy": cell.kv_policy}


def differ_in_threshold_alone(one: Parts, other: Parts) -> bool:
    """Whether two methods compute the same, but for what scores are compared with."""
    return one.blocks == other.blocks and all(
        _same(getattr(one, part), getattr(other, part)) for part in ("gate", "head", "kv_policy")
    )


def _same(one: Any, other: Any) -> bool:
    """Whether two values are known to be the same; False of what cannot be compared."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, (bool, int, float, str, frozenset)):
        return bool(one == other)
    if isinstance(one, (Gate, Head, KVPolicy, nn.Module)):
        hides = any(getattr(cls, "__slots__", ()) for cls in type(one).__mro__)
        return not hides and _same(vars(one), vars(other))
    return False


def sharing(
    item: CellJob, others: Iterable[CellJob], tokens: int, parts_of: Callable[[CellJob], Parts]
) -> Iterator[tuple[CellJob, Parts]]:
    """Yield the cells that one pass can see to with a cell, and their methods; no more than may share one.

    Args:
        item: The cell.
        others: Cells that nobody has seen to, in their order.
        tokens: Of how many tokens each keeps something, at most.
        parts_of: The method of a cell; one of which it raises shares with nobody.
    """
    decodes = item.cell.kind == "quality"
    most = max(1, KEPT_TOKENS // max(1, tokens))
    most = min(most, PASS_ROWS) if decodes else most
    parts = parts_of(item)
    for other in asking_the_same(item, others):
        if most == 1:
            return
        with contextlib.suppress(Exception):  # its own pass says what is wrong
            other_parts = parts_of(other)
            if not decodes or differ_in_threshold_alone(parts, other_parts):
                most -= 1
                yield other, other_parts
