"""Fill `quality_difference`: every run's quality against full depth, paired by document, with its interval."""

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
# BLEU is no mean over documents: each document's contribution is computed by leaving it out.
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
    ),
    documents AS (
        SELECT
            p.attempt_id, s.doc_key, (s.scores ->> p.metric)::DOUBLE - (f.scores ->> p.metric)::DOUBLE AS difference,
            p.metric = 'bleu' AND json_array_length(s.statistics -> 'bleu') = 10 AS is_bleu,
            CASE WHEN is_bleu THEN (s.statistics -> 'bleu')::DOUBLE[] END AS own,
            CASE WHEN is_bleu THEN (f.statistics -> 'bleu')::DOUBLE[] END AS full_depth
        FROM wanted_difference AS p
        JOIN scored AS s ON s.attempt_id = p.attempt_id
        JOIN scored AS f ON f.attempt_id = p.full_attempt_id AND f.doc_key = s.doc_key
    ),
    sums AS (
        SELECT attempt_id, count(*) AS n, bleu_sums(own) AS own, bleu_sums(full_depth) AS full_depth
        FROM documents WHERE is_bleu GROUP BY attempt_id
    ),
    left_out AS (
        SELECT
            attempt_id, d.doc_key, s.n, d.difference, corpus_bleu(s.own) - corpus_bleu(s.full_depth) AS whole,
            corpus_bleu(less(s.own, d.own)) - corpus_bleu(less(s.full_depth, d.full_depth)) AS without
        FROM documents AS d JOIN sums AS s USING (attempt_id) WHERE d.is_bleu
    )
    SELECT attempt_id, doc_key, difference, difference AS moved FROM documents WHERE is_bleu IS DISTINCT FROM true
    UNION ALL
    SELECT attempt_id, doc_key, difference, whole + (n - 1) * (avg(without) OVER (PARTITION BY attempt_id) - without)
    FROM left_out
    ORDER BY attempt_id, doc_key
"""
_EQUAL: Final = 1e-6


def fill_differences(connection: sa.Connection) -> None:
    """Update `quality_difference` for the current runs, their full-depth runs, and the latest scores of both.

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
    """Yield the rows of one run: over all documents and, if their contributions give the difference, per part."""
    contributions = np.array([row["moved"] for row in documents], dtype=np.float64)
    differences = np.array([row["difference"] for row in documents], dtype=np.float64)
    chooses = np.array([is_choosing(row["doc_key"]) for row in documents], dtype=bool)
    is_paired = len(contributions) > 0 and bool(abs(contributions.mean() - run["delta"]) < _EQUAL)
    parts = {"all": np.ones(len(contributions), dtype=bool), "choosing": chooses, "confirming": ~chooses}
    for part, is_in in parts.items():
        n = int(is_in.sum())
        if part != "all" and not (is_paired and n):
            continue
        interval = (
            _interval(contributions[is_in], None if run["has_no_scale"] else run["scale"])
            if is_paired
            else point(float("nan"), n)
        )
        yield {
            **{name: run[name] for name in _KEY.split(", ")},
            "part": part,
            "n": n,
            "n_up": int((differences[is_in] > 0).sum()),
            "n_down": int((differences[is_in] < 0).sum()),
            "delta": interval.value if is_paired else None,
            "delta_low": interval.low,
            "delta_high": interval.high,
        }


def _interval(moved: NDArray[np.float64], scale: float | None) -> Interval:
    value = float(moved.mean())
    if len(moved) < 2:
        return point(value, len(moved))
    if scale is not None:
        return difference_interval(value, moved, scale)
    reach = standard_error(moved) * t_quantile(len(moved))
    # If no document differs, the spread of other documents is unknown.
    return point(value, len(moved)) if reach == 0 else Interval(value, value - reach, value + reach, None, len(moved))
