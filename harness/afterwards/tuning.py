"""Choose a method and its threshold for a model and a task: search by replay, confirm by decoding, time what is left.

Each stage is a suite that runs like any other, so that what is done is kept and an interrupted choice goes on. The
search and the confirmation read documents of another split than those on which the choice is timed and reported.
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
from exitbench.harness.planning.entries.task import TaskEntry
from exitbench.harness.planning.suite import CalibrationEntry, ModelEntry, Point, Suite, Sweep
from exitbench.methods.base import Method
from exitbench.methods.registry import baseline_method, fixed_depth_method, get_method, method_names
from exitbench.results.database.connection import Database
from exitbench.results.statistics.risk_control import documents_needed

SHARES: Final = (4.0, 2.0, 1.0, 0.5, 0.25, 0.1)
"""Of a candidate's tokens so many times the allowed loss may differ from full depth's, by its replay: a token that
differs need not cost quality, and may cost more than its share."""
LEVELS: Final = 201
GREATEST_NATS: Final = 8.0
"""Up to where a threshold without an upper bound is searched, on a scale of equal ratios."""
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
    """A setting that is worth decoding, and what its replay said (`simulated`)."""

    point: Point
    mean_exit_layer: float
    token_match: float


@dataclass(frozen=True)
class Tuning:
    """What is to be chosen, and from what.

    Attributes:
        suite: Whose model and task they are; its other sweeps are not run.
        methods: Names of methods with a threshold.
        max_loss_percent: Of full depth's quality.
        documents: Documents of the search and the confirmation.
        finalists: Methods that are timed.
        epsilon: Chance that the bound on the expected loss is broken, by Learn then Test; None: the choice is by the
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
        """The task on documents that the choice is not reported on; a guarantee keeps those it is tested on unseen."""
        data = self.task.other_split("calibration", self.documents, "choosing a threshold")
        if self.epsilon is not None:
            data = replace(data, apart_from=(*data.apart_from, data))
        return replace(self.task, label=f"{self.task.label}-calibration", data=data)

    def require_enough_documents(self, full_share: float = 1.0) -> None:
        """Check that a guarantee can be had at all: a test must pass where no document loses anything.

        Args:
            full_share: Full depth's score as a share of the scale; before it is known, the most that it can be.

        Raises:
            UserError: Says how many documents that takes.
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
        """The metric whose expected loss a guarantee bounds: one that every document has by itself."""
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
        """Full depth and its probe, and what gates say where a probe does not tell it."""
        asking = [name for name in self.methods if not get_method(name)().probe_tells_score()]
        sweeps = [self._sweep(self.searched, baseline_method()(), (), "quality", "probe")]
        sweeps += [self._sweep(self.searched, get_method(name)(), (), "scores") for name in asking]
        return self._suite(self.searched, sweeps)

    def confirm(self, candidates: Iterable[Candidate]) -> Suite:
        """Candidates and full depth, decoded on the documents of the search."""
        return self._suite(self.searched, self._sweeps(self.searched, candidates, "quality"))

    def certify(self, finalists: Sequence[Candidate], candidates: Iterable[Candidate], full_share: float) -> Suite:
        """A calibration of each finalist's method; together they are wrong with the guarantee's chance at most."""
        assert self.epsilon is not None
        entries = []
        for finalist in finalists:
            method = finalist.point.method
            levels = _conservative_first([one for one in candidates if one.point.method.name == method.name])
            settings = CalibrationSettings(
                levels=levels,
                delta=self._delta(full_share),
                epsilon=self.epsilon / len(finalists),
                consistency="risk",
                rule="hoeffding-bentkus",
            )
            points = (Point((), type(method)()),)
            where = self.task.where
            names = ((self.model.name,), (self.task.label,))
            entries.append(CalibrationEntry(where, *names, method.name, points, settings, self.documents))
        return replace(self._suite(self.task, []), calibrations=tuple(entries))

    def final(self, finalists: Iterable[Candidate]) -> Suite:
        """What is left and full depth, decoded and timed on the task's own documents."""
        full = self._sweep(self.task, baseline_method()(), (), "quality", "timing")
        return self._suite(self.task, [full, *self._sweeps(self.task, finalists, "quality", "timing")])

    def _sweeps(self, task: TaskEntry, candidates: Iterable[Candidate], *kinds: Kind) -> list[Sweep]:
        return [self._sweep(task, one.point.method, one.point.params, *kinds) for one in candidates]

    def _sweep(self, task: TaskEntry, method: Method, params: tuple[tuple[str, Any], ...], *kinds: Kind) -> Sweep:
        labels = (task.label,)
        return Sweep(self.task.where, (self.model.name,), labels, method.name, (Point(params, method),), kinds, labels)

    def _suite(self, task: TaskEntry, sweeps: Sequence[Sweep]) -> Suite:
        named = {"name": "tune", "models": (self.model,), "tasks": (task,)}
        return replace(self.suite, **named, sweeps=tuple(sweeps), calibrations=())  # type: ignore[arg-type]


def tunable_methods() -> tuple[str, ...]:
    """Names of the methods with a threshold that need nothing trained, and whose score a probe tells."""
    return tuple(name for name in method_names() if _is_quick(get_method(name)()))


def require_tunable(name: str) -> None:
    """Check that a method has a threshold that a replay can search.

    Raises:
        UserError: There is no such method, it has none, or it verifies what it drafts, which no replay tells.
    """
    if not _is_searchable(get_method(name)()):
        allowed = [one for one in method_names() if _is_searchable(get_method(one)())]
        raise UserError(f"method {name!r} has no threshold that a replay could search.{suggestion(name, allowed)}")


def _is_searchable(method: Method) -> bool:
    looked_at = method.params().keys() - method.unused_params()
    return "threshold" in looked_at and not method.parts(n_blocks=2).kv_policy.verifies


def _is_quick(method: Method) -> bool:
    needs_training = method.needs_exit_heads or method.fit_params()
    return _is_searchable(method) and not needs_training and method.probe_tells_score()


def find_candidates(database: Database, tuning: Tuning) -> list[Candidate]:
    """Search the thresholds of every method, and every static depth, by replay.

    Returns:
        A few of each: for every share of tokens that may differ, the least depth that keeps it.

    Raises:
        UserError: A parameter does not fit the model.
    """
    place = f"{tuning.model.name}/{tuning.searched.label}"
    found = list(_of_depths(stored_probe(database, place), tuning.max_loss_percent))
    for name in tuning.methods:
        kind = get_method(name)
        probe = stored_probe(database, place, kind())
        levels = threshold_grid(kind)
        swept = replay(probe, name, levels)
        points = [Point((("threshold", level),), kind.from_params({"threshold": level})) for level in levels]
        depths, matches = (swept[column].to_pylist() for column in ("mean_exit_layer", "token_match"))
        swept_points = [one for one in map(Candidate, points, depths, matches) if one.mean_exit_layer < probe.n_blocks]
        found += _cheapest(swept_points, tuning.max_loss_percent)
    return found


def threshold_grid(kind: type[Method]) -> list[float]:
    """Return the thresholds to search: evenly between the bounds, or in equal ratios where there is no upper one."""
    (field,) = (field for field in dataclasses.fields(kind) if field.name == "threshold")
    low, high = field.metadata["low"], field.metadata["high"]
    if high is not None:
        return [float(level) for level in np.linspace(low or 0.0, high, LEVELS).round(4)]
    return [float(f"{level:.3g}") for level in np.geomspace(_LEAST, GREATEST_NATS, LEVELS)]


def _of_depths(probe: Probe, max_loss_percent: float) -> Iterator[Candidate]:
    kind, parameter = fixed_depth_method()
    chosen = np.array(probe.table["top1_id"].to_pylist())
    matches = (chosen == np.array(probe.table["full_token_id"])[:, None]).mean(axis=0)
    depths = range(1, probe.n_blocks)
    points = [Point(((parameter, depth),), kind.from_params({parameter: depth})) for depth in depths]
    found = [Candidate(point, depth, float(matches[depth - 1])) for point, depth in zip(points, depths, strict=True)]
    return _cheapest(found, max_loss_percent)


def _cheapest(candidates: Iterable[Candidate], max_loss_percent: float) -> Iterator[Candidate]:
    """Of the candidates that keep a share of tokens the shallowest, for every share; each once."""
    known, seen = list(candidates), set[tuple[float, float]]()
    for share in SHARES:
        kept = [one for one in known if one.token_match >= 1 - share * max_loss_percent / 100]
        best = min(kept, key=lambda one: (one.mean_exit_layer, -one.token_match), default=None)
        if best is not None and (outcome := (best.mean_exit_layer, best.token_match)) not in seen:
            seen.add(outcome)
            yield best


def _conservative_first(candidates: Sequence[Candidate]) -> tuple[float, ...]:
    """Return the thresholds of one method's candidates, the one that lets fewest tokens go first."""
    ordered = sorted(candidates, key=lambda one: -one.point.method.parts(n_blocks=2).threshold.value(1, 1, 1))
    return tuple(dict(one.point.params)["threshold"] for one in ordered)


@dataclass(frozen=True)
class Choice:
    """Finalists of one stage.

    Attributes:
        rows: Results by candidate.
        kept: Best of each method that keeps the loss, at most so many as finalists are asked for; the cheapest first.
        depth: The cheapest static depth that keeps it; None where none does.
        is_shown: They keep it by the interval's bound; else only on these documents.
    """

    rows: tuple[tuple[Candidate, Row], ...]
    kept: tuple[Candidate, ...]
    depth: Candidate | None
    is_shown: bool


def choose(tuning: Tuning, results: Sequence[tuple[Candidate, Row]]) -> Choice:
    """Choose the finalists among decoded candidates."""
    most, fixed = tuning.max_loss_percent, fixed_depth_method()[0].name
    shown = [(one, row) for one, row in results if _is_shown(row, most)]
    is_shown = any(one.point.method.name != fixed for one, _ in shown)
    pool = sorted(shown, key=lambda pair: _work(pair[1]))
    if not is_shown:  # the safest of those that keep it on these documents
        pool = sorted((pair for pair in results if _seems_kept(pair[1], most)), key=lambda pair: _risk(pair[1]))
    best: dict[str, tuple[Candidate, Row]] = {}
    for one, row in pool:
        best.setdefault(one.point.method.name, (one, row))
    depth = best.pop(fixed, None)
    kept = [one for one, _ in best.values()]
    return Choice(tuple(results), tuple(kept[: tuning.finalists]), depth and depth[0], is_shown)


def _is_shown(row: Row, most_percent: float) -> bool:
    return row["loss_high_percent"] is not None and row["loss_high_percent"] <= most_percent


def _seems_kept(row: Row, most_percent: float) -> bool:
    return row["delta"] is not None and row["delta"] >= -most_percent / 100 * abs(row["full_value"])


def _risk(row: Row) -> tuple[float, float]:
    bound = row["loss_high_percent"]
    return (math.inf if bound is None else bound, -row["delta"])


def _work(row: Row) -> tuple[float, float]:
    """What decoding reads beside full depth's, then blocks run; the least first."""
    saved = row["ideal_speedup_bytes"]
    return (-saved if saved is not None else math.inf, row["mean_blocks_run"])


def results_of(database: Database, cell_ids: Mapping[str, Candidate]) -> list[tuple[Candidate, Row]]:
    """Return what was measured of each candidate, by the id of its quality cell."""
    rows = database.query(_RESULTS, [sorted(cell_ids)]).to_pylist()
    return [(cell_ids[row["cell_id"]], row) for row in rows]


def full_score(database: Database, cell_ids: Sequence[str], metric: str) -> float:
    """Return a metric of full depth, of the stage whose quality cells these are."""
    (row,) = database.query(_FULL_SCORE, [list(cell_ids), metric]).to_pylist()
    return float(row["value"])


def certified(database: Database, cell_ids: Sequence[str]) -> dict[str, float]:
    """Return the threshold that each method's calibration chose; methods of which none passed are left out."""
    rows = database.query(_CERTIFIED, [list(cell_ids)]).to_pylist()
    return {row["method"]: row["threshold"] for row in rows}


def why_not_certified(database: Database, cell_ids: Sequence[str]) -> list[str]:
    """Return a sentence for each calibration that ended at a level: what it lost, and how many documents that takes."""
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
