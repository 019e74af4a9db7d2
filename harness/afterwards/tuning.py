"""Choose a method and threshold for a model and a task: search by replay, confirm by decoding, time the best settings.

Each stage runs as an ordinary suite, so that finished cells are kept and an interrupted tuning can resume. Search and
confirmation use other documents than those on which the choice is timed and reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from exitbench.errors import UserError, suggestion
from exitbench.harness.afterwards.candidates import Candidate, used_params
from exitbench.harness.cells.cell import CalibrationSettings, Kind, TimingSettings
from exitbench.harness.planning.entries.task import TaskEntry
from exitbench.harness.planning.suite import CalibrationEntry, ModelEntry, Point, Suite, Sweep
from exitbench.methods.base import Method
from exitbench.methods.registry import baseline_method, fixed_depth_method, get_method, method_names
from exitbench.results.database.connection import Database
from exitbench.results.statistics.risk_control import documents_needed

_RESULTS: Final = """
    SELECT
        f.cell_id, f.metric, f.full_value, f.gain, p.delta, p.delta_low, p.delta_high, p.loss_high_percent,
        f.mean_blocks_run, f.blocks, f.ideal_speedup_bytes
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
class Tuning:
    """A tuning problem: model, task, methods to search and allowed loss of quality.

    Its methods return the suites of the stages: pilot, search, confirmation, calibration (`certify`), final timing.

    Attributes:
        suite: Suite that declares the model and the task; its sweeps are not run.
        model: The model.
        task: The task with the documents on which the choice is reported.
        methods: Names of the methods to search; each has a threshold.
        max_loss_percent: Maximum loss of quality, in percent of full depth's quality.
        documents: Number of documents for search and confirmation.
        finalists: Maximum number of methods that are timed, each with its best setting.
        epsilon: Probability that the guaranteed bound on the expected loss is violated (Learn then Test). None for no
            guarantee: only the paired interval of the loss decides.
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
        """The task with the documents on which settings are searched and confirmed.

        These documents are disjoint from the reported documents. With `epsilon`, they are also disjoint from the
        calibration documents.
        """
        if self.task.data.limit is not None and not self.task.has_calibration_split:
            # One set of documents for both purposes: those beyond the task's limit, in the order of their hashes.
            data = replace(self.task.data, limit=self.documents, apart_from=(self.task.data,))
        else:
            data = self.task.other_split("calibration", self.documents, "choosing a threshold")
        if self.epsilon is not None:
            data = replace(data, apart_from=(*data.apart_from, data))
        return replace(self.task, label=f"{self.task.label}-calibration", data=data)

    def require_enough_documents(self, full_share: float = 1.0) -> None:
        """Check that the documents suffice for the guarantee, at least in the best case: no document loses quality.

        Args:
            full_share: Full depth's score as a share of the metric's maximum; 1.0 as long as it is not measured.

        Raises:
            UserError: There are too few documents; the message has the number that is needed.
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
        """Name of the metric whose expected loss a guarantee bounds; it is defined per document."""
        return self.task.data.task_object.consistency_metric

    def points_of(self, full_share: float) -> float:
        """Return the maximum loss in points of `certified_metric`, whose scale is often 0 to 100.

        Args:
            full_share: Full depth's score as a share of the metric's maximum.
        """
        return self._delta(full_share) * self._scale

    def share_of(self, points: float) -> float:
        """Convert a value of `certified_metric` from points to a share of the metric's maximum."""
        return points / self._scale

    @property
    def _scale(self) -> float:
        return float((self.task.data.task_object.bounds(self.certified_metric) or (0, 100))[1])

    def _delta(self, full_share: float) -> float:
        return self.max_loss_percent / 100 * full_share

    def pilot(self, documents: int, batch_rows: int) -> Suite:
        """Return a suite that decodes a few documents at full depth, to measure the time per document.

        Args:
            documents: Number of documents, from those of the search.
            batch_rows: Number of documents decoded together.
        """
        task = replace(self.searched, data=replace(self.searched.data, limit=documents), batch_rows=batch_rows)
        return self._suite(task, [self._sweep(task, baseline_method()(), (), "quality")])

    def search(self) -> Suite:
        """Return the suite of the search: full depth, its probe, and gate scores that a probe does not provide."""
        needing_scores = [name for name in self.methods if not get_method(name)().probe_has_score()]
        sweeps = [self._sweep(self.searched, baseline_method()(), (), "quality", "probe")]
        sweeps += [self._sweep(self.searched, get_method(name)(), (), "scores") for name in needing_scores]
        return self._suite(self.searched, sweeps)

    def confirm(self, candidates: Iterable[Candidate]) -> Suite:
        """Return a suite that decodes full depth and the candidates on the documents of the search."""
        return self._suite(self.searched, self._sweeps(self.searched, candidates, "quality"))

    def certify(self, finalists: Sequence[Candidate], candidates: Iterable[Candidate], full_share: float) -> Suite:
        """Return a suite that calibrates the threshold of each finalist's method, for the guarantee.

        The error probability `epsilon` is divided equally among the finalists (union bound).

        Args:
            finalists: The best candidate of each method.
            candidates: Candidates whose thresholds are tried.
            full_share: Full depth's score as a share of the metric's maximum.
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
            entries.append(CalibrationEntry(location, *names, points, settings, self.documents))
        return replace(self._suite(self.task, []), calibrations=tuple(entries))

    def final(self, finalists: Iterable[Candidate], timing: TimingSettings | None = None) -> Suite:
        """Return a suite that decodes and times full depth and the finalists on the documents to report.

        Args:
            finalists: The settings to time.
            timing: Settings of the timing; None for those of the suite.
        """
        full = self._sweep(self.task, baseline_method()(), (), "quality", "timing")
        suite = self._suite(self.task, [full, *self._sweeps(self.task, finalists, "quality", "timing")])
        return suite if timing is None else replace(suite, timing=timing)

    def _sweeps(self, task: TaskEntry, candidates: Iterable[Candidate], *kinds: Kind) -> list[Sweep]:
        return [self._sweep(task, candidate.point.method, candidate.point.params, *kinds) for candidate in candidates]

    def _sweep(self, task: TaskEntry, method: Method, params: tuple[tuple[str, Any], ...], *kinds: Kind) -> Sweep:
        labels = (task.label,)
        return Sweep(self.task.location, (self.model.name,), labels, (Point(params, method),), kinds, labels)

    def _suite(self, task: TaskEntry, sweeps: Sequence[Sweep]) -> Suite:
        named = {"name": "tune", "models": (self.model,), "tasks": (task,)}
        return replace(self.suite, **named, sweeps=tuple(sweeps), calibrations=())  # type: ignore[arg-type]


def tunable_methods() -> tuple[str, ...]:
    """Return the names of the methods that `tune` searches by default.

    They have a threshold, need no training, and can be replayed from a probe alone.
    """
    return tuple(name for name in method_names() if _is_quick(get_method(name)()))


def require_tunable(name: str) -> None:
    """Check that a method has a threshold that can be searched by replay.

    Raises:
        UserError: The method does not exist, has no threshold, or verifies drafts, which a replay cannot simulate.
    """
    if not _is_searchable(get_method(name)()):
        allowed = [other for other in method_names() if _is_searchable(get_method(other)())]
        raise UserError(f"method {name!r} has no threshold that a replay can search.{suggestion(name, allowed)}")


def _is_searchable(method: Method) -> bool:
    return "threshold" in used_params(method) and not method.parts(n_blocks=2).kv_policy.verifies


def _is_quick(method: Method) -> bool:
    needs_training = method.needs_exit_heads or method.fit_params()
    return _is_searchable(method) and not needs_training and method.probe_has_score()


def _conservative_first(candidates: Sequence[Candidate]) -> tuple[float, ...]:
    """Return the thresholds of one method's candidates, from the strictest (fewest early exits) to the laxest."""
    ordered = sorted(
        candidates, key=lambda candidate: -candidate.point.method.parts(n_blocks=2).threshold.value(1, 1, 1)
    )
    return tuple(dict(candidate.point.params)["threshold"] for candidate in ordered)


@dataclass(frozen=True)
class Choice:
    """Result of the confirmation stage: the finalists, chosen among decoded candidates.

    Attributes:
        rows: Each candidate with its row of the result table.
        finalists: Best candidate of each method within the allowed loss, at most `Tuning.finalists`. The cheapest is
            first or, if `is_shown` is False, the one with the smallest upper bound of the loss.
        depth: Candidate with the cheapest static exit layer within the allowed loss; None if there is none.
        is_shown: Whether the upper bound of the loss interval is within the allowed loss; False if only the point
            estimate is.
    """

    rows: tuple[tuple[Candidate, Row], ...]
    finalists: tuple[Candidate, ...]
    depth: Candidate | None
    is_shown: bool


def choose(tuning: Tuning, results: Sequence[tuple[Candidate, Row]]) -> Choice:
    """Choose the finalists among decoded candidates: per method, the cheapest setting within the allowed loss.

    If no loss interval is within it, settings whose point estimate is within it are chosen, in order of the upper
    bound.

    Args:
        tuning: The tuning problem.
        results: Each candidate with its row of the result table.
    """
    most, fixed = tuning.max_loss_percent, fixed_depth_method()[0].name
    within_bound = [(candidate, row) for candidate, row in results if _is_shown(row, most)]
    is_shown = any(candidate.point.method.name != fixed for candidate, _ in within_bound)
    pool = sorted(within_bound, key=lambda pair: _cost_key(pair[1]))
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
    return row["gain"] is not None and row["gain"] >= -most_percent / 100 * abs(row["full_value"])


def _risk(row: Row) -> tuple[float, float, float, float]:
    bound = row["loss_high_percent"]
    return (math.inf if bound is None else bound, -row["gain"], *_cost_key(row))


def _cost_key(row: Row) -> tuple[float, float]:
    """Return a sort key of a result's cost: bytes read relative to full depth, then blocks run; smaller is cheaper."""
    saved = row["ideal_speedup_bytes"]
    return (-saved if saved is not None else math.inf, row["mean_blocks_run"])


def results_of(database: Database, cell_ids: Mapping[str, Candidate]) -> list[tuple[Candidate, Row]]:
    """Return (candidate, row of quality, depth and speed) pairs, given candidates by the id of their quality cell."""
    rows = database.query(_RESULTS, [sorted(cell_ids)]).to_pylist()
    return [(cell_ids[row["cell_id"]], row) for row in rows]


def full_score(database: Database, cell_ids: Sequence[str], metric: str) -> float:
    """Return full depth's value of a metric on the documents of the given quality cells."""
    (row,) = database.query(_FULL_SCORE, [list(cell_ids), metric]).to_pylist()
    return float(row["value"])


def certified(database: Database, cell_ids: Sequence[str]) -> dict[str, float]:
    """Return calibrated thresholds by method name, for methods whose calibration passed, given calibration cell ids."""
    rows = database.query(_CERTIFIED, [list(cell_ids)]).to_pylist()
    return {row["method"]: row["threshold"] for row in rows}


def why_not_certified(database: Database, cell_ids: Sequence[str]) -> list[str]:
    """Return one sentence per failed calibration, with its loss and the number of documents that would be needed."""
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
