"""Conformance checks of decoding, of the gate's scores at every block, and of replays in SQL.

A replay recomputes exits from stored predictions, without the model. Each check yields a message per violation.
Shape suffixes: L blocks, N tokens.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import duckdb
import torch
from torch import Tensor

from exitbench.harness.conformance.decoder import ANSWERED, ANSWERS, MAX_NEW_TOKENS, PROMPTS, Trial, monitored
from exitbench.harness.engine.decoding.generation import Generation
from exitbench.harness.engine.decoding.probe import probe_table
from exitbench.methods.base import Method, Parts
from exitbench.methods.offline import score_states
from exitbench.methods.registry import baseline_method
from exitbench.methods.thresholds import Constant
from exitbench.results.files.duckdb_files import in_memory

_TOLERANCE = 1e-4
_LEVELS = 9
_CALM = 0.25
"""Block strength for `direction`: half of the tokens settle at an early block, and confidence predicts which."""
_REVERSED = 0.35
"""Share of concordant pairs below which scores count as reversed.

0.5 is chance; a softmax margin has 0.7, and its negative 0.3.
"""
_SEVERAL = 3
"""Number of repeated evaluations of the same input, with more and more other inputs in between."""


def score_is_repeatable(trial: Trial) -> Iterator[str]:
    """Check that a gate's score depends only on its input: not on earlier calls, the gate object, or other batch rows.

    Yield a message at the first violation.
    """
    first_LN, _ = trial.scored(trial.parts)
    for times in range(1, _SEVERAL + 1):
        for position in range(times):  # a single row, so that counters kept by the gate would differ
            score_states(trial.parts, trial.model, trial.states_LND[:, :1], position=position + 1, seeds_N=[0])
        repeated_LN, _ = trial.scored(trial.parts)
        if not _equal(first_LN, repeated_LN):
            yield "score() gives other numbers for the same input when called again: state is kept between calls"
            return
    if not _equal(first_LN, trial.scored(trial.fresh())[0]):
        yield "score() of a gate that was evaluated before differs from that of a new gate"
    position, at_N = next(trial.positions())
    for seed, at in list(enumerate(at_N.tolist()))[::8]:
        state = trial.states_LND[:, [at]]
        alone_L1, _ = score_states(trial.parts, trial.model, state, position=position, seeds_N=[seed])
        if not _equal(first_LN[:, [at]], alone_L1):
            yield "score() of a row depends on the other rows of the batch"
            return


def depth_follows_threshold(trial: Trial) -> Iterator[str]:
    """Check that the mean exit layer changes over the range of the method's `threshold`, and only rises or only falls.

    Methods without a declared range, or whose other parameters make them ignore the threshold, are not checked.
    """
    low, high = _declared(trial.method)
    if low is None or high is None:
        return
    swept = [_swept(trial, low + (high - low) * step / (_LEVELS - 1)) for step in range(_LEVELS)]
    if _same_rule(trial, swept[0], swept[-1]):
        return  # other parameters select a rule that ignores the threshold
    scores_LN = trial.scored(trial.parts)[0]
    reads = [trial.scored(parts)[0] if _gate_reads_threshold(trial.method) else scores_LN for parts in swept]
    depths = [
        float(exit_layers(trial, parts, swept_LN).double().mean()) for parts, swept_LN in zip(swept, reads, strict=True)
    ]
    span = f"from {low:g} to {high:g}"
    if min(depths) == trial.n_blocks:
        scores = scores_LN[~scores_LN.isnan()]
        yield (
            f"no token leaves early at any threshold {span}: scores are {float(scores.min()):.3g} to "
            f"{float(scores.max()):.3g}, and a token leaves where the score is above the threshold"
        )
    elif max(depths) == trial.first_exit:
        yield f"every token leaves at block {trial.first_exit} at any threshold {span}"
    elif depths not in (sorted(depths), sorted(depths, reverse=True)):
        yield f"the depth both rises and falls with the threshold {span}: {', '.join(f'{d:.2f}' for d in depths)}"


def direction(trial: Trial) -> Iterator[str]:
    """Check that a gate's scores are not reversed: higher scores must go with agreement with the last block.

    The decoder's blocks add little to the residual stream here, so that tokens that an early block chooses with
    confidence rarely change later. Fitted gates are not checked, since a fit to random states is meaningless.
    """
    if trial.method.fit_params():
        return
    calm = Trial(trial.method, trial.shape, strength=_CALM)
    scores_LN, emitted_LN = calm.scored(calm.plain)
    higher, pairs = 0.0, 0
    for score_N, agrees_N in zip(scores_LN, emitted_LN == calm.final_token_N, strict=True):
        if not bool(score_N.isnan().any()):
            over_AD = score_N[agrees_N][:, None] - score_N[~agrees_N][None]
            higher += float(over_AD.sign().add(1).div(2).sum())
            pairs += over_AD.numel()
    if pairs and higher / pairs < _REVERSED:
        yield (
            f"scores are the wrong way round: a token that a block decides as the last one will scores higher than one "
            f"that it does not in {higher / pairs:.0%} of pairs only; a higher score must mean more confident"
        )


def _declared(method: Method) -> tuple[float | None, float | None]:
    for field in dataclasses.fields(method):
        if field.name == "threshold" and isinstance(getattr(method, field.name), float):
            return field.metadata.get("low"), field.metadata.get("high")
    return None, None


def _swept(trial: Trial, level: float) -> Parts:
    changed: dict[str, Any] = {"threshold": level}
    return monitored(dataclasses.replace(trial.method, **changed).parts(trial.n_blocks, trial.fitted))


def _gate_reads_threshold(method: Method) -> bool:
    return "threshold" in method.score_params()


def _same_rule(trial: Trial, first: Parts, second: Parts) -> bool:
    places = [(block, position, MAX_NEW_TOKENS) for block in trial.gate_blocks for position in (1, 2)]
    same = all(first.threshold.value(*place) == second.threshold.value(*place) for place in places)
    return same and not _gate_reads_threshold(trial.method)


def exit_layers(trial: Trial, parts: Parts, scores_LN: Tensor) -> Tensor:
    """Return the exit layers of the tokens of `ANSWERS`, [N], given the gate's score of each token at each block.

    Args:
        trial: The method and its decoder; determines the gate blocks and the tokens' positions.
        parts: The method's parts, of which the threshold is used.
        scores_LN: Gate scores, compared with the threshold in their own dtype.
    """
    leaves_LN = torch.zeros(scores_LN.shape, dtype=torch.bool)
    leaves_LN[-1] = True
    for position, at_N in trial.positions():
        for block in trial.gate_blocks:
            level = parts.threshold.value(block, position, MAX_NEW_TOKENS)
            leaves_LN[block - 1, at_N] = scores_LN[block - 1, at_N] > level
    return 1 + leaves_LN.int().argmax(0)


def _equal(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, atol=_TOLERANCE, equal_nan=True)


def thresholds(trial: Trial) -> Iterator[str]:
    """Check that threshold infinity gives the tokens of full depth, and minus infinity exits at the first gate block.

    Tokens that replace rejected drafts after verification may have any exit layer.
    """
    never = trial.answers(dataclasses.replace(trial.parts, threshold=Constant(math.inf)))
    full = trial.answers(baseline_method()().parts(trial.n_blocks))
    if [g.token_ids for g in never] != [g.token_ids for g in full]:
        yield "a threshold that never opens changes the answer"
    first = trial.first_exit
    always = trial.answers(dataclasses.replace(trial.parts, threshold=Constant(-math.inf)))
    exits = [pair for g in always for pair in zip(g.exit_layers, g.rejected, strict=True)]
    if {layer for layer, rejected in exits if not rejected} - {first}:
        yield f"a threshold that always opens does not exit at block {first}"


def independence(trial: Trial) -> Iterator[str]:
    """Check that prompts give the same traces in a batch as one by one, and that the same seeds give the same traces.

    A trace is an answer's tokens, their exit layers, and the numbers of vocabulary rows that were read.
    """
    together = trial.answers(trial.parts)
    some = range(0, len(PROMPTS), 3)
    alone = [trial.answers(trial.parts, [PROMPTS[row]], first_seed=row)[0] for row in some]
    if _traces([together[row] for row in some]) != _traces(alone):
        yield "a batch is not its rows one by one"
    if together != trial.answers(trial.parts) or together != trial.answers(trial.fresh()):
        yield "the same seed gives another trace"


def model_unchanged(trial: Trial) -> Iterator[str]:
    """Check that the method has not changed the decoder's weights: full depth answers as on a newly made decoder."""
    untouched = Trial(baseline_method()(), trial.shape)
    if trial.answers(untouched.plain) != untouched.answers(untouched.plain):
        yield "the model's weights are not what they were before the method ran"


def _traces(generations: list[Generation]) -> list[tuple[list[int], list[int], list[int]]]:
    return [(g.token_ids, g.exit_layers, g.head_rows) for g in generations]


_SQL_TOLERANCE = 1e-3
"""Absolute and relative tolerance: SQL computes the scores from the same states, but in another order."""
_BORDERLINE = 0.05
"""Maximum share of tokens that may exit at other blocks, because their scores nearly equal the threshold."""


def replays(trial: Trial) -> Iterator[str]:
    """Check that SQL over a probe gives the same scores and exit layers as the gate on the same hidden states.

    A probe is a table of each block's prediction per token, from which exits are recomputed without the model. A few
    exit layers may differ, where scores nearly equal the threshold. Gates without a score in SQL are not checked.
    """
    score_sql, gate_blocks = trial.parts.score_sql(trial.n_blocks), trial.gate_blocks
    if score_sql is None or not gate_blocks:
        return
    rule = trial.parts.exit_layer_sql(trial.n_blocks, MAX_NEW_TOKENS, score_sql)
    keys = [f"{row:03}" for row in range(len(ANSWERS))]
    with in_memory() as connection:
        connection.register("probe", probe_table(trial.checkpoint, keys, ANSWERED, ANSWERS))
        try:
            rows = connection.execute(
                f"SELECT list_transform({gate_blocks}::INTEGER[], lambda l: ({score_sql})::FLOAT), {rule} "
                "FROM probe ORDER BY doc_key, position"
            ).fetchall()
        except duckdb.Error as error:
            message = str(error).partition("\n")[0]
            yield f"score_sql() = {score_sql!r} cannot be computed over a probe: {message}"
            return
    scores_LN, _ = trial.scored(trial.parts)
    for place, block in enumerate(gate_blocks):
        sql_N = torch.tensor([float("nan") if row[0][place] is None else row[0][place] for row in rows])
        wrong_N = ~torch.isclose(sql_N, scores_LN[block - 1], rtol=_SQL_TOLERANCE, atol=_SQL_TOLERANCE)
        if bool(wrong_N.any()):
            at = int(wrong_N.int().argmax())
            yield (
                f"score_sql() = {score_sql!r} is not what score() returns: at block {block} {float(sql_N[at]):.4g} "
                f"in SQL and {float(scores_LN[block - 1, at]):.4g} by the gate, {int(wrong_N.sum())} of "
                f"{len(sql_N)} tokens differ"
            )
            return
    elsewhere_N = torch.tensor([row[1] for row in rows]) != exit_layers(trial, trial.parts, scores_LN)
    if float(elsewhere_N.double().mean()) > _BORDERLINE:
        differ = f"{int(elsewhere_N.sum())} of {len(rows)} tokens leave elsewhere"
        yield f"the threshold's sql() is not its value(): {differ}"
