"""What a lake has, of a study that many machines run: cells by outcome, machines, what is missing."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from exitbench.results.lake.layout import kinds, root
from exitbench.results.lake.places import Place
from exitbench.results.lake.reading import read_manifests
from exitbench.terminal import number_of

_SHOWN: Final = 20
_BYTES_A_MB: Final = 1e6


def lake_lines(place: Place, labels: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield lines that say what a lake has.

    Args:
        place: The lake.
        labels: Names of the cells that count, by id; None: of all.

    Raises:
        UserError: As `read_manifests`.
    """
    found = read_manifests(place)
    attempts = [manifest for manifest in found if manifest.kind == kinds()["attempt"]]
    rows = [(one.rows["attempt"][0], one.rows["hardware"][0], one.rows["cell"][0]) for one in attempts]
    if labels is not None:
        rows = [row for row in rows if row[0]["cell_id"] in labels]
    states = _states(row[0] for row in rows)
    new = len(labels) - len(states) if labels is not None else 0
    counted = [*sorted(Counter(states.values()).items()), *([("new", new)] if new else [])]
    said = ", ".join(f"{count} {state}" for state, count in counted) or "none"
    yield f"{number_of(len(states) + new, 'cell')}: {said}; {number_of(len(rows), 'attempt')}"
    yield from _machines(rows)
    if labels is not None:
        missing = [label for cell_id, label in labels.items() if states.get(cell_id) != "ok"]
        yield from (f"missing  {label}" for label in missing[:_SHOWN])
        if len(missing) > _SHOWN:
            yield f"missing  and {len(missing) - _SHOWN} more"
    yield _files(place, found)


def _states(attempts: Any) -> dict[str, str]:
    """How the latest attempt with an outcome ended, by cell."""
    states: dict[str, str] = {}
    for attempt in sorted(attempts, key=lambda row: str(row["attempt_id"])):
        if attempt["status"] != "interrupted" or attempt["cell_id"] not in states:
            states[attempt["cell_id"]] = attempt["status"]
    return states


def _machines(rows: list[tuple[Any, Any, Any]]) -> Iterator[str]:
    machines: dict[str, tuple[str, set[str]]] = {}
    for attempt, hardware, _ in rows:
        name = ", ".join(str(hardware[part]) for part in ("gpu", "cpu") if hardware[part]) or "unknown"
        name += f", {number_of(hardware['threads'], 'thread')}" if hardware["threads"] else ""
        machines.setdefault(attempt["hw_id"], (name, set()))[1].add(attempt["cell_id"])
    for hw_id, (name, cells) in sorted(machines.items()):
        yield f"machine  {hw_id[:8]} ({name}): {number_of(len(cells), 'cell')}"
    shared = Counter(cell_id for _, cells in machines.values() for cell_id in cells)
    if twice := sum(count > 1 for count in shared.values()):
        yield f"{number_of(twice, 'cell')} ran on more than one machine: shards overlapped, or machines were exchanged"


def _files(place: Place, found: Any) -> str:
    sizes = {name: size for name, size in place.sizes(root()).items() if "/manifests/" not in name}
    named = {file.name for manifest in found for file in manifest.files}
    more = len(sizes.keys() - named)
    others = f"; {number_of(more, 'other file')}, which no manifest names, not read" if more else ""
    return f"{number_of(len(named), 'file')}, {sum(sizes.get(name, 0) for name in named) / _BYTES_A_MB:.1f} MB{others}"
