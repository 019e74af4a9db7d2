"""Fill table `quality_difference`: each run's quality minus full depth's, paired by document, with an interval."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from numpy.typing import NDArray

from exitbench.results.files.arrow import driver_connection
from exitbench.results.statistics.intervals import Interval, point, standard_error, t_quantile
from exitbench.results.statistics.paired import difference_interval
from exitbench.results.statistics.pooled import contributions
from exitbench.results.statistics.split import is_choosing

_WANTED: Final = """
    CREATE OR REPLACE TEMP TABLE wanted_difference AS
    WITH scored AS (SELECT attempt_id, max(scored_at) AS scored_at FROM metric GROUP BY attempt_id)
    SELECT
        f.attempt_id, r.full_depth_attempt_id AS full_attempt_id, f.metric, f.delta, s.scored_at,
        t.scored_at AS full_scored_at,
        coalesce(m.ci_method LIKE 'Student%', true) AS has_no_scale, coalesce(m.scale_high - m.scale_low, 100) AS scale
    FROM frontier AS f
    JOIN runs AS r USING (attempt_id)
    JOIN scored AS s ON s.attempt_id = f.attempt_id
    JOIN scored AS t ON t.attempt_id = r.full_depth_attempt_id
    LEFT JOIN (FROM metric QUALIFY scored_at = max(scored_at) OVER (PARTITION BY attempt_id, metric)) AS m
        ON m.attempt_id = r.full_depth_attempt_id AND m.metric = f.metric AND m.value = f.full_value
    WHERE f.execution = 'real' AND NOT f.is_full_depth AND f.delta IS NOT NULL
"""
_KEY: Final = "attempt_id, full_attempt_id, metric, scored_at, full_scored_at"
_DELETE_OUTDATED: Final = (
    f"DELETE FROM quality_difference WHERE ({_KEY}) NOT IN (SELECT ({_KEY}) FROM wanted_difference)"
)
_DROP_STORED: Final = f"DELETE FROM wanted_difference WHERE ({_KEY}) IN (SELECT ({_KEY}) FROM quality_difference)"
_DOCUMENTS: Final = """
    WITH scored AS (
        SELECT
            s.attempt_id, s.doc_key, coalesce(r.scores, s.scores) AS scores,
            coalesce(r.statistics, s.statistics) AS statistics
        FROM sample AS s
        LEFT JOIN (
            SELECT
                attempt_id, doc_key, arg_max(scores, scored_at) AS scores, arg_max(statistics, scored_at) AS statistics
            FROM sample_rescore GROUP BY ALL
        ) AS r USING (attempt_id, doc_key)
    )
    SELECT
        p.attempt_id, s.doc_key, (s.scores ->> p.metric)::DOUBLE - (f.scores ->> p.metric)::DOUBLE AS difference,
        try_cast(s.statistics -> p.metric AS DOUBLE[]) AS statistics,
        try_cast(f.statistics -> p.metric AS DOUBLE[]) AS full_statistics
    FROM wanted_difference AS p
    JOIN scored AS s ON s.attempt_id = p.attempt_id
    JOIN scored AS f ON f.attempt_id = p.full_attempt_id AND f.doc_key = s.doc_key
    ORDER BY p.attempt_id, s.doc_key
"""
_EQUAL: Final = 1e-6
_SCALES: Final = (1.0, 100.0)
"""Factors of metrics that are no means: as lm-eval reports F1, and as GLUE does."""


def fill_differences(connection: sa.Connection) -> None:
    """Update table `quality_difference` to the current runs, their full-depth runs, and the latest scores of both.

    Args:
        connection: A writable database of the current schema; nothing is committed here.
    """
    duck = driver_connection(connection)
    duck.execute(_WANTED)
    duck.execute(_DELETE_OUTDATED)
    duck.execute(_DROP_STORED)
    wanted = {row["attempt_id"]: row for row in duck.sql("FROM wanted_difference").to_arrow_table().to_pylist()}
    if wanted:
        documents = duck.sql(_DOCUMENTS).to_arrow_table().to_pylist()
        by_run = {key: list(rows) for key, rows in groupby(documents, key=lambda row: row["attempt_id"])}
        rows = [row for key, run in wanted.items() for row in _rows(run, by_run.get(key, []))]
        duck.register("new_differences", pa.Table.from_pylist(rows))
        duck.execute("INSERT INTO quality_difference BY NAME FROM new_differences")
        duck.unregister("new_differences")
    duck.execute("DROP TABLE wanted_difference")


def _rows(run: dict[str, Any], documents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield one run's rows of `quality_difference`: for all documents, and for each of two parts of them.

    Settings are chosen on the choosing part, and the choice is measured on the confirming part. Rows for parts are left
    out if the metric's difference is not a mean over documents.

    Args:
        run: Row of `wanted_difference`.
        documents: One row per document with its difference and the statistics of both runs.
    """
    differences = np.array([row["difference"] for row in documents], dtype=np.float64)
    chooses = np.array([is_choosing(row["doc_key"]) for row in documents], dtype=bool)
    contributed = _document_contributions(run["metric"], run["delta"], differences, documents)
    parts = {"all": np.ones(len(differences), dtype=bool), "choosing": chooses, "confirming": ~chooses}
    for part, is_in in parts.items():
        n = int(is_in.sum())
        if part != "all" and (contributed is None or not n):
            continue
        interval = (
            point(float("nan"), n)
            if contributed is None
            else _interval(contributed[is_in], None if run["has_no_scale"] else run["scale"])
        )
        yield {
            **{name: run[name] for name in _KEY.split(", ")},
            "part": part,
            "n": n,
            "n_up": int((differences[is_in] > 0).sum()),
            "n_down": int((differences[is_in] < 0).sum()),
            "delta": None if contributed is None else interval.value,
            "delta_low": interval.low,
            "delta_high": interval.high,
        }


def _document_contributions(
    metric: str, delta: float, differences: NDArray[np.float64], documents: list[dict[str, Any]]
) -> NDArray[np.float64] | None:
    """Return each document's contribution to the difference `delta` between a run and full depth in a metric, [n].

    The mean of the contributions is `delta`; None if no contributions with this mean can be computed. `differences` are
    the differences of the documents' own scores. `documents` has the statistics of both runs, from which contributions
    to corpus metrics are computed.
    """
    if not documents:
        return None
    if _has_mean(differences, delta):
        return differences
    runs = [[row[column] for row in documents] for column in ("statistics", "full_statistics")]
    if len({None if row is None else len(row) for run in runs for row in run}) != 1 or runs[0][0] is None:
        return None
    own, full_depth = (contributions(metric, np.array(run, dtype=np.float64)) for run in runs)
    if own is None or full_depth is None:
        return None
    scaled = (scale * (own - full_depth) for scale in _SCALES)
    return next((contributed for contributed in scaled if _has_mean(contributed, delta)), None)


def _has_mean(contributed: NDArray[np.float64], delta: float) -> bool:
    return bool(abs(contributed.mean() - delta) < _EQUAL)


def _interval(contributed: NDArray[np.float64], scale: float | None) -> Interval:
    value = float(contributed.mean())
    if len(contributed) < 2:
        return point(value, len(contributed))
    if scale is not None:
        return difference_interval(value, contributed, scale)
    reach = standard_error(contributed) * t_quantile(len(contributed))
    # If no document differs, the spread of other documents is unknown.
    return (
        point(value, len(contributed))
        if reach == 0
        else Interval(value, value - reach, value + reach, None, len(contributed))
    )
