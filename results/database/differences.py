"""Fill table `quality_difference`: each run's quality minus full depth's, paired by document, with an interval."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from numpy.typing import NDArray

from exitbench.results.files.arrow import driver_connection
from exitbench.results.statistics.intervals import point
from exitbench.results.statistics.paired import difference_interval
from exitbench.results.statistics.pooled import contributions, largest_contribution
from exitbench.results.statistics.split import is_choosing

_WANTED: Final = """
    CREATE OR REPLACE TEMP TABLE wanted_difference AS
    WITH scored AS (SELECT attempt_id, max(scored_at) AS scored_at FROM metric GROUP BY attempt_id)
    SELECT
        f.attempt_id, f.full_depth_attempt_id AS full_attempt_id, f.metric, f.delta, s.scored_at,
        t.scored_at AS full_scored_at,
        coalesce(m.scale_high - m.scale_low, CASE WHEN m.ci_method NOT LIKE 'Student%' THEN 100 END) AS scale,
        coalesce(m.scale_high, 1) AS greatest_value
    FROM frontier AS f
    JOIN scored AS s ON s.attempt_id = f.attempt_id
    JOIN scored AS t ON t.attempt_id = f.full_depth_attempt_id
    LEFT JOIN (FROM metric QUALIFY scored_at = max(scored_at) OVER (PARTITION BY attempt_id, metric)) AS m
        ON m.attempt_id = f.full_depth_attempt_id AND m.metric = f.metric AND m.value = f.full_value
    WHERE f.execution = 'real' AND NOT f.is_full_depth AND f.delta IS NOT NULL
"""
_KEY: Final = "attempt_id, full_attempt_id, metric, scored_at, full_scored_at"
_DELETE_OUTDATED: Final = (
    f"DELETE FROM quality_difference WHERE ({_KEY}) NOT IN (SELECT ({_KEY}) FROM wanted_difference)"
)
_DROP_STORED: Final = f"DELETE FROM wanted_difference WHERE ({_KEY}) IN (SELECT ({_KEY}) FROM quality_difference)"
_DOCUMENTS: Final = """
    SELECT
        p.attempt_id, s.doc_key,
        try_cast(s.scores ->> p.metric AS DOUBLE) - try_cast(f.scores ->> p.metric AS DOUBLE) AS difference,
        try_cast(s.statistics -> p.metric AS DOUBLE[]) AS statistics,
        try_cast(f.statistics -> p.metric AS DOUBLE[]) AS full_statistics
    FROM wanted_difference AS p
    JOIN latest_scores AS s ON s.attempt_id = p.attempt_id
    JOIN latest_scores AS f ON f.attempt_id = p.full_attempt_id AND f.doc_key = s.doc_key
    ORDER BY p.attempt_id, s.doc_key
"""
_EQUAL: Final = 1e-6


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
    out if no contributions of documents to the metric can be computed.

    Args:
        run: Row of `wanted_difference`.
        documents: One row per document with its difference and the statistics of both runs.
    """
    differences = np.array([row["difference"] for row in documents], dtype=np.float64)
    chooses = np.array([is_choosing(row["doc_key"]) for row in documents], dtype=bool)
    contributed, largest = _document_contributions(run, differences, documents)
    parts = {"all": np.ones(len(differences), dtype=bool), "choosing": chooses, "confirming": ~chooses}
    for part, is_in in parts.items():
        n = int(is_in.sum())
        if part != "all" and (contributed is None or not n):
            continue
        value = float("nan") if contributed is None else float(contributed[is_in].mean())
        interval = (
            point(value, n)
            if contributed is None or n < 2
            else difference_interval(value, contributed[is_in], run["scale"], largest)
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
    run: dict[str, Any], differences: NDArray[np.float64], documents: list[dict[str, Any]]
) -> tuple[NDArray[np.float64] | None, float]:
    """Return each document's contribution to the difference between a run and full depth, [n], and the largest one.

    The mean of the contributions is the run's `delta`; None if no contributions with this mean can be computed. The
    largest possible contribution is 0 for metrics that are means: it is their scale.

    Args:
        run: Row of `wanted_difference`.
        differences: Differences of the documents' own scores, [n].
        documents: Statistics of both runs, from which contributions to corpus metrics are computed.
    """
    statistics = [[row[column] for row in documents] for column in ("statistics", "full_statistics")]
    widths = {None if row is None else len(row) for rows in statistics for row in rows}
    if len(widths) == 1 and None not in widths:
        metric, factor = run["metric"], run["greatest_value"]
        own, full_depth = (np.array(rows, dtype=np.float64) for rows in statistics)
        contributed, full_contributed = contributions(metric, own), contributions(metric, full_depth)
        if contributed is not None and full_contributed is not None:
            contributed = factor * (contributed - full_contributed)
            if _has_mean(contributed, run["delta"]):
                return contributed, factor * max(largest_contribution(metric, rows) for rows in (own, full_depth))
    return (differences if documents and _has_mean(differences, run["delta"]) else None), 0.0


def _has_mean(contributed: NDArray[np.float64], delta: float) -> bool:
    return bool(abs(contributed.mean() - delta) < _EQUAL)
