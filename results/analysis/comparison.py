"""Compare runs over the same documents in quality, answers and speed, with paired tests."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np

from exitbench.errors import UserError
from exitbench.results.analysis.selection import Run, RunIndex
from exitbench.results.analysis.traces import shared_prefix
from exitbench.results.database.connection import Database
from exitbench.results.statistics.intervals import (
    PERCENT,
    SHARE,
    Aggregate,
    Floats,
    Interval,
    bounded_ratio_interval,
    mean_interval,
    paired_as_sums,
    product_interval,
    ratio_interval,
)
from exitbench.results.statistics.paired import Difference, binary_difference, difference, holm
from exitbench.results.statistics.pooled import largest_contribution

Aggregates = Callable[[str, str], Aggregate]
"""Maps a task and one of its metrics to the function that aggregates the metric."""

_MAX_KEYS: Final = 10
_SIGNIFICANT: Final = 0.05
# Settings besides the method that may affect quality: differences are reported, as any of them may explain a delta.
_SETTINGS: Final = (
    *("engine", "batch_size", "batch_rows", "dtype", "device", "device_map", "generation", "seed"),
    *("head_precision", "random_weights"),
)

_RUNS: Final = """
    SELECT
        a.attempt_id, a.cell_id, a.ended_at, m.name AS model, m.weights_sha256, m.tokenizer_sha256, d.task,
        d.label AS task_label, d.documents, d.metric_version, c.method, c.params, c.kv_policy, c.method_revision,
        c.identity ->> 'fit_cell_id' AS fit_cell_id, c.setting_id, c.full_depth_cell_id IS NULL AS is_full_depth,
        c.batch_size, c.identity ->> 'batch_rows' AS batch_rows, c.dtype, c.device, c.generation, c.seed,
        c.random_weights, coalesce(c.identity ->> 'engine', 'lean') AS engine,
        c.identity ->> 'device_map' AS device_map, coalesce(c.identity ->> 'head_precision', 'exact') AS head_precision,
        c.conformance ->> 'verdict' = 'conforms' AS conforms,
        row_number() OVER (
            PARTITION BY c.setting_id, c.method, c.params, c.kv_policy ORDER BY a.attempt_id DESC
        ) = 1 AS newest
    FROM attempt AS a
    JOIN cell AS c USING (cell_id)
    JOIN model_artifact AS m USING (model_id)
    JOIN dataset_artifact AS d USING (data_id)
    WHERE a.status = 'ok' AND c.kind = 'quality'
"""
_VERSIONS: Final = """
    SELECT metric_version, max(scored_at) AS scored_at FROM sample_rescore WHERE attempt_id = ? GROUP BY metric_version
"""
_METRICS: Final = """
    SELECT
        metric, lower_is_better, coalesce(scale_high, 1) AS greatest_value,
        coalesce(scale_high - scale_low, CASE WHEN ci_method NOT LIKE 'Student%' THEN 100 END) AS scale
    FROM metric
    WHERE attempt_id = $attempt_id AND metric_version = $version
"""
_SAMPLES: Final = """
    SELECT
        s.doc_key, s.output_ids, s.n_output, coalesce(r.scores, s.scores) AS scores,
        coalesce(r.statistics, s.statistics) AS statistics
    FROM sample AS s
    LEFT JOIN sample_rescore AS r
        ON r.attempt_id = s.attempt_id AND r.doc_key = s.doc_key AND r.metric_version = $version
    WHERE s.attempt_id = $attempt_id ORDER BY s.doc_key
"""
_TIMINGS: Final = """
    SELECT a.attempt_id, a.comparable_id
    FROM attempt AS a JOIN cell AS c USING (cell_id)
    WHERE a.status = 'ok' AND c.kind = 'timing' AND c.setting_id = $setting_id AND c.method = $method
        AND c.method_revision = $method_revision AND c.params::JSON = $params::JSON
        AND c.kv_policy IS NOT DISTINCT FROM $kv_policy
        AND (c.identity ->> 'fit_cell_id') IS NOT DISTINCT FROM $fit_cell_id AND (c.identity -> 'record') IS NULL
    ORDER BY a.attempt_id DESC
"""
_TIMES: Final = """
    SELECT
        doc_key, median(wall_ns) FILTER (arm = 'full') AS full_ns, median(wall_ns) FILTER (arm <> 'full') AS own_ns
    FROM timing_sample WHERE attempt_id = ? AND phase = 'total' AND NOT twin GROUP BY doc_key ORDER BY doc_key
"""


@dataclass(frozen=True)
class RunContrast:
    """Comparison of run B with run A in one quantity: a metric, a property of the answers, or the speed-up.

    Attributes:
        run_a: Name of run A.
        run_b: Name of run B.
        quantity: Name of a metric of the task, or `equal_tokens`, `equal_answers`, `first_divergence`,
            `tokens_per_answer`, `speedup`.
        a: Value of run A; None if it cannot be computed, or the quantity is defined only for both runs together.
        b: Value of run B; None in the same cases.
        contrast: Definition of the estimate: `b - a`, `b / a`, or a `share` or `median` over pairs of answers.
        estimate: Value of the contrast; None if it cannot be computed, for the reason in `how`.
        low: Lower end of the estimate's paired 95% interval.
        high: Upper end of this interval.
        p: Two-sided p-value for the hypothesis of no difference; given for metrics only.
        p_holm: p-value adjusted by Holm's method over every metric of all runs compared.
        verdict: `better` or `worse`: run B relative to run A in the metric's direction; None if `p_holm` is above 5%.
        detectable: Smallest true difference that the test detects (5%, two-sided, 80% power); None if it detects none.
        n: Number of documents in the estimate.
        how: Test that gave `p`, or the reason why there is no estimate.
    """

    run_a: str
    run_b: str
    quantity: str
    a: float | None = None
    b: float | None = None
    contrast: str = "b - a"
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    verdict: Literal["better", "worse"] | None = None
    detectable: float | None = None
    n: int | None = None
    how: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Result of comparing run A with one or more runs B.

    Attributes:
        contrasts: One comparison per run B and quantity.
        warnings: Sentences on settings that differ between two runs, random weights, and failed conformance checks.
        broken: Names of the runs whose method failed its conformance check.
    """

    contrasts: tuple[RunContrast, ...]
    warnings: tuple[str, ...]
    broken: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Samples:
    """Answers of one run and their scores: parallel lists with one entry per document, sorted by document key.

    `metrics` has each metric's direction and scale.
    """

    keys: list[str]
    output_ids: list[list[int]]
    lengths: list[int]
    scores: list[dict[str, float]]
    statistics: list[dict[str, list[float]]]
    metrics: dict[str, dict[str, Any]]

    def rows(self, metric: str) -> Floats:
        """Return one row of numbers per document: the statistics whose sums give a corpus metric, or else the value."""
        pairs = zip(self.statistics, self.scores, strict=True)
        return np.array([statistics.get(metric, [values[metric]]) for statistics, values in pairs], dtype=np.float64)

    def has_ids(self) -> bool:
        """Return whether the answers' token ids are stored; an export may have omitted them for licensed data."""
        return [len(ids) for ids in self.output_ids] == self.lengths


def compare(database: Database, name_a: str, name_b: str, aggregates: Aggregates) -> Comparison:
    """Compare one run, selected by `name_a`, with every run that `name_b` selects.

    Args:
        database: Open result database.
        name_a: Id of an attempt or cell, a prefix of it, or a glob (see `results.analysis.selection`); one run only.
        name_b: The same, for one or more runs.
        aggregates: Returns the function that aggregates a metric of a task over documents.

    Raises:
        UserError: A name selects no run, `name_a` selects several, or runs differ in documents or have no common
            metric version.
    """
    return _Comparer(database, aggregates).compare(name_a, name_b)


class _Comparer:
    def __init__(self, database: Database, aggregates: Aggregates) -> None:
        self._database, self._aggregates = database, aggregates

    def compare(self, name_a: str, name_b: str) -> Comparison:
        run_a = self._runs.find_one(name_a)
        selected = self._runs.find(name_b)
        # A glob may match run A too; a run that is named exactly can be compared with itself.
        runs_b = [run for run in selected if run != run_a] or selected
        version = self._common_version([run_a, *runs_b])
        samples_a = self._samples(run_a, version)
        contrasts: list[RunContrast] = []
        warnings: list[str] = []
        for run_b in runs_b:
            samples_b = self._samples(run_b, version)
            _require_same_documents(self._runs.name(run_a), samples_a, self._runs.name(run_b), samples_b)
            warnings += self._warnings(run_a, run_b)
            contrasts += self._contrasts(run_a, samples_a, run_b, samples_b)
        broken = {self._runs.name(run) for run in (run_a, *runs_b) if self._facts[run.attempt_id]["conforms"] is False}
        return Comparison(
            tuple(_adjusted(contrasts, samples_a.metrics)), tuple(dict.fromkeys(warnings)), frozenset(broken)
        )

    @cached_property
    def _facts(self) -> dict[str, dict[str, Any]]:
        """Settings, model, task and method of every successful quality attempt, by attempt id."""
        return {row["attempt_id"]: row for row in self._database.query(_RUNS).to_pylist()}

    @cached_property
    def _runs(self) -> RunIndex:
        runs = [
            Run(
                **{name: row[name] for name in ("attempt_id", "cell_id", "model", "task_label", "method", "newest")},
                params=json.loads(row["params"]),
                about=f"{row['documents']} documents, batch {row['batch_size']}, {row['dtype']}, seed {row['seed']}",
            )
            for row in self._facts.values()
        ]
        return RunIndex(runs, what="quality run")

    def _common_version(self, runs: Sequence[Run]) -> str:
        """Return the metric version under which all runs have scores; of several, the one scored last for run A.

        Run A is the first of `runs`.
        """
        versions = [self._versions(run) for run in runs]
        common = [version for version in versions[0] if all(version in run_versions for run_versions in versions)]
        if not common:
            details = "\n".join(
                f"  {self._runs.name(run)}: {'; '.join(run_versions)}"
                for run, run_versions in zip(runs, versions, strict=True)
            )
            raise UserError(
                f"the runs are scored under different versions of the metrics:\n{details}\n"
                "`exitbench rescore` scores stored outputs under the current version."
            )
        return common[-1]

    def _versions(self, run: Run) -> list[str]:
        """Return the metric versions under which a run has scores, ordered by the time of scoring."""
        facts = self._facts[run.attempt_id]
        rescored = self._database.query(_VERSIONS, [run.attempt_id]).to_pylist()
        scored = [(facts["ended_at"], facts["metric_version"])]
        return [
            version for _, version in sorted(scored + [(row["scored_at"], row["metric_version"]) for row in rescored])
        ]

    def _samples(self, run: Run, version: str) -> _Samples:
        parameters = {"attempt_id": run.attempt_id, "version": version}
        rows = self._database.query(_SAMPLES, parameters).to_pylist()
        return _Samples(
            keys=[row["doc_key"] for row in rows],
            output_ids=[row["output_ids"] for row in rows],
            lengths=[row["n_output"] for row in rows],
            scores=[json.loads(row["scores"]) for row in rows],
            statistics=[json.loads(row["statistics"]) for row in rows],
            metrics={row["metric"]: row for row in self._database.query(_METRICS, parameters).to_pylist()},
        )

    def _warnings(self, run_a: Run, run_b: Run) -> list[str]:
        a, b, name_a, name_b = (
            *(self._facts[run.attempt_id] for run in (run_a, run_b)),
            self._runs.name(run_a),
            self._runs.name(run_b),
        )
        warnings = [
            f"{setting} differs: {a[setting]} ({name_a}) and {b[setting]} ({name_b})"
            for setting in _SETTINGS
            if a[setting] != b[setting]
        ]
        warnings += [
            f"{name}: its method breaks its contract; do not cite its numbers (`exitbench check` gives the reasons)"
            for name, facts in ((name_a, a), (name_b, b))
            if facts["conforms"] is False
        ]
        return warnings + [
            f"{name}: random weights, so its quality means nothing"
            for name, facts in ((name_a, a), (name_b, b))
            if facts["random_weights"]
        ]

    def _contrasts(self, run_a: Run, a: _Samples, run_b: Run, b: _Samples) -> list[RunContrast]:
        blank = RunContrast(self._runs.name(run_a), self._runs.name(run_b), "")
        task, seed = self._facts[run_a.attempt_id]["task"], self._facts[run_a.attempt_id]["seed"]
        rows = [
            _metric_contrast(replace(blank, quantity=metric), self._difference(a, b, task, metric, seed))
            for metric in a.scores[0]
            if metric in a.metrics
        ]
        return [*rows, *self._answers(blank, run_a, a, run_b, b, seed), self._speed(blank, run_a, run_b, seed)]

    def _difference(self, a: _Samples, b: _Samples, task: str, metric: str, seed: int) -> Difference:
        rows_a, rows_b = a.rows(metric), b.rows(metric)
        facts = a.metrics[metric]
        if any(metric in statistics for statistics in a.statistics):
            largest = facts["greatest_value"] * max(largest_contribution(metric, rows) for rows in (rows_a, rows_b))
            sums = paired_as_sums(rows_a, rows_b, self._aggregates(task, metric))
            return difference(*sums, seed=seed, scale=facts["scale"], largest=largest)
        if facts["scale"] == PERCENT[1] and set(np.unique([rows_a, rows_b])) <= {0.0, 100.0}:
            return binary_difference(rows_a[:, 0], rows_b[:, 0])
        # A metric without statistics is the mean of its values, for third-party tasks too.
        return difference(rows_a, rows_b, lambda total, n: total[..., 0] / n, seed=seed, scale=facts["scale"])

    def _answers(
        self, blank: RunContrast, run_a: Run, a: _Samples, run_b: Run, b: _Samples, seed: int
    ) -> list[RunContrast]:
        """Return contrasts of the answers: shares of equal tokens and answers, first differing position, and length.

        If token ids are missing or the tokenizers differ, only the length is compared. `blank` is a contrast that has
        only the names of the runs.
        """
        lengths_a, lengths_b, n = a.lengths, b.lengths, len(a.keys)
        longer = ratio_interval(lengths_b, lengths_a, seed=seed)
        length = replace(
            _interval_contrast(replace(blank, quantity="tokens_per_answer", contrast="b / a"), longer),
            a=sum(lengths_a) / n,
            b=sum(lengths_b) / n,
        )
        not_stored = "token ids are not stored: whole texts were scored, or an export omitted the ids"
        why_not = "" if a.has_ids() and b.has_ids() else not_stored
        if len({self._facts[run.attempt_id]["tokenizer_sha256"] for run in (run_a, run_b)}) > 1:
            why_not = "different tokenizers"
        if why_not:
            return [replace(blank, quantity="equal_tokens", contrast="share", how=why_not), length]
        pairs = list(zip(a.output_ids, b.output_ids, strict=True))
        equal = [sum(x == y for x, y in zip(first, second, strict=False)) for first, second in pairs]
        parted = [shared_prefix(first, second) + 1 for first, second in pairs if first != second]
        tokens = bounded_ratio_interval(equal, lengths_a)
        same = mean_interval([first == second for first, second in pairs], SHARE)
        return [
            _interval_contrast(replace(blank, quantity="equal_tokens", contrast="share"), tokens),
            _interval_contrast(replace(blank, quantity="equal_answers", contrast="share"), same),
            replace(
                blank,
                quantity="first_divergence",
                contrast="median",
                estimate=float(np.median(parted)) if parted else None,
                n=len(parted),
                how=None if parted else "no answer differs",
            ),
            length,
        ]

    def _speed(self, blank: RunContrast, run_a: Run, run_b: Run, seed: int) -> RunContrast:
        """Return the contrast of speed-ups: run B's divided by run A's, or the reason why they are not comparable.

        Each run's speed-up is measured against full depth timed in the same process, since the speed of a machine
        drifts. `blank` is a contrast that has only the names of the runs.
        """
        blank = replace(blank, quantity="speedup", contrast="b / a")
        facts = [self._facts[run.attempt_id] for run in (run_a, run_b)]
        if facts[0]["setting_id"] != facts[1]["setting_id"]:
            differ = "model, data, generation, number format, device, batch, head precision or seed differ"
            return replace(blank, how=f"not comparable: {differ}")
        if facts[0]["is_full_depth"] and facts[1]["is_full_depth"]:
            return replace(blank, how="both are full depth")
        timings = [self._timings(arm) for arm in facts]
        for name, arm in ((blank.run_a, timings[0]), (blank.run_b, timings[1])):
            if arm == []:
                return replace(blank, how=f"{name} was not timed")
        pair = _latest_comparable(*timings)
        if pair is None:
            return replace(blank, how="not comparable: timed on different machines or with different software")
        times = [None if attempt_id is None else self._times(attempt_id) for attempt_id in pair]
        timed = [arm for arm in times if arm is not None]
        keys = set(timed[0])
        if any(set(arm) != keys for arm in timed):
            return replace(blank, how="not comparable: different documents were timed")
        # Full depth against itself is 1, and needs no session.
        a, b = (np.array([arm[key] if arm else (1.0, 1.0) for key in sorted(keys)], dtype=np.float64) for arm in times)
        # A's speed-up in the denominator, B's in the numerator: (full B / B) / (full A / A).
        interval = product_interval(np.concatenate([a, b], axis=1), (-1, 1, 1, -1), seed=seed)
        speeds = [float(arm[:, 0].sum() / arm[:, 1].sum()) for arm in (a, b)]
        return replace(_interval_contrast(blank, interval), a=speeds[0], b=speeds[1])

    def _timings(self, facts: dict[str, Any]) -> list[tuple[str, str]] | None:
        """Return (attempt id, comparable id) of each timing of a run, latest first; None if the run is full depth."""
        if facts["is_full_depth"]:
            return None
        columns = ("setting_id", "method", "method_revision", "params", "kv_policy", "fit_cell_id")
        rows = self._database.query(_TIMINGS, {name: facts[name] for name in columns}).to_pylist()
        return [(row["attempt_id"], row["comparable_id"]) for row in rows]

    def _times(self, attempt_id: str) -> dict[str, tuple[float, float]]:
        rows = self._database.query(_TIMES, [attempt_id]).to_pylist()
        return {row["doc_key"]: (row["full_ns"], row["own_ns"]) for row in rows}


def _latest_comparable(
    a: list[tuple[str, str]] | None, b: list[tuple[str, str]] | None
) -> tuple[str | None, str | None] | None:
    """Return the latest pair of timing attempts, one of each run, with equal comparable ids; None if there is none.

    Attempts have equal comparable ids if they were timed on the same machine with the same software and settings.

    Args:
        a: Attempt id and comparable id of each timing of run A; None for full depth, which needs no timing.
        b: The same for run B.
    """
    if a is None or b is None:
        return (a[0][0] if a else None), (b[0][0] if b else None)
    pairs = [(x, y) for x, group in a for y, other in b if group == other]
    return max(pairs, key=lambda pair: sorted(pair, reverse=True), default=None)


def _metric_contrast(blank: RunContrast, result: Difference) -> RunContrast:
    return replace(
        _interval_contrast(blank, result.delta),
        a=result.a,
        b=result.b,
        p=result.p,
        detectable=result.detectable,
        how=result.test,
    )


def _interval_contrast(blank: RunContrast, interval: Interval) -> RunContrast:
    return replace(blank, estimate=interval.value, low=interval.low, high=interval.high, n=interval.n)


def _adjusted(contrasts: Sequence[RunContrast], metrics: Mapping[str, dict[str, Any]]) -> list[RunContrast]:
    """Return the contrasts, with Holm's adjusted p-value and the verdict added to those that have a p-value.

    `metrics` has each metric's direction.
    """
    adjusted = iter(holm([contrast.p for contrast in contrasts if contrast.p is not None]))
    return [
        contrast
        if contrast.p is None
        else _judged(replace(contrast, p_holm=next(adjusted)), metrics[contrast.quantity]["lower_is_better"])
        for contrast in contrasts
    ]


def _judged(contrast: RunContrast, lower_is_better: bool | None) -> RunContrast:
    assert contrast.p_holm is not None and contrast.estimate is not None, "metrics have both"
    if contrast.p_holm > _SIGNIFICANT or contrast.estimate == 0:
        return contrast
    is_better = (contrast.estimate < 0) == bool(lower_is_better)
    return replace(contrast, verdict="better" if is_better else "worse")


def _require_same_documents(name_a: str, a: _Samples, name_b: str, b: _Samples) -> None:
    only_a, only_b = sorted(set(a.keys) - set(b.keys)), sorted(set(b.keys) - set(a.keys))
    if not only_a and not only_b:
        return
    details = "".join(
        f"\n  only in {name} ({len(keys)}): {', '.join(keys[:_MAX_KEYS])}{', ...' * (len(keys) > _MAX_KEYS)}"
        for name, keys in ((name_a, only_a), (name_b, only_b))
        if keys
    )
    raise UserError(f"the runs are not of the same documents, by key:{details}")
