"""Choose a method and its threshold for a model and a task: search by replay, confirm by decoding, time the finalists.

Each stage runs as an ordinary suite, so that finished cells are kept and an interrupted choice can resume. Search and
confirmation use another split than the documents on which the choice is timed and reported.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from exitbench.errors import UserError, suggestion
from exitbench.harness.afterwards.replaying import Probe, replay, stored_probe
from exitbench.harness.cells.cell import CalibrationSettings, Kind
from exitbench.harness.engine.checkpoints.gguf_origin import name_in_results
from exitbench.harness.planning.entries.task import TaskEntry
from exitbench.harness.planning.suite import CalibrationEntry, ModelEntry, Point, Suite, Sweep
from exitbench.methods.base import Method
from exitbench.methods.registry import baseline_method, fixed_depth_method, get_method, method_names
from exitbench.results.database.connection import Database
from exitbench.results.statistics.risk_control import documents_needed

SHARES: Final = (4.0, 2.0, 1.0, 0.5, 0.25, 0.1)
"""Multiples of the allowed loss: share of a candidate's tokens that may differ from full depth's in its replay. A
differing token may cost no quality, or more than its share."""
LEVELS: Final = 201
GREATEST_NATS: Final = 8.0
"""Largest threshold searched if the parameter has no upper bound, on a geometric scale."""
_LEAST: Final = 1e-4

_RESULTS: Final = """
    SELECT
        f.cell_id, f.n, f.metric, f.value, f.full_value, p.delta, p.delta_low, p.delta_high, p.loss_high_percent,
        f.mean_blocks_run, f.blocks, f.ideal_speedup_bytes, f.speedup, f.speedup_low, f.speedup_high, f.aa_high
    FROM frontier AS f LEFT JOIN paired AS p USING (attempt_id)
    WHERE list_contains(?, f.cell_id) AND f.execution = 'real'
    ORDER BY f.method, f.threshold, f.mean_exit_layer, f.cell_id
"""
_FULL_SCORE: Final = """
    SELECT DISTINCT m.value
    FROM runs AS r JOIN metric_values AS m ON m.attempt_id = r.full_depth_attempt_id
    WHERE list_contains(?, r.cell_id) AND m.metric = ? AND m.is_current
"""
_FAILED: Final = """
    SELECT method, threshold, mean_loss, delta, epsilon, n FROM calibrations
    WHERE list_contains(?, cell_id) AND NOT passed ORDER BY method
"""
_CERTIFIED: Final = "SELECT method, threshold FROM calibrations WHERE list_contains(?, cell_id) AND chosen ORDER BY ALL"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Candidate:
    """A setting worth decoding, with the results of its replay (`simulated`)."""

    point: Point
    mean_exit_layer: float
    token_match: float


@dataclass(frozen=True)
class Tuning:
    """A tuning problem: model, task, candidate methods and allowed loss.

    Attributes:
        suite: Suite that declares the model and the task; its sweeps are not run.
        methods: Names of methods with a threshold.
        max_loss_percent: Maximum loss, in percent of full depth's quality.
        documents: Number of documents for search and confirmation.
        finalists: Number of methods to time.
        epsilon: Probability that the bound on the expected loss is violated (Learn then Test); None: choose by the
            paired interval's bound alone.
    """

    suite: Suite
    model: ModelEntry
    task: TaskEntry
    methods: tuple[str, ...]
    max_loss_percent: float
    documents: int
    finalists: int = 3
    epsilon: float | None = None

    @cached_property
    def searched(self) -> TaskEntry:
        """The task on documents for choosing, disjoint from the reported ones and, with a guarantee, from its tests."""
        data = self.task.other_split("calibration", self.documents, "choosing a threshold")
        if self.epsilon is not None:
            data = replace(data, apart_from=(*data.apart_from, data))
        return replace(self.task, label=f"{self.task.label}-calibration", data=data)

    def require_enough_documents(self, full_share: float = 1.0) -> None:
        """Check that a guarantee is achievable: the test must pass if no document loses anything.

        Args:
            full_share: Full depth's score as a share of the scale; 1.0, its maximum, before it is known.

        Raises:
            UserError: There are too few documents; says how many are needed.
        """
        if self.epsilon is None:
            return
        epsilon, most = self.epsilon / self.finalists, self.max_loss_percent
        delta = self._delta(full_share)
        least, half = (documents_needed(loss, delta, epsilon) for loss in (0.0, delta / 2))
        if least is not None and self.documents < least:
            raise UserError(
                f"--documents {self.documents}: that {self.finalists} finalists lose at most {most:g} % with "
                f"probability {1 - epsilon:.3g} each takes {least} documents or more, even if none of them loses "
                f"anything, and {half} where they lose half as much. Allowed: more documents, a larger --max-loss, "
                "fewer --finalists."
            )

    @property
    def certified_metric(self) -> str:
        """Metric whose expected loss a guarantee bounds; it is defined per document."""
        return self.task.data.task_object.consistency_metric

    def points_of(self, full_share: float) -> float:
        """Return the bound in points of the certified metric."""
        return self._delta(full_share) * self._scale

    def share_of(self, points: float) -> float:
        """Return points of the certified metric as a share of its scale."""
        return points / self._scale

    @property
    def _scale(self) -> float:
        return float((self.task.data.task_object.bounds(self.certified_metric) or (0, 100))[1])

    def _delta(self, full_share: float) -> float:
        return self.max_loss_percent / 100 * full_share

    def search(self) -> Suite:
        """Return the search suite: full depth, its probe, and gate scores that do not follow from the probe."""
        needing_scores = [name for name in self.methods if not get_method(name)().probe_has_score()]
        sweeps = [self._sweep(self.searched, baseline_method()(), (), "quality", "probe")]
        sweeps += [self._sweep(self.searched, get_method(name)(), (), "scores") for name in needing_scores]
        return self._suite(self.searched, sweeps)

    def confirm(self, candidates: Iterable[Candidate]) -> Suite:
        """Return the suite that decodes candidates and full depth on the documents of the search."""
        return self._suite(self.searched, self._sweeps(self.searched, candidates, "quality"))

    def certify(self, finalists: Sequence[Candidate], candidates: Iterable[Candidate], full_share: float) -> Suite:
        """Return the suite that calibrates each finalist's method.

        The error probability `epsilon` is divided among the finalists (union bound).
        """
        assert self.epsilon is not None
        entries = []
        for finalist in finalists:
            method = finalist.point.method
            levels = _conservative_first(
                [candidate for candidate in candidates if candidate.point.method.name == method.name]
            )
            settings = CalibrationSettings(
                levels=levels,
                delta=self._delta(full_share),
                epsilon=self.epsilon / len(finalists),
                consistency="risk",
                rule="hoeffding-bentkus",
            )
            points = (Point((), type(method)()),)
            location = self.task.location
            names = ((self.model.name,), (self.task.label,))
            entries.append(CalibrationEntry(location, *names, method.name, points, settings, self.documents))
        return replace(self._suite(self.task, []), calibrations=tuple(entries))

    def final(self, finalists: Iterable[Candidate]) -> Suite:
        """Return the suite that decodes and times the finalists and full depth on the task's own documents."""
        full = self._sweep(self.task, baseline_method()(), (), "quality", "timing")
        return self._suite(self.task, [full, *self._sweeps(self.task, finalists, "quality", "timing")])

    def _sweeps(self, task: TaskEntry, candidates: Iterable[Candidate], *kinds: Kind) -> list[Sweep]:
        return [self._sweep(task, candidate.point.method, candidate.point.params, *kinds) for candidate in candidates]

    def _sweep(self, task: TaskEntry, method: Method, params: tuple[tuple[str, Any], ...], *kinds: Kind) -> Sweep:
        labels = (task.label,)
        return Sweep(
            self.task.location, (self.model.name,), labels, method.name, (Point(params, method),), kinds, labels
        )

    def _suite(self, task: TaskEntry, sweeps: Sequence[Sweep]) -> Suite:
        named = {"name": "tune", "models": (self.model,), "tasks": (task,)}
        return replace(self.suite, **named, sweeps=tuple(sweeps), calibrations=())  # type: ignore[arg-type]


def tunable_methods() -> tuple[str, ...]:
    """Return the names of methods with a threshold that need no training and whose score follows from a probe."""
    return tuple(name for name in method_names() if _is_quick(get_method(name)()))


def require_tunable(name: str) -> None:
    """Check that a method has a threshold that a replay can search.

    Raises:
        UserError: The method does not exist, has no threshold, or verifies drafts, which a replay cannot simulate.
    """
    if not _is_searchable(get_method(name)()):
        allowed = [other for other in method_names() if _is_searchable(get_method(other)())]
        raise UserError(f"method {name!r} has no threshold that a replay can search.{suggestion(name, allowed)}")


def _is_searchable(method: Method) -> bool:
    looked_at = method.params().keys() - method.unused_params()
    return "threshold" in looked_at and not method.parts(n_blocks=2).kv_policy.verifies


def _is_quick(method: Method) -> bool:
    needs_training = method.needs_exit_heads or method.fit_params()
    return _is_searchable(method) and not needs_training and method.probe_has_score()


def find_candidates(database: Database, tuning: Tuning) -> list[Candidate]:
    """Search the thresholds of every method, and every static depth, by replay.

    Returns:
        A few candidates per method: for every share in `SHARES`, the shallowest setting that keeps it.

    Raises:
        UserError: A parameter does not fit the model.
    """
    place = f"{name_in_results(tuning.model.name, tuning.model.path)}/{tuning.searched.label}"
    candidates = list(_static_candidates(stored_probe(database, place), tuning.max_loss_percent))
    for name in tuning.methods:
        kind = get_method(name)
        probe = stored_probe(database, place, kind())
        levels = threshold_grid(kind)
        swept = replay(probe, name, levels)
        points = [Point((("threshold", level),), kind.from_params({"threshold": level})) for level in levels]
        depths, matches = (swept[column].to_pylist() for column in ("mean_exit_layer", "token_match"))
        swept_points = [
            candidate
            for candidate in map(Candidate, points, depths, matches)
            if candidate.mean_exit_layer < probe.n_blocks
        ]
        candidates += _cheapest(swept_points, tuning.max_loss_percent)
    return candidates


def threshold_grid(kind: type[Method]) -> list[float]:
    """Return the thresholds to search: evenly spaced between the bounds, or geometric if there is no upper bound."""
    (field,) = (field for field in dataclasses.fields(kind) if field.name == "threshold")
    low, high = field.metadata["low"], field.metadata["high"]
    if high is not None:
        return [float(level) for level in np.linspace(low or 0.0, high, LEVELS).round(4)]
    return [float(f"{level:.3g}") for level in np.geomspace(_LEAST, GREATEST_NATS, LEVELS)]


def _static_candidates(probe: Probe, max_loss_percent: float) -> Iterator[Candidate]:
    kind, parameter = fixed_depth_method()
    chosen = np.array(probe.table["top1_id"].to_pylist())
    matches = (chosen == np.array(probe.table["full_token_id"])[:, None]).mean(axis=0)
    depths = range(1, probe.n_blocks)
    points = [Point(((parameter, depth),), kind.from_params({parameter: depth})) for depth in depths]
    candidates = [
        Candidate(point, depth, float(matches[depth - 1])) for point, depth in zip(points, depths, strict=True)
    ]
    return _cheapest(candidates, max_loss_percent)


def _cheapest(candidates: Iterable[Candidate], max_loss_percent: float) -> Iterator[Candidate]:
    """Yield, for every share, the shallowest candidate whose differing tokens stay within it, without duplicates."""
    pool, outcomes = list(candidates), set[tuple[float, float]]()
    for share in SHARES:
        within_share = [candidate for candidate in pool if candidate.token_match >= 1 - share * max_loss_percent / 100]
        best = min(
            within_share, key=lambda candidate: (candidate.mean_exit_layer, -candidate.token_match), default=None
        )
        if best is not None and (outcome := (best.mean_exit_layer, best.token_match)) not in outcomes:
            outcomes.add(outcome)
            yield best


def _conservative_first(candidates: Sequence[Candidate]) -> tuple[float, ...]:
    """Return the thresholds of one method's candidates, from the strictest to the least strict."""
    ordered = sorted(
        candidates, key=lambda candidate: -candidate.point.method.parts(n_blocks=2).threshold.value(1, 1, 1)
    )
    return tuple(dict(candidate.point.params)["threshold"] for candidate in ordered)


@dataclass(frozen=True)
class Choice:
    """Finalists of one stage.

    Attributes:
        rows: Result row of each candidate.
        finalists: Best candidate per method within the allowed loss, cheapest first, at most `Tuning.finalists`.
        depth: The cheapest static depth within the allowed loss, or None.
        is_shown: True if the interval's bound is within the allowed loss; False if only the point estimate is.
    """

    rows: tuple[tuple[Candidate, Row], ...]
    finalists: tuple[Candidate, ...]
    depth: Candidate | None
    is_shown: bool


def choose(tuning: Tuning, results: Sequence[tuple[Candidate, Row]]) -> Choice:
    """Choose the finalists among decoded candidates."""
    most, fixed = tuning.max_loss_percent, fixed_depth_method()[0].name
    within_bound = [(candidate, row) for candidate, row in results if _is_shown(row, most)]
    is_shown = any(candidate.point.method.name != fixed for candidate, _ in within_bound)
    pool = sorted(within_bound, key=lambda pair: _work(pair[1]))
    if not is_shown:  # fall back to point estimates, the smallest risk first
        pool = sorted((pair for pair in results if _seems_kept(pair[1], most)), key=lambda pair: _risk(pair[1]))
    best: dict[str, tuple[Candidate, Row]] = {}
    for candidate, row in pool:
        best.setdefault(candidate.point.method.name, (candidate, row))
    depth = best.pop(fixed, None)
    finalists = [candidate for candidate, _ in best.values()]
    return Choice(tuple(results), tuple(finalists[: tuning.finalists]), depth and depth[0], is_shown)


def _is_shown(row: Row, most_percent: float) -> bool:
    return row["loss_high_percent"] is not None and row["loss_high_percent"] <= most_percent


def _seems_kept(row: Row, most_percent: float) -> bool:
    return row["delta"] is not None and row["delta"] >= -most_percent / 100 * abs(row["full_value"])


def _risk(row: Row) -> tuple[float, float]:
    bound = row["loss_high_percent"]
    return (math.inf if bound is None else bound, -row["delta"])


def _work(row: Row) -> tuple[float, float]:
    """Return a sort key: bytes read in decoding relative to full depth, then blocks run; smaller is cheaper."""
    saved = row["ideal_speedup_bytes"]
    return (-saved if saved is not None else math.inf, row["mean_blocks_run"])


def results_of(database: Database, cell_ids: Mapping[str, Candidate]) -> list[tuple[Candidate, Row]]:
    """Return the result row of each candidate, given the ids of the quality cells."""
    rows = database.query(_RESULTS, [sorted(cell_ids)]).to_pylist()
    return [(cell_ids[row["cell_id"]], row) for row in rows]


def full_score(database: Database, cell_ids: Sequence[str], metric: str) -> float:
    """Return full depth's value of a metric, for the stage with these quality cells."""
    (row,) = database.query(_FULL_SCORE, [list(cell_ids), metric]).to_pylist()
    return float(row["value"])


def certified(database: Database, cell_ids: Sequence[str]) -> dict[str, float]:
    """Return the calibrated threshold per method; methods without a passing threshold are left out."""
    rows = database.query(_CERTIFIED, [list(cell_ids)]).to_pylist()
    return {row["method"]: row["threshold"] for row in rows}


def why_not_certified(database: Database, cell_ids: Sequence[str]) -> list[str]:
    """Return one sentence per failed calibration: its loss, and how many documents would be needed."""
    return [
        f"{row['method']} at {row['threshold']:g} lost {100 * row['mean_loss']:.2g} % of the scale on "
        f"{row['n']:,} documents, where {100 * row['delta']:.2g} % may be lost: {_needed(row)}."
        for row in database.query(_FAILED, [list(cell_ids)]).to_pylist()
    ]


def _needed(row: Row) -> str:
    needed = documents_needed(row["mean_loss"], row["delta"], row["epsilon"])
    if needed is None:
        return "no number of documents shows a loss that is not kept"
    return f"to show that takes about {needed:,} documents at this loss"
