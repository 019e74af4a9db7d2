"""The decode loop: one for all methods, batched, each row exits on its own.

`prefill` runs once a prompt, `decode` generates, `decode_step` makes one token for every row. Skipped blocks
are not computed; rows that have finished leave the batch.

Shape suffixes: B rows of the batch, A rows still running at a block, D model width, L blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exitbench.harness.cells.cell import GenerationSettings
from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.block_runner import BlockRunner, RunnerFactory
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.logit_rules import Applied, LogitRules
from exitbench.harness.engine.decoding.speculation import verify_drafts
from exitbench.harness.engine.decoding.trace import Observer, Trace
from exitbench.harness.engine.model.cache import DecodingCache
from exitbench.harness.engine.model.engine import Engine
from exitbench.methods.base import ActiveRows, BlockView, Gate, Parts, Threshold

Choose = Callable[[BlockView], Tensor]
"""What a step makes of a view of rows that leave: a token for each, [A]."""


class Step:
    """One new token for every row of the batch, filled as rows leave.

    Attributes:
        token_B: The tokens.
        choose: What chooses them.
        observer: Told of scores, exits and read-outs.
        unread: Views of rows that have left and are to be read out together.
    """

    def __init__(self, model: Engine, n_rows: int, choose: Choose, observer: Observer) -> None:
        self.choose, self.observer = choose, observer
        self.token_B = torch.empty(n_rows, dtype=torch.long, device=model.device)
        self.unread: list[BlockView] = []
        observer.step_began(n_rows)


@dataclass
class Batch:
    """Prompts after prefill, ready to decode.

    Attributes:
        requests: One a row.
        max_new_tokens: Longest answer, counted in new decoder tokens; also N of position-decayed thresholds.
        cache: Keys and values.
        prompt_state_BD: State after the last prompt token, from which the first token is read; None where that one
            goes through the decode loop too.
        fed_B: What the decode loop is fed first; None: the start token of an encoder-decoder.
    """

    requests: Sequence[Request]
    max_new_tokens: int
    cache: DecodingCache
    prompt_state_BD: Tensor | None
    fed_B: Tensor | None = None


@torch.inference_mode()
def prefill(
    model: Engine, requests: Sequence[Request], max_new_tokens: int, *, gates_first_token: bool = False
) -> Batch:
    """Run the encoder, or the prompts of a decoder-only model at full depth.

    Args:
        model: The model.
        requests: What is answered.
        max_new_tokens: Longest answer.
        gates_first_token: Leave the last prompt token of a decoder-only model to the decode loop, so that the first
            new token may exit early too. That of an encoder-decoder always may.
    """
    prompts = [request.prompt_ids for request in requests]
    cache, state_BD = model.start(prompts, max_new_tokens, holds_last=gates_first_token)
    fed_B = torch.tensor([prompt[-1] for prompt in prompts], device=model.device) if gates_first_token else None
    return Batch(requests, max_new_tokens, cache, state_BD, fed_B)


@torch.inference_mode()
def decode(
    checkpoint: Checkpoint,
    batch: Batch,
    parts: Parts,
    is_stopped: Callable[[list[int]], bool] | None = None,
    asked: GenerationSettings | None = None,
    *,
    traced: bool = True,
    observer: Observer | None = None,
    runner_of: RunnerFactory = BlockRunner,
) -> list[Generation]:
    """Generate until every row has ended.

    Args:
        checkpoint: The model and its special tokens.
        batch: Prompts after `prefill`; used up by this call.
        parts: The method.
        is_stopped: Told the new tokens of a row after each token; True ends the row (stop strings).
        asked: Whose rules change logits before tokens are chosen from them.
        traced: Record exits and check that all numbers are finite. The tokens are the same without.
        observer: Untraced: told of what happens in place of nobody.
        runner_of: Makes what runs the blocks.

    Returns:
        One generation a request, in their order.

    Raises:
        ArithmeticError: Traced, and a logit or a score is not finite.
    """
    model, requests = checkpoint.model, batch.requests
    runner = runner_of(model, batch.cache, parts)
    observer = Trace(model) if traced else observer or Observer()
    generations = [Generation() for _ in requests]
    alive = list(range(len(requests)))  # the request behind each row of the cache
    token_B = batch.fed_B
    rules = None
    if asked is not None and asked.logit_rules:
        rules = LogitRules(asked, checkpoint, [request.prompt_ids for request in requests])

    def stop_reason(generation: Generation) -> str | None:
        if generation.token_ids[-1] in checkpoint.eos_ids:
            return "eos"
        if is_stopped is not None and is_stopped(generation.token_ids):
            return "stop_string"
        return "length" if len(generation.token_ids) == batch.max_new_tokens else None

    while alive:
        rows = [generations[row] for row in alive]
        seeds_B = tuple(requests[row].seed for row in alive)
        choose = parts.gate.choose if rules is None else _under(rules.applied(alive), parts.gate)
        if token_B is not None or batch.prompt_state_BD is None:
            if token_B is None:
                token_B = torch.full((len(alive),), checkpoint.start_id or 0, device=model.device)
            positions_B = tuple(len(generation.token_ids) + 1 for generation in rows)
            step = decode_step(runner, token_B, positions_B, batch.max_new_tokens, seeds_B, choose, observer)
        else:  # the prompt itself ran at full depth and already holds the first token
            state_BD = batch.prompt_state_BD
            step = prompt_step(model, state_BD, parts, batch.max_new_tokens, seeds_B, choose, observer)
        token_B = step.token_B
        token_ids = token_B.tolist()
        for generation, token_id in zip(rows, token_ids, strict=True):
            generation.token_ids.append(token_id)
        observer.emitted(rows)
        if rules is not None:
            rules.note(alive, token_ids)
        reasons = [stop_reason(generation) for generation in rows]
        if parts.kv_policy.verifies:
            cut = verify_drafts(runner, rows, [reason is not None for reason in reasons], observer)
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
            batch.cache.keep(kept)
            token_B = token_B[kept]
            alive = [alive[row] for row in going]
    return generations


def decode_step(
    runner: BlockRunner,
    token_B: Tensor,
    positions_B: tuple[int, ...],
    max_new_tokens: int,
    seeds_B: tuple[int, ...],
    choose: Choose | None = None,
    observer: Observer | None = None,
) -> Step:
    """Feed one token a row through as many blocks as the method wants, and choose the next ones.

    Args:
        runner: Model, batch and method; the batch's cache grows by one position.
        token_B: The last token of every row.
        positions_B: 1 for the first generated token of a row.
        max_new_tokens: Longest answer allowed.
        seeds_B: One seed a row.
        choose: What becomes of the rows that leave; None: the method's gate chooses their tokens.
        observer: Told of scores, exits and read-outs; None: nobody is.
    """
    model, parts = runner.model, runner.parts
    step = Step(model, len(token_B), choose or parts.gate.choose, observer or Observer())
    hidden_AD = runner.begin(token_B)
    earlier = [hidden_AD] if parts.gate.needs_history else []  # states after blocks 0..block-1
    ahead_LAD = _all_states(runner, hidden_AD) if parts.gate.looks_ahead else None
    active = ActiveRows(positions_B, seeds_B, tuple(map(len, runner.cache.waiting)), range(len(token_B)))
    memory: dict[str, Tensor] = {}
    previous_score_A: Tensor | None = None
    for block in range(1, model.n_blocks + 1):
        hidden_AD = runner.run(block, hidden_AD, active.rows_A) if ahead_LAD is None else ahead_LAD[block - 1]
        if block == model.n_blocks or block in parts.blocks:
            view = BlockView(
                block=block,
                active=active,
                max_new_tokens=max_new_tokens,
                hidden_AD=hidden_AD,
                memory=memory,
                model=model,
                head=parts.head,
                earlier=earlier,
                previous_score_A=previous_score_A,
                ahead_LAD=ahead_LAD,
            )
            if block == model.n_blocks:
                _emit(step, parts, view)
                break
            score_A = parts.gate.score(view)
            step.observer.scored(view, score_A)
            leaves = runner.on_host(score_A > _level(parts.threshold, view, score_A), block)
            if all(leaves):
                _leave(step, runner, view)
                break
            if any(leaves):
                out, on = ([i for i, leaving in enumerate(leaves) if leaving is which] for which in (True, False))
                # An index rather than a mask, of which the device would have to tell how many it selects.
                out_A, on_A = (torch.tensor(index, device=model.device) for index in (out, on))
                _leave(step, runner, view.take(out, out_A))
                active = active.take(on, on_A)
                hidden_AD, score_A = hidden_AD.index_select(0, on_A), score_A.index_select(0, on_A)
                memory = {name: value.index_select(0, on_A) for name, value in memory.items()}
                earlier = [state_AD.index_select(0, on_A) for state_AD in earlier]
                ahead_LAD = None if ahead_LAD is None else ahead_LAD.index_select(1, on_A)
            previous_score_A = score_A
        if parts.gate.needs_history:
            earlier.append(hidden_AD)
    _emit_together(step)
    runner.end()
    return step


def _level(threshold: Threshold, view: BlockView, score_A: Tensor) -> float | Tensor:
    """The threshold of the rows' positions: one number, or [A] where they differ."""
    first, *others = view.positions_A
    if all(position == first for position in others):
        return threshold.value(view.block, first, view.max_new_tokens)
    levels = [threshold.value(view.block, position, view.max_new_tokens) for position in view.positions_A]
    return score_A.new_tensor(levels)


def _leave(step: Step, runner: BlockRunner, view: BlockView) -> None:
    """Rows end at an early block: the KV policy sees to the skipped ones and may know a deeper state to emit from."""
    parts = runner.parts
    deep_AD = parts.kv_policy.on_exit(runner, view.block, view.hidden_AD, view.active.rows_A)
    _emit(step, parts, view if deep_AD is None else view.at_full_depth(deep_AD))
    step.observer.left(view, runs_all_blocks=parts.runs_all_blocks)


def _emit(step: Step, parts: Parts, view: BlockView) -> None:
    """Choose the tokens of rows that leave, or put it off until all have left: the LM head is then read once."""
    if parts.head.reads_vocabulary and parts.gate.chooses_from_logits and not view.is_read:
        step.unread.append(view)
    else:
        _choose(step, view)


def _emit_together(step: Step) -> None:
    views = step.unread
    if len(views) == 1:
        _choose(step, views[0])
    elif views:
        _choose(step, BlockView.joined(views))
        step.observer.read_together(views)


def _choose(step: Step, view: BlockView) -> None:
    token_A = step.choose(view)
    rows_A = view.active.rows_A
    if rows_A is None:
        step.token_B = token_A
    else:
        step.token_B[rows_A] = token_A
    step.observer.read(view)


def _all_states(runner: BlockRunner, hidden_AD: Tensor) -> Tensor:
    """States after every block at full depth, [L, A, D]; what exits early overwrites the cache afterwards."""
    states = []
    for block in range(1, runner.model.n_blocks + 1):
        hidden_AD = runner.run(block, hidden_AD)
        states.append(hidden_AD)
    return torch.stack(states)


def prompt_step(
    model: Engine,
    state_BD: Tensor,
    parts: Parts,
    max_new_tokens: int,
    seeds_B: tuple[int, ...],
    choose: Choose,
    observer: Observer,
) -> Step:
    """The token that the prompt's full-depth pass already holds.

    Args:
        model: The model.
        state_BD: State after the last prompt token and the last block.
        parts: The method.
        max_new_tokens: Longest answer allowed.
        seeds_B: One seed a row.
        choose: What becomes of the rows.
        observer: Told of the read-out.
    """
    n_rows = len(state_BD)
    step = Step(model, n_rows, choose, observer)
    view = BlockView(
        block=model.n_blocks,
        active=ActiveRows((1,) * n_rows, seeds_B, (0,) * n_rows, range(n_rows)),
        max_new_tokens=max_new_tokens,
        hidden_AD=state_BD,
        memory={},
        model=model,
        head=parts.head,
    )
    _choose(step, view)
    return step


def _under(rules: Applied, gate: Gate) -> Choose:
    """The gate's choice from changed logits."""
    return lambda view: gate.choose(rules(view))
