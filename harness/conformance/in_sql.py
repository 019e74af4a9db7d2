"""Conformance of replays: whether what SQL computes over a probe is what the gate says.

Shape suffixes: L blocks, N tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import torch

from exitbench.harness.conformance.decoder import ANSWERED, ANSWERS, MAX_NEW_TOKENS, Trial
from exitbench.harness.conformance.scoring import exit_layers
from exitbench.harness.engine.decoding.probe import probe_table
from exitbench.results.files.duckdb_files import in_memory

_TOLERANCE = 1e-3
"""Absolute and relative: signals are computed from the same states in another order."""
_BORDERLINE = 0.05
"""Share of tokens that may leave elsewhere, their scores being as good as equal to the threshold."""


def replays(trial: Trial) -> Iterator[str]:
    """Scores at every block asked, and where tokens leave, over a probe of the same states."""
    score_sql, asked = trial.parts.score_sql(trial.n_blocks), trial.asked
    if score_sql is None or not asked:
        return
    rule = trial.parts.exit_layer_sql(trial.n_blocks, MAX_NEW_TOKENS, score_sql)
    keys = [f"{row:03}" for row in range(len(ANSWERS))]
    with in_memory() as connection:
        connection.register("probe", probe_table(trial.checkpoint, keys, ANSWERED, ANSWERS))
        try:
            rows = connection.execute(
                f"SELECT list_transform({asked}::INTEGER[], lambda l: ({score_sql})::FLOAT), {rule} "
                "FROM probe ORDER BY doc_key, position"
            ).fetchall()
        except duckdb.Error as error:
            told = str(error).partition("\n")[0]
            yield f"score_sql() = {score_sql!r} cannot be computed over a probe: {told}"
            return
    scores_LN, _ = trial.scored(trial.parts)
    for place, block in enumerate(asked):
        said_N = torch.tensor([float("nan") if row[0][place] is None else row[0][place] for row in rows])
        wrong_N = ~torch.isclose(said_N, scores_LN[block - 1], rtol=_TOLERANCE, atol=_TOLERANCE)
        if bool(wrong_N.any()):
            at = int(wrong_N.int().argmax())
            yield (
                f"score_sql() = {score_sql!r} is not what score() returns: at block {block} {float(said_N[at]):.4g} "
                f"in SQL and {float(scores_LN[block - 1, at]):.4g} by the gate, {int(wrong_N.sum())} of "
                f"{len(said_N)} tokens differ"
            )
            return
    elsewhere_N = torch.tensor([row[1] for row in rows]) != exit_layers(trial, trial.parts, scores_LN)
    if float(elsewhere_N.double().mean()) > _BORDERLINE:
        differ = f"{int(elsewhere_N.sum())} of {len(rows)} tokens leave elsewhere"
        yield f"the threshold's sql() is not its value(): {differ}"
