"""The decode loop of all methods: batched decoding, in which each row (sequence of the batch) exits separately.

`prefill` runs once per prompt, `decode` generates, `decode_step` decodes one token for every row. Skipped blocks are
not computed; finished rows leave the batch. In untimed decodes, rows may also join (`engine.decoding.stream`) and have
different thresholds (`repeat_rows`).

Shape suffixes: B rows of the batch, A rows still running at a block, D model width, L blocks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exitbench.harness.cells.cell import GenerationSettings
from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.block_runner import BlockRunner
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.kept_depth import with_exit_layers
from exitbench.harness.engine.decoding.logit_rules import LogitRules
from exitbench.harness.engine.decoding.speculation import verify_drafts
from exitbench.harness.engine.decoding.trace import Observer, Trace
from exitbench.harness.engine.model.cache import DecodingCache
from exitbench.harness.engine.model.engine import Engine
from exitbench.methods.base import ActiveRows, BlockView, Gate, Parts, Threshold

Choose = Callable[[BlockView], Tensor]
"""Token chooser: maps a view of rows that leave to one token per row, [A]."""

IsStopped = Callable[[list[int]], bool]
"""Returns whether new tokens spell a string at which an answer ends."""


class Step:
    """Decode step: one new token for every row of the batch, filled in as rows exit.

    Attributes:
        token_B: The new tokens.
        choose: Token chooser.
        observer: Receives scores, exits and read-outs.
        exit_layers: Exit layer of each row; L for rows that run all blocks.
        unread: `BlockView`s of rows that have exited, whose tokens will be read from the LM head together.
        answer_memory: What the gate remembers of each row's earlier tokens: tensors by name; updated at the end of the
            step.
        exited_views: `BlockView`s of rows that have exited; only kept if the gate remembers earlier tokens.
    """

    def __init__(
        self,
        model: Engine,
        n_rows: int,
        choose: Choose,
        observer: Observer,
        answer_memory: dict[str, Tensor],
    ) -> None:
        self.choose, self.observer = choose, observer
        self.token_B = torch.empty(n_rows, dtype=torch.long, device=model.device)
        self.exit_layers = [model.n_blocks] * n_rows
        self.unread: list[BlockView] = []
        self.answer_memory = answer_memory
        self.exited_views: list[BlockView] = []
        observer.step_began(n_rows)


@dataclass
class Batch:
    """Batch of prompts after prefill, ready to decode.

    The first new token is found in one of three ways. (a) It is read from ``prompt_state_BD``, at full depth. (b) It is
    decoded from the last prompt token, ``fed_B``, and may exit early. (c) An encoder-decoder decodes it from its start
    token.

    Attributes:
        requests: Request of each row.
        max_new_tokens: Longest answer, in new decoder tokens; also the N in the formula of position-decayed thresholds.
        cache: Keys and values of the prompts.
        prompt_state_BD: State after the last block at the last prompt token in (a); None in (b) and (c).
        fed_B: Last prompt token of each row in (b); None in (a) and (c).
        thresholds: Threshold rule of each row, if rows with different thresholds decode together; () means the
            method's own.
    """

    requests: Sequence[Request]
    max_new_tokens: int
    cache: DecodingCache
    prompt_state_BD: Tensor | None
    fed_B: Tensor | None = None
    thresholds: tuple[Threshold, ...] = ()


@torch.inference_mode()
def prefill(
    model: Engine, requests: Sequence[Request], max_new_tokens: int, *, gates_first_token: bool = False
) -> Batch:
    """Run an encoder, or a decoder-only model at full depth, over the prompts; return the batch to decode.

    Args:
        model: The model.
        requests: Prompts to answer.
        max_new_tokens: Maximum number of tokens of an answer.
        gates_first_token: Leave the last prompt token of a decoder-only model to the decode loop, so that the first
            new token may exit early too. The first token of an encoder-decoder always may.
    """
    prompts = [request.prompt_ids for request in requests]
    cache, state_BD = model.start(prompts, max_new_tokens, holds_last=gates_first_token)
    fed_B = torch.tensor([prompt[-1] for prompt in prompts], device=model.device) if gates_first_token else None
    return Batch(requests, max_new_tokens, cache, state_BD, fed_B)


@torch.inference_mode()
def repeat_rows(batch: Batch, thresholds: Sequence[Sequence[Threshold]]) -> Batch:
    """Return a batch with one row for each prompt and threshold; the rows of a prompt share its prefill.

    Args:
        batch: Prompts after `prefill`; must not be used afterwards.
        thresholds: For each prompt, the threshold rules to answer it with.
    """
    rows = [row for row, rules in enumerate(thresholds) for _ in rules]
    batch.cache.repeat_rows(rows)
    rows_B = torch.tensor(rows, device=batch.cache.device)
    state_BD, fed_B = batch.prompt_state_BD, batch.fed_B
    return Batch(
        [batch.requests[row] for row in rows],
        batch.max_new_tokens,
        batch.cache,
        None if state_BD is None else state_BD.index_select(0, rows_B),
        None if fed_B is None else fed_B.index_select(0, rows_B),
        tuple(rule for rules in thresholds for rule in rules),
    )


@torch.inference_mode()
def decode(
    checkpoint: Checkpoint,
    batch: Batch,
    parts: Parts,
    is_stopped: IsStopped | None = None,
    settings: GenerationSettings | None = None,
    *,
    traced: bool = True,
    observer: Observer | None = None,
) -> list[Generation]:
    """Generate until the answers of all rows have ended.

    ``parts`` is the method, ``is_stopped`` recognizes stop strings, and ``settings`` has the logit rules; `Decoding`
    describes all arguments.

    Returns:
        One generation per request, in their order.

    Raises:
        ArithmeticError: The decode is traced, and a logit or a score is not finite.

    Examples:
        >>> batch = prefill(checkpoint.model, [Request(prompt_ids)], max_new_tokens=32)
        >>> generation, = decode(checkpoint, batch, parts)
        >>> generation.token_ids, generation.exit_layers
    """
    decoding = Decoding(checkpoint, batch, parts, is_stopped, settings, traced=traced, observer=observer)
    generations = [row.generation for row in decoding.rows]
    while decoding.rows:
        decoding.step()
    return generations


@dataclass(eq=False)
class Row:
    """Row (one sequence) of a batch during decoding: its request, and the answer so far."""

    request: Request
    generation: Generation


class Decoding:
    """Batch of sequences (rows) during decoding: a row leaves when its answer ends, and rows of other batches may join.

    Args:
        checkpoint: The model and its special tokens.
        batch: Prompts after `prefill`; must not be used by the caller afterwards.
        parts: The method.
        is_stopped: Called with a row's new tokens after each token; True ends the row (stop strings).
        settings: Logit rules, which are applied before tokens are chosen, and the scope of an exit decision; None means
            no rules, and that each token exits by itself.
        traced: Record exits and check that all numbers are finite. The tokens are the same without.
        observer: Untraced decodes only: receives scores, exits and read-outs.

    Attributes:
        rows: Rows whose answers have not ended, in the order of the cache.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        batch: Batch,
        parts: Parts,
        is_stopped: IsStopped | None = None,
        settings: GenerationSettings | None = None,
        *,
        traced: bool = True,
        observer: Observer | None = None,
    ) -> None:
        self.rows = [Row(request, Generation()) for request in batch.requests]
        self._checkpoint, self._parts, self._is_stopped = checkpoint, parts, is_stopped
        self._max_new_tokens, self._cache, self._thresholds = batch.max_new_tokens, batch.cache, batch.thresholds
        self._cache.captures = parts.kv_policy.deferred is None and not parts.kv_policy.evicts
        self._runner = BlockRunner(checkpoint.model, batch.cache, parts)
        self._answer_memory = parts.gate.start_answers(len(self.rows), checkpoint.model.device)
        self._observer = Trace(checkpoint.model) if traced else observer or Observer()
        self._prompt_state_BD = batch.prompt_state_BD if batch.fed_B is None else None
        self._token_B = batch.fed_B
        if batch.fed_B is None and batch.prompt_state_BD is None:
            self._token_B = torch.full((len(self.rows),), checkpoint.start_id or 0, device=checkpoint.model.device)
        self._keeps_depth = settings is not None and settings.scope == "answer"
        self._depths: list[int] | None = None  # of each row's first token, if an answer keeps it
        self._rules: LogitRules | None = None
        if settings is not None and settings.logit_rules:
            self._rules = LogitRules(settings, checkpoint, [request.prompt_ids for request in batch.requests])

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """Decode one token for every row; return the rows whose answers ended with this token."""
        rows, parts, rules = self.rows, self._parts, self._rules
        generations = [row.generation for row in rows]
        seeds_B = tuple(row.request.seed for row in rows)
        choose = parts.gate.choose if rules is None else _choose_with_rules(rules, parts.gate)
        if self._token_B is not None:
            if self._depths is not None:
                self._runner.parts = with_exit_layers(parts, self._depths)
            step = decode_step(
                self._runner,
                self._token_B,
                tuple(len(generation.token_ids) + 1 for generation in generations),
                self._max_new_tokens,
                seeds_B,
                choose,
                self._observer,
                () if self._depths is not None else self._thresholds,
                self._answer_memory,
                [(row.request.prompt_ids, row.generation.token_ids) for row in rows] if parts.gate.remembers else (),
            )
            if self._keeps_depth and self._depths is None:
                self._depths = step.exit_layers
        else:  # the prompt's own pass at full depth already holds the first token
            model, state_BD = self._checkpoint.model, self._prompt_state_BD
            assert state_BD is not None, "what is fed first is known, or the state that it is read from"
            step = prompt_step(model, state_BD, parts, self._max_new_tokens, seeds_B, choose, self._observer)
        token_B = step.token_B
        token_ids = token_B.tolist()
        for generation, token_id in zip(generations, token_ids, strict=True):
            generation.token_ids.append(token_id)
        self._observer.emitted(generations)
        if rules is not None:
            rules.note(token_ids)
        reasons = [self._stop_reason(row) for row in rows]
        if parts.kv_policy.verifies:
            ends = [reason is not None for reason in reasons]
            cut = verify_drafts(self._runner, generations, ends, self._observer)
            for row in cut:
                reasons[row] = self._stop_reason(rows[row])
            if cut:
                last = [generation.token_ids[-1] for generation in generations]
                token_B = torch.tensor(last, device=token_B.device)
        for generation, reason in zip(generations, reasons, strict=True):
            generation.stop_reason = reason or generation.stop_reason
        self._token_B = token_B
        self._keep([row for row, reason in enumerate(reasons) if reason is None])
        return [row for row, reason in zip(rows, reasons, strict=True) if reason is not None]

    def _stop_reason(self, row: Row) -> str | None:
        token_ids = row.generation.token_ids
        if token_ids[-1] in self._checkpoint.eos_ids:
            return "eos"
        if self._is_stopped is not None and self._is_stopped(token_ids):
            return "stop_string"
        return "length" if len(token_ids) == (row.request.length or self._max_new_tokens) else None

    def _keep(self, going: Sequence[int]) -> None:
        """Drop the rows whose answers have ended; ``going`` are the indices of the others.

        If no row is left, the cache is not touched.
        """
        if len(going) == len(self.rows):
            return
        self.rows = [self.rows[row] for row in going]
        if not going:
            return
        assert self._token_B is not None, "a token was chosen"
        going_B = torch.tensor(going, device=self._token_B.device)
        self._cache.keep(going_B)
        self._token_B = self._token_B[going_B]
        if self._thresholds:
            self._thresholds = tuple(self._thresholds[row] for row in going)
        for name, value_B in self._answer_memory.items():
            self._answer_memory[name] = value_B.index_select(0, going_B)
        if self._depths is not None:
            self._depths = [self._depths[row] for row in going]
        if self._rules is not None:
            self._rules.keep(going)

    @property
    def holds_first_token(self) -> bool:
        """True while the first new token is still to be read from the prefill's state; no batch can join then."""
        return self._token_B is None

    @property
    def can_be_joined(self) -> bool:
        """True if rows of another batch can join: the cache supports it, and each token has its own exit layer."""
        return self._cache.joins and not self._keeps_depth

    @torch.inference_mode()
    def join(self, other: Decoding) -> None:
        """Move the rows of another batch with the same settings into this one; `other` must not be used afterwards."""
        assert self._token_B is not None and other._token_B is not None, "first tokens were read"
        self._cache.join(other._cache, self._max_new_tokens)
        self.rows = self.rows + other.rows
        self._token_B = torch.cat((self._token_B, other._token_B))
        self._thresholds += other._thresholds
        for name, value_B in self._answer_memory.items():
            self._answer_memory[name] = torch.cat((value_B, other._answer_memory[name]))
        if self._rules is not None and other._rules is not None:
            self._rules.join(other._rules)


def decode_step(
    runner: BlockRunner,
    token_B: Tensor,
    positions_B: tuple[int, ...],
    max_new_tokens: int,
    seeds_B: tuple[int, ...],
    choose: Choose | None = None,
    observer: Observer | None = None,
    thresholds_B: tuple[Threshold, ...] = (),
    answer_memory: dict[str, Tensor] | None = None,
    texts_B: Sequence[tuple[Sequence[int], Sequence[int]]] = (),
) -> Step:
    """Run one token of each row through blocks until the row exits, and choose its next token.

    Args:
        runner: Runner of the model, the method and the batch; the batch's cache grows by one position.
        token_B: The last token of every row.
        positions_B: Position of each row's next token in its answer, from 1.
        max_new_tokens: Maximum number of tokens of an answer.
        seeds_B: Seed of random methods for each row.
        choose: Token chooser for rows that exit; None: the choice of the method's gate.
        observer: Receives scores, exits and read-outs; None: not observed.
        thresholds_B: Threshold rule of each row; () means the method's own.
        answer_memory: What the gate remembers of each row's earlier tokens, by name; updated in place. None: nothing
            yet.
        texts_B: Token ids of each row's prompt and of its answer so far; only needed if the gate remembers tokens.

    Returns:
        The finished step, with the next tokens and the exit layers.
    """
    model, parts = runner.model, runner.parts
    if answer_memory is None:
        answer_memory = parts.gate.start_answers(len(token_B), model.device)
    step = Step(model, len(token_B), choose or parts.gate.choose, observer or Observer(), answer_memory)
    hidden_AD = runner.begin(token_B)
    earlier = [hidden_AD] if parts.gate.needs_history else []  # states after blocks 0..block-1
    ahead_LAD = _all_states(runner, hidden_AD) if parts.gate.looks_ahead else None
    waiting_B = tuple(map(len, runner.cache.waiting))
    active = ActiveRows(positions_B, seeds_B, waiting_B, range(len(token_B)), None, thresholds_B, tuple(texts_B))
    memory: dict[str, Tensor] = {}
    remembered = dict(step.answer_memory)  # of the active rows
    normed: dict[int, Tensor] = {}
    previous_score_A: Tensor | None = None
    limit = parts.kv_policy.max_drafts
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
                normed=normed,
                answer_memory=remembered,
            )
            if block == model.n_blocks:
                _emit(step, parts, view)
                break
            score_A, leaves = _decided(runner, view)
            if limit is not None:
                leaves = [leaving and waiting < limit for leaving, waiting in zip(leaves, view.waiting_A, strict=True)]
            step.observer.scored(view, score_A)
            if all(leaves):
                _leave(step, runner, view)
                break
            if any(leaves):
                leaving_rows, going_rows = (
                    [i for i, leaving in enumerate(leaves) if leaving is which] for which in (True, False)
                )
                # An index rather than a mask: selecting by mask would need a device synchronization for the number of
                # rows.
                index_A = torch.tensor(leaving_rows + going_rows, device=model.device)
                leaving_A, going_A = index_A[: len(leaving_rows)], index_A[len(leaving_rows) :]
                _leave(step, runner, view.take(leaving_rows, leaving_A))
                active = active.take(going_rows, going_A)
                hidden_AD, score_A = hidden_AD.index_select(0, going_A), score_A.index_select(0, going_A)
                memory = {name: value.index_select(0, going_A) for name, value in memory.items()}
                remembered = {name: value.index_select(0, going_A) for name, value in remembered.items()}
                earlier, normed = [state_AD.index_select(0, going_A) for state_AD in earlier], {}
                ahead_LAD = None if ahead_LAD is None else ahead_LAD.index_select(1, going_A)
            previous_score_A = score_A
        if parts.gate.needs_history:
            earlier.append(hidden_AD)
    _emit_together(step, runner)
    _remember(step, parts.gate)
    runner.end()
    return step


def _decided(runner: BlockRunner, view: BlockView) -> tuple[Tensor, list[bool]]:
    """Return the gate's scores [A] and whether each row exits, from bounds of the logits if these decide all rows.

    If the bounds leave the exit of one row open, the LM head is read for all rows: products of fewer rows may differ
    in their last bits.
    """
    parts = runner.parts
    level: float | Tensor | None = None
    if parts.gate.reads_logits and (bounds := view.bounds) is not None:
        level = _threshold_value(parts.threshold, view, bounds.lower_AV)
        for may_sharpen in (True, False):
            low_A, high_A = parts.gate.bounds(bounds.lower_AV, bounds.upper_AV)
            leaves_A = low_A > level
            if bool((leaves_A | (high_A <= level)).all()):
                score_A = (low_A + high_A) / 2
                view.score_half_width_A = torch.maximum(high_A - score_A, score_A - low_A)
                return score_A, leaves_A.tolist()
            if may_sharpen:
                bounds.sharpen()
        view.head_fallbacks += 1
    score_A = parts.gate.score(view)
    if level is None:
        level = _threshold_value(parts.threshold, view, score_A)
    return score_A, exceeds_threshold(score_A, level)


def exceeds_threshold(score_A: Tensor, level: float | Tensor) -> list[bool]:
    """Return whether each score exceeds the threshold ``level``, compared in the scores' number format."""
    if isinstance(level, float) and score_A.dtype == torch.float32 and score_A.device.type == "cpu":
        rounded = ctypes.c_float(level).value  # compared on the host, which is cheaper than a torch operation
        return [score > rounded for score in score_A.tolist()]
    leaves: list[bool] = (score_A > level).tolist()
    return leaves


def _threshold_value(threshold: Threshold, view: BlockView, score_A: Tensor) -> float | Tensor:
    """Return the threshold for the rows of ``view``: one number, or a tensor [A] if their rules or positions differ.

    ``score_A`` only determines the tensor's device and number format.
    """
    positions_A, rules_A = view.active.positions_A, view.active.thresholds_A
    if not rules_A and len(set(positions_A)) == 1:
        return threshold.value(view.block, positions_A[0], view.max_new_tokens)
    first, *other_keys = keys_A = list(zip(rules_A or (threshold,) * len(positions_A), positions_A, strict=True))
    if all(other == first for other in other_keys):
        return first[0].value(view.block, first[1], view.max_new_tokens)
    return score_A.new_tensor([rule.value(view.block, position, view.max_new_tokens) for rule, position in keys_A])


def _leave(step: Step, runner: BlockRunner, view: BlockView) -> None:
    """Let the rows of ``view`` exit early: the KV policy handles their skipped blocks, and their tokens are emitted.

    If the policy returns full-depth states, the tokens are read from these.
    """
    parts = runner.parts
    for row in view.active.rows:
        step.exit_layers[row] = view.block
    deep_AD = parts.kv_policy.on_exit(runner, view.block, view.hidden_AD, view.active.rows_A)
    _emit(step, parts, view if deep_AD is None else view.at_full_depth(deep_AD))
    step.observer.exited(view, runs_all_blocks=parts.runs_all_blocks)


def _emit(step: Step, parts: Parts, view: BlockView) -> None:
    """Choose the tokens of rows that exit, either now or when all rows have exited.

    The choice is postponed if it still needs the LM head, so that one product reads all rows. It does not need the
    head for tokens that the gate drafts by itself.
    """
    if parts.gate.remembers:
        step.exited_views.append(view)
    if not view.is_last and (token_A := parts.gate.draft(view)) is not None:
        _put(step, view, token_A)
    elif (
        (parts.head.reads_vocabulary or (parts.head.reads_part and view.is_last))
        and parts.gate.chooses_from_logits
        and not view.is_read
    ):
        step.unread.append(view)
    else:
        _choose(step, view)


def _emit_together(step: Step, runner: BlockRunner) -> None:
    views = step.unread
    if not views:
        return
    view = views[0] if len(views) == 1 else BlockView.joined(views)
    if runner.parts.kv_policy.verifies:
        runner.read_drafts_too(view)
    _choose(step, view)
    if len(views) > 1:
        step.observer.read_together(views)


def _remember(step: Step, gate: Gate) -> None:
    """Let the gate update its answer memory of every row, from the `BlockView` with which the row exited."""
    for view in step.exited_views:
        rows_A = view.active.rows_A
        gate.remember(view, step.token_B if rows_A is None else step.token_B[rows_A])
        for name, value_A in view.answer_memory.items():
            if rows_A is None:
                step.answer_memory[name] = value_A
            else:
                step.answer_memory[name] = step.answer_memory[name].index_copy(0, rows_A, value_A)


def _choose(step: Step, view: BlockView) -> None:
    _put(step, view, step.choose(view))


def _put(step: Step, view: BlockView, token_A: Tensor) -> None:
    rows_A = view.active.rows_A
    if rows_A is None:
        step.token_B = token_A
    else:
        step.token_B[rows_A] = token_A
    step.observer.read(view)


def _all_states(runner: BlockRunner, hidden_AD: Tensor) -> Tensor:
    """Run all blocks, for a gate that looks ahead; return the states after each of them, [L, A, D].

    At an early exit, the KV policy may overwrite the keys and values that deeper blocks wrote here.
    """
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
    """Choose each row's first new token from the state that the full-depth prefill left for it.

    Args:
        model: The model.
        state_BD: State of each row's last prompt token after the last block.
        parts: The method.
        max_new_tokens: Maximum number of tokens of an answer.
        seeds_B: Seed of random methods for each row.
        choose: Token chooser.
        observer: Receives the read-out.

    Returns:
        The finished step, with the first tokens.
    """
    n_rows = len(state_BD)
    step = Step(model, n_rows, choose, observer, answer_memory={})
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


def _choose_with_rules(rules: LogitRules, gate: Gate) -> Choose:
    """Return a token chooser: the gate's own choice, from logits that the rules have changed."""
    return lambda view: gate.choose(rules.applied(view))
