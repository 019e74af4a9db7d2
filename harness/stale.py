"""Why a cell is stale: the field-level difference between what is asked now and what was asked before."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from exitbench.harness.cell import Cell
from exitbench.results.spool import scan_spool

_SHOWN_DIGITS = 8


class Predecessors:
    """The cells of a spool by the names people use; read only once something asks."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool

    def difference(self, cell: Cell) -> str:
        """Return what differs from the nearest stored cell of the same names, or '' where there is none.

        Cells have the same names if suite, model, task label, kind, method and every parameter that
        both have agree; the nearest has the fewest differing fields, the latest attempt among equals.
        """
        record = cell.to_json()
        candidates = [old for old in self._by_name[_name(record)] if _same_params(old, record)]
        differences = [_differences(old["identity"], record["identity"]) for old in candidates]
        nearest = min(differences, key=len, default=[])
        return "; ".join(nearest)

    @cached_property
    def _by_name(self) -> Mapping[tuple[Any, ...], list[dict[str, Any]]]:
        cells: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
        for attempt in sorted(scan_spool(self._spool), key=lambda attempt: attempt.attempt_id, reverse=True):
            if attempt.finished:
                record = json.loads((attempt.path / "cell.json").read_text(encoding="utf-8"))
                cells[_name(record)].append(record)
        return cells


def _name(record: Mapping[str, Any]) -> tuple[Any, ...]:
    names = (record["suite"], record["model"]["name"], record["task"]["label"], record["method"]["name"])
    return (*names, record["kind"], record["limited"])


def _same_params(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    before, now = old["method"]["params"], new["method"]["params"]
    return all(before[name] == now[name] for name in before.keys() & now.keys())


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    before, now = dict(_flat(old)), dict(_flat(new))
    fields = sorted(field for field in before.keys() | now.keys() if before.get(field) != now.get(field))
    return [f"{field}: {_shown(before.get(field))} -> {_shown(now.get(field))}" for field in fields]


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def _shown(value: Any) -> str:
    """Digests shorten to what tells them apart."""
    if isinstance(value, list):
        return f"[{', '.join(_shown(item) for item in value)}]"
    if isinstance(value, str) and len(value) == 64:
        return value[:_SHOWN_DIGITS]
    return "absent" if value is None else str(value)
