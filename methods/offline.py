"""Offline scores: run a gate on tokens whose states after every block are given, for fitting, replays and tests.

Every token is scored at every gate block, even if it would have exited before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from exitbench.methods.base import ActiveRows, BlockView, ModelInterface, Parts, argmax_token

CHUNK_BYTES = 64 * 2**20
"""Largest size of one block's logits of the tokens that are scored together."""


@torch.no_grad()
def score_states(
    parts: Parts, model: ModelInterface, states_LND: Tensor, *, position: int = 1, seeds_N: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Return the gate's scores of all tokens at every gate block, and the tokens that would be emitted there.

    Args:
        parts: Gate, threshold, head and KV policy of the method.
        model: The model.
        states_LND: States after the embedding and every block, [L+1, N, D].
        position: Position in the answer, taken for all N tokens; used only by gates that draw random numbers.
        seeds_N: Random seed for each token; only gates that draw random numbers use it. None: 0 for all.

    Returns:
        Scores [L, N], NaN at blocks without a gate, and the tokens that would be emitted, [L, N], -1 at blocks without
        a gate. The last block has tokens and no scores.
    """
    n_tokens, n_blocks = states_LND.shape[1], model.n_blocks
    scores_LN = states_LND.new_full((n_blocks, n_tokens), float("nan"), dtype=torch.float32)
    emitted_LN = torch.full((n_blocks, n_tokens), -1, device=states_LND.device)
    for tokens, view, score_A in _views(parts, model, states_LND, position, seeds_N):
        if score_A is not None:
            scores_LN[view.block - 1, tokens] = score_A
        emitted_LN[view.block - 1, tokens] = parts.gate.choose(view)
    return scores_LN, emitted_LN


@torch.no_grad()
def score_given(
    parts: Parts,
    model: ModelInterface,
    states_LND: Tensor,
    target_N: Tensor,
    *,
    position: int = 1,
    seeds_N: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gate's scores of all tokens at every gate block, and log-probabilities of given tokens there.

    Args:
        parts: Gate, threshold, head and KV policy of the method.
        model: The model.
        states_LND: States after the embedding and every block, [L+1, N, D].
        target_N: The given token at each of the N positions.
        position: Position in the answer, taken for all N tokens; used only by gates that draw random numbers.
        seeds_N: Random seed for each token; only gates that draw random numbers use it. None: 0 for all.

    Returns:
        Scores; natural log-probabilities of the given tokens; whether the given tokens are the most probable. Each is
        [L, N]. At blocks without a gate, the first two are NaN. The last block has no scores but the other two.
    """
    n_tokens, n_blocks = states_LND.shape[1], model.n_blocks
    scores_LN = states_LND.new_full((n_blocks, n_tokens), float("nan"), dtype=torch.float32)
    logprob_LN = torch.full_like(scores_LN, float("nan"))
    greedy_LN = torch.zeros_like(scores_LN, dtype=torch.bool)
    for tokens, view, score_A in _views(parts, model, states_LND, position, seeds_N):
        if score_A is not None:
            scores_LN[view.block - 1, tokens] = score_A
        log_p_AV, target_A = parts.gate.log_p(view), target_N[tokens]
        logprob_LN[view.block - 1, tokens] = log_p_AV.gather(1, target_A[:, None])[:, 0]
        greedy_LN[view.block - 1, tokens] = argmax_token(log_p_AV) == target_A
    return scores_LN, logprob_LN, greedy_LN


def _views(
    parts: Parts, model: ModelInterface, states_LND: Tensor, position: int, seeds_N: Sequence[int] | None
) -> Iterator[tuple[slice, BlockView, Tensor | None]]:
    """Yield (slice of the tokens, their view after a block, their scores) for every gate block and the last block.

    Tokens are taken in chunks to limit memory. At the last block the scores are None. Arguments as in `score_states`.
    """
    n_tokens, n_blocks = states_LND.shape[1], model.n_blocks
    all_seeds = tuple(seeds_N) if seeds_N is not None else (0,) * n_tokens
    chunk = max(1, CHUNK_BYTES // (4 * model.vocab_size))
    for start in range(0, n_tokens, chunk):
        tokens = slice(start, min(start + chunk, n_tokens))
        some_LND, seeds = states_LND[:, tokens], all_seeds[tokens]
        memory: dict[str, Tensor] = {}
        remembered = parts.gate.start_answers(len(seeds), states_LND.device)
        score_A: Tensor | None = None
        for block in [*parts.gate_blocks(n_blocks), n_blocks]:
            view = BlockView(
                block=block,
                active=ActiveRows((position,) * len(seeds), seeds, (0,) * len(seeds)),
                max_new_tokens=1,
                hidden_AD=some_LND[block],
                memory=memory,
                model=model,
                head=parts.head,
                earlier=some_LND[:block].unbind(),
                previous_score_A=score_A,
                ahead_LAD=some_LND[1:],
                answer_memory=remembered,
            )
            if block < n_blocks:
                score_A = parts.gate.score(view)
            yield tokens, view, score_A if block < n_blocks else None


def epsilon_thresholds(scores_LN: Tensor, agrees_LN: Tensor, epsilon: float) -> tuple[float, ...]:
    """Return one threshold per block, such that enough of the tokens at or above it agree with full depth (HEADS).

    A block's threshold is its smallest score c such that a share of at least epsilon of the tokens that score c or more
    agree with full depth. It is not a guarantee: the share need not rise with c, and there is no confidence bound.

    Args:
        scores_LN: Scores at blocks 1..L-1; NaN at blocks without a gate.
        agrees_LN: True if the token that the block would emit equals that of full depth.
        epsilon: The required share, 0 to 1.

    Returns:
        One value per block, for the comparison ``score > value``. Each is the next float32 number below the
        threshold, so that the comparison includes it. Infinity if no score reaches the share or there is no gate.
    """
    return tuple(_tail_threshold(*of_block, epsilon) for of_block in zip(scores_LN.cpu(), agrees_LN.cpu(), strict=True))


def _tail_threshold(score_N: Tensor, agrees_N: Tensor, epsilon: float) -> float:
    if bool(score_N.isnan().any()):
        return float("inf")
    sorted_N, order_N = score_N.float().sort()
    right_N = agrees_N[order_N].double()
    share_N = right_N.flip(0).cumsum(0).flip(0) / torch.arange(len(sorted_N), 0, -1)
    # Tokens with tied scores exit together, so only the first of each tie can be a threshold.
    is_first_N = torch.cat([torch.ones(1, dtype=torch.bool), sorted_N[1:] > sorted_N[:-1]])
    candidates = (is_first_N & (share_N >= epsilon)).nonzero()
    if len(candidates) == 0:
        return float("inf")
    threshold = sorted_N[candidates[0, 0]]
    return float(torch.nextafter(threshold, threshold.new_tensor(float("-inf"))))
