"""Replay a method's exit rule over a probe at many thresholds in one pass, without decoding (simulated exits)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from numbers import Real
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa

from exitbench.errors import UserError
from exitbench.methods.base import Method
from exitbench.methods.registry import get_method
from exitbench.results.analysis.replay import sweep, thresholds_by_position
from exitbench.results.database.connection import Database
from exitbench.results.files.duckdb_files import in_memory

if TYPE_CHECKING:
    import pandas as pd

_MAX_SHOWN_PROBES: Final = 12
_PROBES: Final = """
    SELECT
        a.attempt_id, a.cell_id, m.name AS model, d.label AS task_label, m.blocks, m.encoder_blocks = 0 AS is_causal,
        (c.generation ->> 'max_new_tokens')::INTEGER AS max_new_tokens, c.generation ->> 'first_token' AS first_token
    FROM attempt AS a
    JOIN cell AS c USING (cell_id)
    JOIN model_artifact AS m USING (model_id)
    JOIN dataset_artifact AS d USING (data_id)
    WHERE a.status = 'ok' AND c.kind = 'probe' AND (c.identity -> 'record') IS NULL
        AND a.attempt_id NOT IN (SELECT attempt_id FROM probe_token WHERE choice IS NOT NULL)
    QUALIFY row_number() OVER (PARTITION BY model, task_label ORDER BY a.attempt_id DESC) = 1
"""
_SCORES: Final = """
    SELECT a.attempt_id, c.params::VARCHAR AS params FROM attempt AS a JOIN cell AS c USING (cell_id)
    WHERE a.status = 'ok' AND c.kind = 'scores' AND c.identity ->> 'probe_cell_id' = ? AND c.method = ?
    ORDER BY a.attempt_id DESC
"""
_SCORED: Final = """
    SELECT p.*, s.score, s.emitted_id
    FROM probe_token AS p JOIN score_token AS s USING (doc_key, position)
    WHERE p.attempt_id = ? AND s.attempt_id = ?
    ORDER BY doc_key, position
"""


@dataclass(frozen=True)
class Probe:
    """Probe of a model: what each block predicts for every token of full depth's answers to a task.

    Attributes:
        table: One row per token, with the columns of the database's probe table (`exitbench sql --schema`).
        n_blocks: Number of the model's decoder blocks.
        max_new_tokens: Maximum number of tokens per answer.
        is_causal: Whether the first token is read from the prefill and therefore never exits early.
        scored_by: Method whose gate's scores are in the columns ``score`` and ``emitted_id``. None if there are no such
            columns; then only methods whose score is computed from other columns can be replayed.
    """

    table: pa.Table
    n_blocks: int
    max_new_tokens: int
    is_causal: bool
    scored_by: str | None = None

    def to_pandas(self) -> pd.DataFrame:
        """Return the probe's table as a pandas data frame, one row per token."""
        frame: pd.DataFrame = self.table.to_pandas()
        return frame


def replay(probe: Probe, method: str, thresholds: Sequence[float], **params: Any) -> pa.Table:
    """Apply a method's exit rule to a probe at many thresholds in one pass, without decoding (simulated exits).

    Args:
        probe: Record of what each block predicts for each token.
        method: A method whose score can be computed from the probe's columns, such as ``calm-softmax``, or the method
            in ``probe.scored_by``.
        thresholds: Thresholds to replay, at least one.
        **params: Other parameters of the method.

    Returns:
        One row per threshold: ``threshold``, ``mean_exit_layer``, ``token_match`` (share of tokens equal to full
        depth's).

    Raises:
        UserError: The method has no threshold or ignores it, parameters do not fit the model, or the method's score
            cannot be computed from the probe.

    Examples:
        >>> import exitbench as eb
        >>> probe = eb.probe(eb.load_model("builtin-weighted"), ["translate English to French: the key is lost ."])
        >>> eb.replay(probe, "calm-softmax", [0.0, 1.0]).column("mean_exit_layer").to_pylist()
        [1.0, 8.0]
    """
    if not len(thresholds):
        raise UserError("replay: there are no thresholds.")
    kind = get_method(method)
    if "threshold" not in {field.name for field in dataclasses.fields(kind)}:
        raise UserError(f"method {method!r} has no threshold.")
    levels = [float(level) if isinstance(level, Real) else level for level in thresholds]  # converts numpy numbers
    settings = [kind.from_params({**params, "threshold": level}) for level in levels]
    if "threshold" in settings[0].unused_params():
        stated = ", ".join(f"{name} = {value!r}" for name, value in params.items())
        raise UserError(f"method {method!r} does not use its threshold with {stated}; there is nothing to sweep.")
    settings[0].check(probe.n_blocks)
    all_parts = [setting.parts(probe.n_blocks) for setting in settings]
    score_sql, emitted_sql = all_parts[0].score_sql(probe.n_blocks), "top1_id[l]"
    if score_sql is None and probe.scored_by == method:
        score_sql, emitted_sql = "score[l]", "emitted_id[l]"
    if score_sql is None:
        raise UserError(
            f"method {method!r}: its score cannot be computed from a probe. Run it in a suite, as a replay cell."
        )
    rules = [parts.threshold.sql(probe.max_new_tokens) for parts in all_parts]
    longest = max(probe.table.column("position").to_pylist())
    with in_memory() as connection:
        connection.register("probe", probe.table)
        try:
            table = thresholds_by_position(connection, rules, longest)
        except duckdb.Error as error:
            raise UserError("replay: thresholds that differ by block cannot be swept together.") from error
        gate_blocks, first = all_parts[0].gate_blocks(probe.n_blocks), 2 if probe.is_causal else 1
        swept = sweep(
            connection, "probe", score_sql, emitted_sql, gate_blocks, probe.n_blocks, table, first_position=first
        )
    return pa.table(
        {
            "threshold": pa.array(thresholds, pa.float64()),
            "mean_exit_layer": swept.mean_exit_layer,
            "token_match": swept.token_match,
        }
    )


def stored_probe(database: Database, name: str, method: Method | None = None) -> Probe:
    """Return the newest stored probe (predictions of every block) of a model's generated answers to a task.

    Probes of tasks that score given texts are left out.

    Args:
        database: An open database.
        name: Glob over MODEL/TASK that matches one probe.
        method: Method to replay. If its score cannot be computed from a probe, its scores are added, provided that a
            suite has recorded them (cells of kind ``scores``).

    Raises:
        UserError: The glob matches no probe, or several; the message lists existing probes.
    """
    probes = {f"{row['model']}/{row['task_label']}": row for row in database.query(_PROBES).to_pylist()}
    matches = [key for key in probes if fnmatchcase(key, name)]
    if len(matches) != 1:
        fits = (
            f"fits {len(matches)} probes: {', '.join(sorted(matches)[:_MAX_SHOWN_PROBES])}"
            if matches
            else "fits no probe"
        )
        names = ", ".join(sorted(probes)[:_MAX_SHOWN_PROBES]) or "none; suites record them with kinds = ['probe']"
        raise UserError(f"{name!r} {fits}. One is needed, as MODEL/TASK. There are: {names}.")
    row = probes[matches[0]]
    is_causal = row["first_token"] != "gated" and row["is_causal"]
    scores = None if method is None or method.probe_has_score() else _scores(database, row["cell_id"], method)
    if method is None or scores is None:
        table = database.query("FROM probe_token WHERE attempt_id = ? ORDER BY doc_key, position", [row["attempt_id"]])
        return Probe(table, row["blocks"], row["max_new_tokens"], is_causal)
    table = database.query(_SCORED, [row["attempt_id"], scores])
    return Probe(table, row["blocks"], row["max_new_tokens"], is_causal, method.name)


def _scores(database: Database, probe_cell_id: str, method: Method) -> str | None:
    """Return the id of the newest attempt that stores a gate's scores for a probe's tokens; None if there is none."""
    params = json.loads(json.dumps(method.score_params()))
    rows = database.query(_SCORES, [probe_cell_id, method.name]).to_pylist()
    return next((row["attempt_id"] for row in rows if json.loads(row["params"]) == params), None)
