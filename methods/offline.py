"""Offline scores of tokens whose states are known at every block: for fitting, for replays, and in tests.

Every token is scored at every block asked as if it had not left before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from exitbench.methods.base import ActiveRows, BlockView, Model, Parts

CHUNK_BYTES = 64 * 2**20
"""Most memory for one block's logits of the tokens scored together."""


@torch.no_grad()
def score_states(
    parts: Parts, model: Model, states_LND: Tensor, *, position: int = 1, seeds_N: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Ask the gate at every block.

    Args:
        parts: The method.
        model: The model.
        states_LND: States after the embedding and every block, [L+1, N, D].
        position: Position of all N tokens; matters to random draws only.
        seeds_N: Seeds of their rows; likewise.

    Returns:
        Scores, NaN where the gate is not asked, and the tokens that would be emitted, -1 where none would; both
        [L, N], the last block included.
    """
    n_tokens, n_blocks = states_LND.shape[1], model.n_blocks
    seeds = tuple(seeds_N) if seeds_N is not None else (0,) * n_tokens
    chunk = max(1, CHUNK_BYTES // (4 * model.vocab_size))
    pieces = [
        _score(parts, model, states_LND[:, start : start + chunk], position, seeds[start : start + chunk])
        for start in range(0, n_tokens, chunk)
    ]
    if not pieces:
        nothing = states_LND.new_empty((n_blocks, 0))
        return nothing, nothing.long()
    return torch.cat([scores for scores, _ in pieces], 1), torch.cat([emitted for _, emitted in pieces], 1)


def _score(
    parts: Parts, model: Model, states_LND: Tensor, position: int, seeds: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    n_blocks, n_tokens = model.n_blocks, states_LND.shape[1]
    scores_LN = torch.full((n_blocks, n_tokens), float("nan"), device=states_LND.device)
    emitted_LN = torch.full((n_blocks, n_tokens), -1, device=states_LND.device)
    memory: dict[str, Tensor] = {}
    previous_A: Tensor | None = None
    active = ActiveRows((position,) * n_tokens, seeds)
    for block in [*parts.asked(n_blocks), n_blocks]:
        view = BlockView(
            block=block,
            active=active,
            max_new_tokens=1,
            hidden_AD=states_LND[block],
            memory=memory,
            model=model,
            head=parts.head,
            earlier=states_LND[:block].unbind(),
            previous_score_A=previous_A,
            ahead_LAD=states_LND[1:],
        )
        if block < n_blocks:
            previous_A = parts.gate.score(view)
            scores_LN[block - 1] = previous_A
        emitted_LN[block - 1] = parts.gate.choose(view)
    return scores_LN, emitted_LN


def epsilon_thresholds(scores_LN: Tensor, agrees_LN: Tensor, epsilon: float) -> list[float]:
    """The rule of self-supervised heads (HEADS): a threshold a block from agreement in its tail.

    A block's threshold is its smallest score c such that, of the tokens scoring at least c, a share of at least
    epsilon agrees with full depth. Not a guarantee: the share need not rise with c, and there is no confidence bound.

    Args:
        scores_LN: Scores at blocks 1..L; NaN where the gate is not asked.
        agrees_LN: Whether the block's token is that of full depth.
        epsilon: The share, 0 to 1.

    Returns:
        Values for blocks 1..L-1 to be compared by ``score > value``: the next smaller single-precision number below
        the threshold, so that the test includes it; infinity where no share is reached or the gate is not asked.
    """
    return [_tail_threshold(scores_LN[at].cpu(), agrees_LN[at].cpu(), epsilon) for at in range(len(scores_LN) - 1)]


def _tail_threshold(score_N: Tensor, agrees_N: Tensor, epsilon: float) -> float:
    if bool(score_N.isnan().any()):
        return float("inf")
    sorted_N, order_N = score_N.float().sort()
    right_N = agrees_N[order_N].double()
    share_N = right_N.flip(0).cumsum(0).flip(0) / torch.arange(len(sorted_N), 0, -1)
    # Tied scores leave together, so only the first of each tie can be a threshold.
    is_first_N = torch.cat([torch.ones(1, dtype=torch.bool), sorted_N[1:] > sorted_N[:-1]])
    found = (is_first_N & (share_N >= epsilon)).nonzero()
    if len(found) == 0:
        return float("inf")
    threshold = sorted_N[found[0, 0]]
    return float(torch.nextafter(threshold, threshold.new_tensor(float("-inf"))))
