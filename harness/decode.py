"""The decode loop: one for all methods, batched, each row exits on its own.

`prefill` runs once a prompt, `decode` generates, `decode_step` makes one token for every row. Skipped blocks
are not computed; rows that have finished leave the batch.

Shape suffixes: B rows of the batch, A rows still running at a block, D model width, L blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from exitbench.harness.cache import Cache
from exitbench.harness.checkpoint import Checkpoint
from exitbench.harness.model import Transformer
from exitbench.harness.pending import begin_step, run_block
from exitbench.harness.verification import verify
from exitbench.methods.base import BlockView, KVPolicy, Parts, Threshold


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
        blocks_run: Blocks executed before the next token; differs from the exit layer for oracles and exact caches.
        head_rows: Rows of the LM head multiplied for the token.
        scores: Confidence at the exit; None where the token left at the last block.
        rejected: Drafts thrown away right before the token was decided; it is the full model's choice in their place.
        wasted: Positions run for those drafts in vain.
        stop_reason: ``eos``, ``length`` or ``stop_string``.
    """

    token_ids: list[int] = field(default_factory=list)
    exit_layers: list[int] = field(default_factory=list)
    blocks_run: list[int] = field(default_factory=list)
    head_rows: list[int] = field(default_factory=list)
    scores: list[float | None] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    wasted: list[int] = field(default_factory=list)
    stop_reason: str = "length"

    def append(
        self,
        token_id: int,
        exit_layer: int,
        blocks_run: int,
        head_rows: int,
        score: float | None,
        rejected: int = 0,
        wasted: int = 0,
    ) -> None:
        """Add a token and its trace."""
        self.token_ids.append(token_id)
        self.exit_layers.append(exit_layer)
        self.blocks_run.append(blocks_run)
        self.head_rows.append(head_rows)
        self.scores.append(score)
        self.rejected.append(rejected)
        self.wasted.append(wasted)

    def cut(self, length: int) -> None:
        """Forget all tokens but the first so many."""
        for column in (
            self.token_ids,
            self.exit_layers,
            self.blocks_run,
            self.head_rows,
            self.scores,
            self.rejected,
            self.wasted,
        ):
            del column[length:]


class Step:
    """One new token for every row of the batch: columns [B] that are filled as rows leave."""

    def __init__(self, n_rows: int, device: torch.device) -> None:
        self.token_B = torch.empty(n_rows, dtype=torch.long, device=device)
        self.exit_layer_B = torch.empty_like(self.token_B)
        self.blocks_run_B = torch.empty_like(self.token_B)
        self.head_rows_B = torch.zeros_like(self.token_B)
        self.score_B = torch.full((n_rows,), float("nan"), device=device)
        self.asked: list[tuple[int, Tensor]] = []  # (block, scores of the rows running there)
        self.read: list[tuple[int, Tensor]] = []  # (block, largest logit of rows read there)

    def check_finite(self) -> None:
        """Raise ArithmeticError, naming the block, if a logit or a score is not a number or infinite."""
        found = [("logits", *pair) for pair in self.read] + [("confidence scores", *pair) for pair in self.asked]
        if math.isfinite(float(torch.cat([value_A for _, _, value_A in found]).sum())):
            return
        for what, block, value_A in sorted(found, key=lambda item: item[1]):
            if not bool(value_A.isfinite().all()):
                raise ArithmeticError(f"the {what} at block {block} are not finite: {value_A.tolist()}")


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
    """Generate until every row has ended.

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

    def stop_reason(generation: Generation) -> str | None:
        if generation.token_ids[-1] in checkpoint.eos_ids:
            return "eos"
        if is_stopped is not None and is_stopped(generation.token_ids):
            return "stop_string"
        return "length" if len(generation.token_ids) == batch.max_new_tokens else None

    while alive:
        rows = [generations[row] for row in alive]
        seeds_B = tuple(requests[row].seed for row in alive)
        if token_B is not None or batch.prompt_state_BD is None:
            if token_B is None:
                token_B = torch.full((len(alive),), checkpoint.start_id or 0, device=model.device)
            positions_B = tuple(len(generation.token_ids) + 1 for generation in rows)
            cache.make_room()
            step = decode_step(model, cache, token_B, parts, positions_B, batch.max_new_tokens, seeds_B)
        else:  # the prompt itself ran at full depth and already holds the first token
            step = _first_token(model, batch.prompt_state_BD, parts, batch.max_new_tokens, seeds_B)
        token_B = step.token_B
        for generation, (token, exit_layer, blocks_run, head_rows, score) in zip(rows, _records(step), strict=True):
            generation.append(token, exit_layer, blocks_run, head_rows, None if exit_layer == model.n_blocks else score)
        reasons = [stop_reason(generation) for generation in rows]
        if parts.kv_policy.verifies:
            cut = verify(model, cache, parts.kv_policy, rows, [reason is not None for reason in reasons])
            for row in cut:
                reasons[row] = stop_reason(rows[row])
            if cut:
                token_B = torch.tensor([generation.token_ids[-1] for generation in rows], device=model.device)
        for generation, reason in zip(rows, reasons, strict=True):
            generation.stop_reason = reason or generation.stop_reason
        going = [row for row, reason in enumerate(reasons) if reason is None]
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
    positions_B: tuple[int, ...],
    max_new_tokens: int,
    seeds_B: tuple[int, ...],
) -> Step:
    """Feed one token a row through as many blocks as the method wants, and choose the next ones.

    Args:
        model: The model.
        cache: The batch; grows by one position.
        token_B: The last token of every row.
        parts: The method.
        positions_B: 1 for the first generated token of a row.
        max_new_tokens: Longest answer allowed.
        seeds_B: One seed a row.
    """
    n_blocks, policy = model.n_blocks, parts.kv_policy
    step = Step(len(token_B), model.device)
    begin_step(cache, policy)
    waiting_B = tuple(len(tokens) for tokens in cache.waiting)
    hidden_AD = model.embed(token_B[:, None], cache)[:, 0]
    earlier = [hidden_AD]  # states after blocks 0..block-1, kept for gates that ask for them
    ahead_LAD = _all_states(model, hidden_AD, cache, policy) if parts.gate.looks_ahead else None
    rows_A: Tensor | None = None  # rows still running; None means all
    memory: dict[str, Tensor] = {}
    previous_score_A: Tensor | None = None
    for block in range(1, n_blocks + 1):
        if ahead_LAD is None:
            hidden_AD = run_block(model, block, hidden_AD, cache, rows_A, policy)
        else:
            hidden_AD = ahead_LAD[block - 1]
        if block == n_blocks or block in parts.blocks:
            rows = range(len(seeds_B)) if rows_A is None else rows_A.tolist()
            view = BlockView(
                block=block,
                positions_A=tuple(positions_B[row] for row in rows),
                max_new_tokens=max_new_tokens,
                hidden_AD=hidden_AD,
                seeds_A=tuple(seeds_B[row] for row in rows),
                memory=memory,
                model=model,
                head=parts.head,
                earlier=earlier,
                previous_score_A=previous_score_A,
                ahead_LAD=ahead_LAD,
                waiting_A=tuple(waiting_B[row] for row in rows),
            )
            if block == n_blocks:
                _emit(step, parts, view, rows_A)
                break
            score_A = parts.gate.score(view)
            step.asked.append((block, score_A))
            _note_reading(step, view, rows_A)
            leaves_A = score_A > _level(parts.threshold, view, score_A)
            n_leaving = int(leaves_A.sum())
            if n_leaving:
                # All rows of the batch leaving at once stays the plain, index-free case.
                all_leave = n_leaving == len(leaves_A)
                leaving = view if all_leave else view.rows(leaves_A)
                left_A = rows_A if all_leave else _among(rows_A, leaves_A)
                _leave(step, parts, cache, leaving, left_A, score_A[leaves_A])
                if all_leave:
                    break
                stays_A = ~leaves_A
                rows_A = _among(rows_A, stays_A)
                hidden_AD, score_A = hidden_AD[stays_A], score_A[stays_A]
                memory = {name: value[stays_A] for name, value in memory.items()}
                earlier = [state_AD[stays_A] for state_AD in earlier]
                ahead_LAD = None if ahead_LAD is None else ahead_LAD[:, stays_A]
            previous_score_A = score_A
        if parts.gate.needs_history:
            earlier.append(hidden_AD)
    step.check_finite()
    cache.length += 1
    return step


def _level(threshold: Threshold, view: BlockView, score_A: Tensor) -> float | Tensor:
    """The threshold of the rows' positions: one number, or [A] where they differ."""
    first, *others = view.positions_A
    if all(position == first for position in others):
        return threshold.value(view.block, first, view.max_new_tokens)
    levels = [threshold.value(view.block, position, view.max_new_tokens) for position in view.positions_A]
    return score_A.new_tensor(levels)


def _leave(step: Step, parts: Parts, cache: Cache, view: BlockView, rows_A: Tensor | None, score_A: Tensor) -> None:
    """Rows end at an early block: the KV policy sees to the skipped ones and may know a deeper state to emit from."""
    deep_AD = parts.kv_policy.on_exit(cache, view.block, view.hidden_AD, rows_A)
    _emit(step, parts, view if deep_AD is None else view.at_full_depth(deep_AD), rows_A)
    where = slice(None) if rows_A is None else rows_A
    step.exit_layer_B[where] = view.block
    step.score_B[where] = score_A
    if not (parts.kv_policy.runs_all_blocks or parts.gate.looks_ahead):
        step.blocks_run_B[where] = view.block


def _emit(step: Step, parts: Parts, view: BlockView, rows_A: Tensor | None) -> None:
    where = slice(None) if rows_A is None else rows_A
    step.token_B[where] = parts.gate.choose(view)
    step.exit_layer_B[where] = step.blocks_run_B[where] = view.model.n_blocks
    _note_reading(step, view, rows_A)


def _note_reading(step: Step, view: BlockView, rows_A: Tensor | None) -> None:
    """Count the rows of the head that the view multiplied since last asked, and keep its largest logits."""
    if isinstance(view.head_rows, int) and view.head_rows == 0:
        return
    step.head_rows_B[slice(None) if rows_A is None else rows_A] += view.head_rows
    step.read.append((view.block, view.logits_AK.amax(-1).float()))
    view.head_rows = 0


def _records(step: Step) -> Iterator[tuple[int, int, int, int, float]]:
    """Token, exit layer, blocks run, rows of the head and score of each row."""
    columns = (step.token_B, step.exit_layer_B, step.blocks_run_B, step.head_rows_B, step.score_B)
    return zip(*(column.tolist() for column in columns), strict=True)


def _all_states(model: Transformer, hidden_AD: Tensor, cache: Cache, policy: KVPolicy) -> Tensor:
    """States after every block at full depth, [L, A, D]; what exits early overwrites the cache afterwards."""
    states = []
    for block in range(1, model.n_blocks + 1):
        hidden_AD = run_block(model, block, hidden_AD, cache, None, policy)
        states.append(hidden_AD)
    return torch.stack(states)


def _first_token(
    model: Transformer, state_BD: Tensor, parts: Parts, max_new_tokens: int, seeds_B: tuple[int, ...]
) -> Step:
    """The token that the prompt's full-depth pass already holds."""
    step = Step(len(state_BD), model.device)
    view = BlockView(
        block=model.n_blocks,
        positions_A=(1,) * len(state_BD),
        max_new_tokens=max_new_tokens,
        hidden_AD=state_BD,
        seeds_A=seeds_B,
        memory={},
        model=model,
        head=parts.head,
    )
    _emit(step, parts, view, None)
    step.check_finite()
    return step


def _among(rows_A: Tensor | None, mask_A: Tensor) -> Tensor:
    """Those of the running rows where the mask is true."""
    return mask_A.nonzero()[:, 0] if rows_A is None else rows_A[mask_A]
