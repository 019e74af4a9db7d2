"""Explain stale cells: list the fields in which a cell's identity differs from its predecessor's."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias

from exitbench.harness.cells.cell import Cell
from exitbench.results.analysis.repeats import flat_items
from exitbench.results.files.atomic import read_json_or_empty
from exitbench.results.files.formats import canonical_json
from exitbench.results.spool.attempts import scan_spool

_SHOWN_DIGITS = 8

_Name: TypeAlias = tuple[Any, ...]
_Keys: TypeAlias = frozenset[str]
_Identity: TypeAlias = dict[str, Any]


class Predecessors:
    """Index of a spool's cells by the names that users see (suite, model, task, method), built on first use."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        # One index per set of parameters that two versions of a method have in common.
        self._with_params = cache(self._index)

    def difference(self, cell: Cell) -> str:
        """Return the fields in which a cell differs from the most similar stored cell with the same names, as text.

        The text is '' if there is no such cell. Names are suite, model, task label, kind (a probe with additional data
        is a separate kind), method, and the parameters that both versions of the method have. The most similar cell has
        the fewest differing fields; on ties, the latest attempt is used.
        """
        # Round trip through JSON, where a tuple of parameters becomes a list.
        identity = json.loads(canonical_json(cell.identity))
        differences = [_differences(old, identity) for old in self._candidates(cell, identity["method"]["params"])]
        nearest = min(differences, key=len, default=[])
        return "; ".join(nearest)

    def _candidates(self, cell: Cell, params: Mapping[str, Any]) -> Iterator[_Identity]:
        names = (cell.suite, cell.model.name, cell.task.label, cell.method.name)
        name = (*names, cell.kind, cell.record is not None, cell.limited)
        for keys in self._by_name.get(name, ()):
            common = keys.intersection(params)
            yield from self._with_params(name, keys, common).get(_values(params, common), ())

    def _index(self, name: _Name, keys: _Keys, common: _Keys) -> Mapping[str, list[_Identity]]:
        index: dict[str, list[_Identity]] = defaultdict(list)
        for identity in self._by_name[name][keys]:
            index[_values(identity["method"]["params"], common)].append(identity)
        return dict(index)

    @cached_property
    def _by_name(self) -> Mapping[_Name, Mapping[_Keys, list[_Identity]]]:
        """Identities of cells with finished attempts, latest first, by the cell's names, then by parameter names.

        An identity has the settings that are hashed to a cell's id. The inner key is the set of the names of the
        method's parameters.
        """
        cells: dict[_Name, dict[_Keys, list[_Identity]]] = defaultdict(lambda: defaultdict(list))
        for attempt in sorted(scan_spool(self._spool), key=lambda attempt: attempt.attempt_id, reverse=True):
            if attempt.finished and (record := read_json_or_empty(attempt.path / "cell.json")):
                identity = record["identity"]
                cells[_name(record)][frozenset(identity["method"]["params"])].append(identity)
        return cells


def identity_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return one line (FIELD: OLD -> NEW) per field in which two cells' identities differ.

    An identity has the settings that are hashed to the cell's id. It may be in memory or parsed from JSON.
    """
    return _differences(json.loads(canonical_json(old)), json.loads(canonical_json(new)))


def _name(record: Mapping[str, Any]) -> _Name:
    names = (record["suite"], record["model"]["name"], record["task"]["label"], record["method"]["name"])
    return (*names, record["kind"], record.get("record") is not None, record["limited"])


def _values(params: Mapping[str, Any], names: _Keys) -> str:
    return canonical_json({name: params[name] for name in names})


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    before, now = dict(flat_items(old)), dict(flat_items(new))
    fields = sorted(field for field in before.keys() | now.keys() if before.get(field) != now.get(field))
    return [f"{field}: {_format_value(before.get(field))} -> {_format_value(now.get(field))}" for field in fields]


def _format_value(value: Any) -> str:
    """Return a value as text, with digests shortened."""
    if isinstance(value, list):
        return f"[{', '.join(_format_value(item) for item in value)}]"
    if isinstance(value, str) and len(value) == 64:
        return value[:_SHOWN_DIGITS]
    return "absent" if value is None else str(value)
