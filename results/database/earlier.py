"""Backfill of columns that attempts of earlier versions lack, as far as their other rows tell it."""

import json
from collections.abc import Sequence
from typing import Final

import duckdb
import pyarrow as pa
import sqlalchemy as sa

from exitbench.results.database.catalogue_rows import comparable_id, setting_id
from exitbench.results.files.arrow import driver_connection

_ROLES: Final = {
    "agreement": ("token_match", "acceptance_rate"),
    "depth": ("mean_exit_layer", "mean_blocks_run", "held_out_mean_exit_layer"),
    "cost": (
        *("ideal_speedup_bytes", "ideal_speedup_flops", "cost_blocks_bytes", "cost_heads_bytes", "cost_gates_bytes"),
        *("cost_kv_bytes", "cost_verification_bytes", "cost_total_bytes", "ideal_speedup_decode"),
    ),
    "speed": (
        *("speedup", "speedup_decode", "aa_speedup", "realised_fraction", "ms_per_request", "ms_per_token"),
        *("tokens_per_request", "full_ms_per_request", "full_ms_per_token", "full_tokens_per_request"),
        *("timed_documents", "timed_rounds"),
    ),
    "preparation": ("threshold", "held_out_loss", "held_out_accuracy"),
    "data": ("documents_dropped", "prompts_truncated"),
}
"""Metrics that were written without their role, or are added here, all but those of tasks. New ones say their role."""

_ROLE_OF: Final = " ".join(
    f"WHEN metric IN ({', '.join(map(repr, names))}) THEN '{role}'" for role, names in _ROLES.items()
)

_LOWER_IS_BETTER: Final = (
    *("perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "ter", "brier_score"),
    "logprob_gap",
)
"""Scores for which less is better, of those that were written without saying so. New ones say it."""

_ASKED: Final = "($1::VARCHAR[] IS NULL OR list_contains($1::VARCHAR[], attempt_id))"

_FILL: Final = (
    f"UPDATE metric SET role = CASE {_ROLE_OF} ELSE 'task' END WHERE role IS NULL AND {_ASKED}",
    # The headline metric was the first of a task's.
    f"""
    UPDATE metric SET role = 'headline' WHERE (attempt_id, metric_version, ordinal) IN (
        SELECT attempt_id, metric_version, min(ordinal) FROM metric WHERE role IN ('task', 'headline') AND {_ASKED}
        GROUP BY attempt_id, metric_version HAVING NOT bool_or(role = 'headline')
    )
    """,
    # The name of one of lm-eval's metrics ends in that of its filter.
    f"""
    UPDATE metric SET lower_is_better = string_split(metric, ',')[1] IN ({", ".join(map(repr, _LOWER_IS_BETTER))})
    WHERE lower_is_better IS NULL AND role IN ('headline', 'task', 'agreement') AND {_ASKED}
    """,
    # Methods that name these four parameters compare with a threshold, or with others where `rule` says so.
    f"""
    UPDATE cell SET unused_params = ['threshold', 'levels']
    WHERE unused_params IS NULL AND params ->> 'rule' = 'epsilon'
        AND len(list_intersect(json_keys(params), ['threshold', 'levels', 'epsilon'])) = 3
        AND cell_id IN (SELECT cell_id FROM attempt WHERE {_ASKED})
    """,
)

# They are not the attempt's own rows: the microsecond tells them apart.
_ADD_METRIC: Final = """
    INSERT INTO metric BY NAME
    SELECT
        f.attempt_id, o.ordinal + 1 AS ordinal, '{metric}' AS metric, o.metric_version, f.value, f.n, '{role}' AS role,
        a.ended_at + INTERVAL 1 MICROSECOND AS scored_at
    FROM ({found}) AS f
    JOIN attempt AS a USING (attempt_id)
    JOIN (
        SELECT attempt_id, max(ordinal) AS ordinal, max(metric_version) FILTER (metric = '{beside}') AS metric_version
        FROM metric GROUP BY attempt_id
    ) AS o USING (attempt_id)
"""

_WITHOUT: Final = """
    SELECT m.attempt_id, m.value, m.n, c.batch_size
    FROM metric AS m
    JOIN attempt AS a USING (attempt_id)
    JOIN cell AS c USING (cell_id)
    WHERE c.kind = '{kind}' AND m.metric = '{beside}'
        AND {asked}
        AND m.attempt_id NOT IN (SELECT attempt_id FROM metric WHERE metric = '{metric}')
"""

_ADDED: Final = (
    (
        "mean_blocks_run",
        "depth",
        "quality",
        "mean_exit_layer",
        """
        SELECT attempt_id, avg(t.blocks_run) AS value, any_value(w.n) AS n
        FROM token_exit AS t JOIN ({without}) AS w USING (attempt_id) GROUP BY attempt_id
        """,
    ),
    (
        "timed_documents",
        "speed",
        "timing",
        "speedup",
        """
        SELECT attempt_id, count(DISTINCT t.doc_key) AS value, any_value(w.n) AS n
        FROM timing_sample AS t JOIN ({without}) AS w USING (attempt_id) WHERE w.batch_size = 1 GROUP BY attempt_id
        """,
    ),
    (
        "timed_rounds",
        "speed",
        "timing",
        "speedup",
        """
        SELECT attempt_id, count(DISTINCT t.round) AS value, any_value(w.n) AS n
        FROM timing_sample AS t JOIN ({without}) AS w USING (attempt_id) GROUP BY attempt_id
        """,
    ),
    (  # by bytes, as the fraction was; at larger batches that is no bound
        "ideal_speedup_decode",
        "cost",
        "timing",
        "realised_fraction",
        """
        SELECT attempt_id, d.value / w.value AS value, w.n
        FROM metric AS d JOIN ({without}) AS w USING (attempt_id)
        WHERE d.metric = 'speedup_decode' AND w.batch_size = 1 AND w.value > 0
        """,
    ),
)
"""Name and role of a metric, the kind of cell that has it, a metric that such a cell has always had, and how it is
found in attempts that have that and not this."""


def complete(connection: sa.Connection, attempt_ids: Sequence[str] | None = None) -> None:
    """Fill in roles, parameters without effect and metrics that were not written yet; group cells as this version does.

    Args:
        connection: In a transaction, to a database with this version's tables.
        attempt_ids: Of which attempts; None: of all.
    """
    duck = driver_connection(connection)
    if attempt_ids is None:
        _group_anew(duck)
    asked = None if attempt_ids is None else list(attempt_ids)
    for statement in _FILL:
        duck.execute(statement, [asked])
    for metric, role, kind, beside, found in _ADDED:
        without = _WITHOUT.format(kind=kind, beside=beside, metric=metric, asked=_ASKED)
        rows = found.format(without=without)
        duck.execute(_ADD_METRIC.format(metric=metric, role=role, beside=beside, found=rows), [asked])


def _group_anew(duck: duckdb.DuckDBPyConnection) -> None:
    """Say again which cells do the same work, and which attempts at them may be compared."""
    cells = duck.execute("SELECT cell_id, identity FROM cell").fetchall()
    if not cells:
        return
    settings = {cell_id: setting_id(json.loads(identity)) for cell_id, identity in cells}
    attempts = duck.execute("SELECT attempt_id, cell_id, env_id, hw_id FROM attempt").fetchall()
    comparable = {attempt_id: comparable_id(settings[cell_id], *of) for attempt_id, cell_id, *of in attempts}
    for table, key, column, found in (
        ("cell", "cell_id", "setting_id", settings),
        ("attempt", "attempt_id", "comparable_id", comparable),
    ):
        duck.register("found_anew", pa.table({"id": list(found), "found": list(found.values())}))
        duck.execute(
            f"UPDATE {table} SET {column} = found FROM found_anew WHERE id = {key} AND {column} IS DISTINCT FROM found"
        )
        duck.unregister("found_anew")
