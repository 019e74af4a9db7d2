"""Of which models and data evidence is: what a verdict says nothing beyond."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from exitbench.results.database.connection import Database

GENERATED: Final = "generated"
REAL: Final = "real"

_QUERY: Final = """
    SELECT
        min(m.parameters) AS parameters_low, max(m.parameters) AS parameters_high,
        min(m.blocks) AS blocks_low, max(m.blocks) AS blocks_high,
        coalesce(bool_or(d.source = 'builtin'), false) AS generated,
        coalesce(bool_or(d.source <> 'builtin'), false) AS real
    FROM attempt AS a JOIN cell AS c USING (cell_id) JOIN dataset_artifact AS d USING (data_id)
    JOIN model_artifact AS m USING (model_id)
    WHERE list_contains($attempts, a.attempt_id)
"""


@dataclass(frozen=True)
class Scope:
    """Of which models and data evidence is.

    Attributes:
        parameters_low: Weights of the smallest model.
        parameters_high: Of the largest.
        blocks_low: Decoder blocks of the shallowest model.
        blocks_high: Of the deepest.
        data: `generated`, `real`, or both.
    """

    parameters_low: int
    parameters_high: int
    blocks_low: int
    blocks_high: int
    data: str

    def __str__(self) -> str:
        parameters = _span(_counted(self.parameters_low), _counted(self.parameters_high))
        return f"{parameters} parameters, {_span(str(self.blocks_low), str(self.blocks_high))} blocks, {self.data} data"


def scope_of(database: Database, attempts: Sequence[str]) -> Scope | None:
    """Return what the runs of these attempts were of; None where there are none."""
    if not attempts:
        return None
    (row,) = database.query(_QUERY, {"attempts": list(attempts)}).to_pylist()
    data = " and ".join(name for name in (GENERATED, REAL) if row.pop(name))
    return None if row["blocks_low"] is None else Scope(**row, data=data)


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _counted(n: int) -> str:
    """A number of weights to two digits: 930k, 8.0B."""
    for size, suffix in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if n >= size:
            return f"{n / size:.2g}{suffix}" if n < 10 * size else f"{n / size:.0f}{suffix}"
    return str(n)
