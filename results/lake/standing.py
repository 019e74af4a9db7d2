"""What a lake has of a study on many machines: cells by outcome, machines, missing cells."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from exitbench.results.lake.reading import open_lake
from exitbench.terminal import number_of

_SHOWN: Final = 20
_ATTEMPTS: Final = """
    SELECT cell_id, status, left(hw_id, 8) || ' (' || concat_ws(', ', gpu, cpu, 'threads: ' || threads) || ')'
    FROM attempt JOIN hardware USING (hw_id) ORDER BY status <> 'interrupted', attempt_id
"""


def lake_lines(lake: str, labels: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield lines that say what a lake has of all cells, or of those whose names are given by id."""
    with open_lake(lake) as database:
        rows = database.duck.execute(_ATTEMPTS).fetchall()
    rows = [row for row in rows if labels is None or row[0] in labels]
    states = {cell: status for cell, status, _ in rows}
    missing = [label for cell, label in (labels or {}).items() if states.get(cell) != "ok"]
    counts = Counter(states.values()) + Counter(new=len((labels or {}).keys() - states.keys()))
    said = ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none"
    yield f"{number_of(counts.total(), 'cell')}: {said}; {number_of(len(rows), 'attempt')}"
    machines = defaultdict(set)
    for cell, _, machine in rows:
        machines[machine].add(cell)
    yield from (f"machine  {name}: {number_of(len(cells), 'cell')}" for name, cells in sorted(machines.items()))
    shared = Counter(cell for cells in machines.values() for cell in cells)
    if twice := sum(count > 1 for count in shared.values()):
        yield f"{number_of(twice, 'cell')} ran on more than one machine: shards overlapped, or machines were exchanged"
    yield from (f"missing  {label}" for label in missing[:_SHOWN])
    if len(missing) > _SHOWN:
        yield f"missing  and {len(missing) - _SHOWN} more"
