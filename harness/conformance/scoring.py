"""Conformance of scores, asked of tokens whose states are known at every block.

Shape suffixes: L blocks, N tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from exitbench.harness.conformance.decoder import MAX_NEW_TOKENS, Trial
from exitbench.harness.conformance.watched import watched
from exitbench.methods.base import Method, Parts
from exitbench.methods.offline import score_states

_TOLERANCE = 1e-4
_LEVELS = 9
_CALM = 0.25
"""Strength of blocks where directions are asked: half of the tokens are settled early, and sureness tells which."""
_REVERSED = 0.35
"""Share of pairs below which scores run against agreement: 0.5 is a coin, a softmax margin 0.7 and its negative 0.3."""
_SEVERAL = 3
"""Times that the gate is asked the same again, with ever more questions in between."""


def same_again(trial: Trial) -> Iterator[str]:
    """The same question has one answer: after other questions, of a gate made anew, and of each row alone."""
    first_LN, _ = trial.scored(trial.parts)
    for times in range(1, _SEVERAL + 1):
        for position in range(times):  # of one row, so that counters do not stand where they stood
            score_states(trial.parts, trial.model, trial.states_LND[:, :1], position=position + 1, seeds_N=[0])
        again_LN, _ = trial.scored(trial.parts)
        if not _equal(first_LN, again_LN):
            yield "score() gives other numbers for the same input when asked again: something is kept between calls"
            return
    if not _equal(first_LN, trial.scored(trial.fresh())[0]):
        yield "score() of a gate that was asked before differs from that of a new one"
    position, at_N = next(trial.positions())
    for seed, at in list(enumerate(at_N.tolist()))[::8]:
        state = trial.states_LND[:, [at]]
        alone_L1, _ = score_states(trial.parts, trial.model, state, position=position, seeds_N=[seed])
        if not _equal(first_LN[:, [at]], alone_L1):
            yield "score() of a row depends on the rows beside it"
            return


def depth_follows_threshold(trial: Trial) -> Iterator[str]:
    """Over the range that the parameter `threshold` declares the depth must go one way, and must go somewhere."""
    low, high = _declared(trial.method)
    if low is None or high is None:
        return
    swept = [_swept(trial, low + (high - low) * step / (_LEVELS - 1)) for step in range(_LEVELS)]
    if _same_rule(trial, swept[0], swept[-1]):
        return  # other parameters ask for a rule that does not read it
    scores_LN = trial.scored(trial.parts)[0]
    reads = [trial.scored(parts)[0] if _gate_reads_threshold(trial.method) else scores_LN for parts in swept]
    depths = [
        float(exit_layers(trial, parts, own_LN).double().mean()) for parts, own_LN in zip(swept, reads, strict=True)
    ]
    shown = f"from {low:g} to {high:g}"
    if min(depths) == trial.n_blocks:
        scores = scores_LN[~scores_LN.isnan()]
        yield (
            f"no token leaves early at any threshold {shown}: scores are {float(scores.min()):.3g} to "
            f"{float(scores.max()):.3g}, and a token leaves where the score is above the threshold"
        )
    elif max(depths) == trial.first_exit:
        yield f"every token leaves at block {trial.first_exit} at any threshold {shown}"
    elif depths not in (sorted(depths), sorted(depths, reverse=True)):
        yield f"the depth both rises and falls with the threshold {shown}: {', '.join(f'{d:.2f}' for d in depths)}"


def direction(trial: Trial) -> Iterator[str]:
    """Of one block, tokens that it already decides as the last one will do not score lower than those that it does not.

    Asked where blocks add little, so that what an early block is sure of mostly stays. Not of gates that are fitted:
    what random states teach them says nothing.
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
    return watched(dataclasses.replace(trial.method, **changed).parts(trial.n_blocks, trial.fitted))


def _gate_reads_threshold(method: Method) -> bool:
    return "threshold" in method.score_params()


def _same_rule(trial: Trial, one: Parts, other: Parts) -> bool:
    places = [(block, position, MAX_NEW_TOKENS) for block in trial.asked for position in (1, 2)]
    same = all(one.threshold.value(*place) == other.threshold.value(*place) for place in places)
    return same and not _gate_reads_threshold(trial.method)


def exit_layers(trial: Trial, parts: Parts, scores_LN: Tensor) -> Tensor:
    """Where tokens of these scores leave, [N]: the threshold is compared in the scores' precision."""
    leaves_LN = torch.zeros(scores_LN.shape, dtype=torch.bool)
    leaves_LN[-1] = True
    for position, at_N in trial.positions():
        for block in trial.asked:
            level = parts.threshold.value(block, position, MAX_NEW_TOKENS)
            leaves_LN[block - 1, at_N] = scores_LN[block - 1, at_N] > level
    return 1 + leaves_LN.int().argmax(0)


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, atol=_TOLERANCE, equal_nan=True)
