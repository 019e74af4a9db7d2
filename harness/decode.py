"""The decode loop: one for all methods, batched, each row exits on its own.

`prefill` runs once a prompt, `decode` generates greedily, `decode_step` makes one token for every row. Skipped blocks
are not computed; rows that have finished leave the batch.

Shape suffixes: B rows of the batch, A rows still running at a block, D model width, L blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from exitbench.harness.checkpoint import Checkpoint
from exitbench.harness.model import Cache, Transformer
from exitbench.methods.base import BlockView, Parts, argmax_token


@dataclass(frozen=True)
class Request:
    """One document to answer.

    Attributes:
        prompt_ids: Encoder input, or the prompt of a decoder-only model.
        seed: What random methods draw from; fixed per document, so that batches do not change results.
    """

    prompt_ids: Sequence[int]
    seed: int = 0


@dataclass
class Generation:
    """The answer to one request and its exit trace; one entry a new token, the end-of-sequence token included.

    Attributes:
        token_ids: New tokens.
        exit_layers: Blocks whose output the token was read from, 1..L.
        blocks_run: Blocks executed for the token; differs from the exit layer for oracles.
        scores: Confidence at the exit; None where the token left at the last block.
        stop_reason: ``eos``, ``length`` or ``stop_string``.
    """

    token_ids: list[int] = field(default_factory=list)
    exit_layers: list[int] = field(default_factory=list)
    blocks_run: list[int] = field(default_factory=list)
    scores: list[float | None] = field(default_factory=list)
    stop_reason: str = "length"


@dataclass
class Step:
    """One new token for every row of the batch."""

    token_B: Tensor
    exit_layer_B: Tensor
    score_B: Tensor
    blocks_run_B: Tensor


@dataclass
class Batch:
    """Prompts after prefill, ready to decode.

    Attributes:
        requests: One a row.
        max_new_tokens: Longest answer, counted in new decoder tokens; also N of position-decayed thresholds.
        cache: Keys and values.
        prompt_state_BD: Decoder-only models: state after the last prompt token.
    """

    requests: Sequence[Request]
    max_new_tokens: int
    cache: Cache
    prompt_state_BD: Tensor | None


@torch.inference_mode()
def prefill(model: Transformer, requests: Sequence[Request], max_new_tokens: int) -> Batch:
    """Run the encoder, or the prompts of a decoder-only model at full depth."""
    cache, state_BD = model.start([request.prompt_ids for request in requests], max_new_tokens)
    return Batch(requests, max_new_tokens, cache, state_BD)


@torch.inference_mode()
def decode(
    checkpoint: Checkpoint,
    batch: Batch,
    parts: Parts,
    is_stopped: Callable[[list[int]], bool] | None = None,
) -> list[Generation]:
    """Generate greedily until every row has ended.

    Args:
        checkpoint: The model and its special tokens.
        batch: Prompts after `prefill`; used up by this call.
        parts: The method.
        is_stopped: Told the new tokens of a row after each token; True ends the row (stop strings).

    Returns:
        One generation a request, in their order.
    """
    model, cache, requests = checkpoint.model, batch.cache, batch.requests
    generations = [Generation() for _ in requests]
    alive = list(range(len(requests)))  # the request behind each row of the cache
    token_B: Tensor | None = None
    for position in range(1, batch.max_new_tokens + 1):
        if token_B is not None or batch.prompt_state_BD is None:
            if token_B is None:
                token_B = torch.full((len(alive),), checkpoint.start_id or 0, device=model.device)
            seeds_B = tuple(requests[row].seed for row in alive)
            step = decode_step(model, cache, token_B, parts, position, batch.max_new_tokens, seeds_B)
        else:  # the prompt itself ran at full depth and already holds the first token
            step = _first_token(model, parts, batch.prompt_state_BD)
        token_B = step.token_B
        columns = (step.token_B.tolist(), step.exit_layer_B.tolist(), step.blocks_run_B.tolist(), step.score_B.tolist())
        going = []
        for row, (token, exit_layer, blocks_run, score) in enumerate(zip(*columns, strict=True)):
            generation = generations[alive[row]]
            generation.token_ids.append(token)
            generation.exit_layers.append(exit_layer)
            generation.blocks_run.append(blocks_run)
            generation.scores.append(None if exit_layer == model.n_blocks else score)
            if token in checkpoint.eos_ids:
                generation.stop_reason = "eos"
            elif is_stopped is not None and is_stopped(generation.token_ids):
                generation.stop_reason = "stop_string"
            else:
                going.append(row)
        if not going:
            break
        if len(going) < len(alive):
            kept = torch.tensor(going, device=model.device)
            cache.keep(kept)
            token_B = token_B[kept]
            alive = [alive[row] for row in going]
    return generations


def decode_step(
    model: Transformer,
    cache: Cache,
    token_B: Tensor,
    parts: Parts,
    position: int,
    max_new_tokens: int,
    seeds_B: tuple[int, ...],
) -> Step:
    """Feed one token a row through as many blocks as the method wants, and choose the next ones.

    Args:
        model: The model.
        cache: The batch; grows by one position.
        token_B: The last token of every row.
        parts: The method.
        position: 1 for the first generated token.
        max_new_tokens: Longest answer allowed.
        seeds_B: One seed a row.
    """
    n_blocks = model.n_blocks
    hidden_AD = model.embed(token_B[:, None], cache)[:, 0]
    exit_layer_B = torch.empty_like(token_B)
    score_B = torch.empty(token_B.shape, dtype=torch.float32, device=model.device)
    step = Step(torch.empty_like(token_B), exit_layer_B, score_B, blocks_run_B=exit_layer_B)
    ahead_LAD: Tensor | None = None
    if parts.gate.looks_ahead:
        ahead_LAD = _all_states(model, hidden_AD, cache)
        step.blocks_run_B = torch.full_like(token_B, n_blocks)
    rows_A: Tensor | None = None  # rows still running; None means all
    memory: dict[str, Tensor] = {}
    for block in range(1, n_blocks + 1):
        if ahead_LAD is None:
            hidden_AD = model.block(block, hidden_AD[:, None], cache, rows_A)[:, 0]
        else:
            hidden_AD = ahead_LAD[block - 1]
        if block < n_blocks and block not in parts.blocks:
            continue
        seeds_A = seeds_B if rows_A is None else tuple(seeds_B[row] for row in rows_A.tolist())
        view = BlockView(
            block=block,
            position=position,
            max_new_tokens=max_new_tokens,
            hidden_AD=hidden_AD,
            seeds_A=seeds_A,
            memory=memory,
            model=model,
            head=parts.head,
            ahead_LAD=ahead_LAD,
        )
        if block == n_blocks:
            _emit(step, view, rows_A, None)
            break
        score_A = parts.gate.score(view)
        leaves_A = score_A > parts.threshold.value(block, position, max_new_tokens)
        n_leaving = int(leaves_A.sum())
        if n_leaving == 0:
            continue
        leaving = view.rows(leaves_A)
        # All rows of the batch leaving at once stays the plain, index-free case.
        left_A = rows_A if n_leaving == len(leaves_A) else (_where(leaves_A) if rows_A is None else rows_A[leaves_A])
        _emit(step, leaving, left_A, score_A[leaves_A])
        parts.kv_policy.on_exit(cache, block, leaving.hidden_AD, left_A)
        if n_leaving == len(leaves_A):
            break
        stays_A = ~leaves_A
        rows_A = _where(stays_A) if rows_A is None else rows_A[stays_A]
        hidden_AD = hidden_AD[stays_A]
        memory = {name: value[stays_A] for name, value in memory.items()}
        ahead_LAD = None if ahead_LAD is None else ahead_LAD[:, stays_A]
    cache.length += 1
    return step


def _emit(step: Step, view: BlockView, rows_A: Tensor | None, score_A: Tensor | None) -> None:
    where = slice(None) if rows_A is None else rows_A
    step.token_B[where] = argmax_token(view.logits_AV)
    step.exit_layer_B[where] = view.block
    step.score_B[where] = float("nan") if score_A is None else score_A


def _all_states(model: Transformer, hidden_AD: Tensor, cache: Cache) -> Tensor:
    """States after every block at full depth, [L, A, D]; what exits early overwrites the cache afterwards."""
    states = []
    for block in range(1, model.n_blocks + 1):
        hidden_AD = model.block(block, hidden_AD[:, None], cache)[:, 0]
        states.append(hidden_AD)
    return torch.stack(states)


def _first_token(model: Transformer, parts: Parts, state_BD: Tensor) -> Step:
    token_B = argmax_token(model.logits(state_BD))
    depth_B = torch.full_like(token_B, model.n_blocks)
    return Step(token_B, depth_B, torch.full(token_B.shape, float("nan")), depth_B)


def _where(mask_A: Tensor) -> Tensor:
    return mask_A.nonzero()[:, 0]
