"""Choose the answers bundled into the page: all if they fit, else fewer methods and evenly spread documents."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from exitbench.reports.front.cards import DEFAULT_PERCENT
from exitbench.results.analysis.traces import TracedRun, traced_runs
from exitbench.results.database.connection import Database

BUDGET_BYTES: Final = 3_600_000
"""Budget before compression: under 5 MB in the page even if nothing compresses; model output shrinks by half."""

_Point = tuple[float, float]
_METHODS: Final = 12
"""Settings kept per group when not everything fits."""

# Bytes per token: read-outs of a block in the probe, a score of a block, and a method's own columns.
_PROBED_BLOCK_BYTES: Final = 12
_SCORED_BLOCK_BYTES: Final = 1
_TOKEN_BYTES: Final = 6
_ASKED_BYTES: Final = 3
"""Bytes per run, text and block of an encoder's gate record."""

_QUALITY: Final = (
    "SELECT attempt_id, value, lower_is_better, mean_exit_layer FROM frontier WHERE mean_exit_layer IS NOT NULL"
)
_LENGTHS: Final = """
    SELECT attempt_id, doc_key, n_output, coalesce(strlen(input_text), 0) AS input_bytes FROM sample
    WHERE list_contains($attempts, attempt_id) ORDER BY ALL
"""
# One pass over the tokens for all groups: DuckDB turns the join into a filter on what it reads.
_DEPTHS: Final = """
    SELECT place, doc_key, avg(exit_layer) AS depth FROM token_exit
    JOIN (SELECT unnest($attempts::VARCHAR[]) AS attempt_id, unnest($places::USMALLINT[]) AS place) USING (attempt_id)
    WHERE choice IS NULL GROUP BY ALL
"""


@dataclass(frozen=True)
class RunGroup:
    """Runs of one model over the same documents, and the subset bundled into the page.

    Attributes:
        runs: Runs bundled; full depth first if it has run.
        keys: Keys of all documents, sorted.
        bundled: Indices into `keys` of the documents bundled, in order.
        n_runs_total: Number of runs in the database, bundled or not.
        document_bytes: Estimated bytes of one document's answers by all of `runs`, before compression.
        recommended: The run that the page opens on, one of `runs`; None if no run is recommended.
    """

    runs: tuple[TracedRun, ...]
    keys: tuple[str, ...]
    bundled: tuple[int, ...]
    n_runs_total: int
    document_bytes: float
    recommended: TracedRun | None

    @property
    def bundled_keys(self) -> list[str]:
        """Keys of the documents bundled."""
        return [self.keys[index] for index in self.bundled]


def choose(database: Database, budget_bytes: int = BUDGET_BYTES) -> list[RunGroup]:
    """Return the groups of runs bundled into the page, sorted by model and task.

    If not everything fits in `budget_bytes`, each group keeps `_METHODS` runs: full depth, the recommended run, then
    Pareto-optimal ones. All groups keep the same number of documents, spread evenly over the mean exit layer of their
    tokens. If that is still too much, the groups that ran first are dropped.
    """
    merit = {row["attempt_id"]: row for row in database.query(_QUALITY).to_pylist()}
    by_setting: dict[str, list[TracedRun]] = defaultdict(list)
    for run in traced_runs(database):
        if run.newest:
            by_setting[run.full_depth_cell_id].append(run)
    best = recommended(database)
    groups = [_group(database, _by_merit(runs, merit), best) for runs in by_setting.values()]
    groups = _fitting(database, [group for group in groups if group.keys], budget_bytes)
    return sorted(groups, key=lambda group: (group.runs[0].model, group.runs[0].task_label, group.runs[0].cell_id))


def _group(database: Database, runs: Sequence[TracedRun], best: Sequence[str]) -> RunGroup:
    """Return the group of these runs with all their documents.

    Full depth comes first, then the first of the recommended attempts `best` that is among the runs, so that it is
    kept.
    """
    by_attempt = {run.attempt_id: run for run in runs}
    first = next((by_attempt[attempt_id] for attempt_id in best if attempt_id in by_attempt), None)
    runs = sorted(runs, key=lambda run: (not run.is_full_depth, run is not first))
    lengths = database.query(_LENGTHS, {"attempts": [run.attempt_id for run in runs]}).to_pylist()
    keys = sorted({row["doc_key"] for row in lengths})
    scored = len({run.scores_attempt_id for run in runs} - {None})
    per_block = _PROBED_BLOCK_BYTES + _SCORED_BLOCK_BYTES * scored
    tokens = sum(row["n_output"] for row in lengths) / max(1, len(lengths))
    document_bytes = tokens * (runs[0].blocks * per_block + _TOKEN_BYTES * len(runs))
    if runs[0].classifies:
        document_bytes += runs[0].blocks * _ASKED_BYTES * len(runs) + sum(row["input_bytes"] for row in lengths) / max(
            1, len(keys)
        )
    return RunGroup(tuple(runs), tuple(keys), tuple(range(len(keys))), len(runs), document_bytes, first)


def _by_merit(runs: Sequence[TracedRun], merit: Mapping[str, Mapping[str, float | None]]) -> list[TracedRun]:
    """Return the runs sorted: full depth, Pareto-optimal runs (in score and mean exit layer), all others.

    Within each part, runs of different methods alternate. `merit` has value and mean_exit_layer by attempt id.
    """
    points = {run.attempt_id: _point(merit.get(run.attempt_id)) for run in runs}
    beaten = {attempt_id: _beaten(point, points.values()) for attempt_id, point in points.items()}
    turns: dict[str, int] = defaultdict(int)
    places = {}
    for run in sorted(runs, key=lambda run: (beaten[run.attempt_id], run.attempt_id)):
        places[run.attempt_id] = (not run.is_full_depth, beaten[run.attempt_id], turns[run.method], run.attempt_id)
        turns[run.method] += 1
    return sorted(runs, key=lambda run: places[run.attempt_id])


def _point(row: Mapping[str, float | None] | None) -> _Point | None:
    """Return (score, mean exit layer) of a run, negated where less is better; None if one is unknown."""
    if row is None or row["value"] is None or row["mean_exit_layer"] is None:
        return None
    return -row["value"] if row["lower_is_better"] else row["value"], -row["mean_exit_layer"]


def _beaten(point: _Point | None, points: Iterable[_Point | None]) -> bool:
    return point is None or any(
        other is not None and other != point and other[0] >= point[0] and other[1] >= point[1] for other in points
    )


def _fitting(database: Database, groups: Sequence[RunGroup], budget_bytes: int) -> list[RunGroup]:
    groups = list(groups)
    if _bytes(groups) <= budget_bytes:
        return groups
    groups = [_with_fewer_runs(group) for group in groups]
    groups.sort(key=lambda group: group.runs[0].attempt_id)
    while len(groups) > 1 and _bytes(groups, 1) > budget_bytes:
        groups.pop(0)
    most = max((len(group.keys) for group in groups), default=0)
    documents = max((n for n in range(1, most + 1) if _bytes(groups, n) <= budget_bytes), default=1)
    depths = _depths(database, groups)
    return [_spread(group, group_depths, documents) for group, group_depths in zip(groups, depths, strict=True)]


def _depths(database: Database, groups: Sequence[RunGroup]) -> list[dict[str, float]]:
    """Return, for each group, the mean exit layer of each document's tokens in the group's runs, by document key."""
    places = {run.attempt_id: place for place, group in enumerate(groups) for run in group.runs}
    depths: list[dict[str, float]] = [{} for _ in groups]
    for row in database.query(_DEPTHS, {"attempts": list(places), "places": list(places.values())}).to_pylist():
        depths[row["place"]][row["doc_key"]] = row["depth"]
    return depths


def _bytes(groups: Sequence[RunGroup], documents: int | None = None) -> float:
    """Return the estimated bytes of the groups' packs with at most `documents` documents each; None for all."""
    return sum(
        group.document_bytes * (len(group.keys) if documents is None else min(documents, len(group.keys)))
        for group in groups
    )


def _with_fewer_runs(group: RunGroup) -> RunGroup:
    dropped = max(0, len(group.runs) - _METHODS)
    return replace(
        group, runs=group.runs[:_METHODS], document_bytes=group.document_bytes * (1 - dropped / len(group.runs))
    )


def _spread(group: RunGroup, depths: Mapping[str, float], documents: int) -> RunGroup:
    """Return the group with `documents` of its documents selected for the page; unchanged if it has no more than these.

    The selected documents are evenly spaced in the order of their mean exit layers. `depths` has the mean exit layer of
    each document's tokens, by document key.
    """
    if documents >= len(group.keys):
        return group
    ranked = sorted(range(len(group.keys)), key=lambda index: (depths.get(group.keys[index], 0.0), group.keys[index]))
    last, steps = len(ranked) - 1, max(1, documents - 1)
    return replace(group, bundled=tuple(sorted({ranked[round(step * last / steps)] for step in range(documents)})))


_FASTEST: Final = """
    SELECT attempt_id FROM pareto
    WHERE NOT is_static AND confirmed_percent <= ? AND coalesce(next_percent > ?, true)
    ORDER BY confirming_speedup DESC, attempt_id
"""


def recommended(database: Database, percent: float = DEFAULT_PERCENT) -> list[str]:
    """Return the ids of the runs recommended at an allowed loss of `percent` % of full depth's score, fastest first.

    Their loss was confirmed on documents that were not used to choose them.
    """
    attempts: list[str] = database.query(_FASTEST, [percent, percent])["attempt_id"].to_pylist()
    return attempts
