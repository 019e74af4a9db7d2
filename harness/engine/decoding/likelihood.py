"""Log-likelihoods of given continuations with early exit: forced decode, or one pass if all exit layers are equal.

A context is prefilled once, and each of its continuations resumes from a copy of its keys and values. The first token
of all of them is read from one row, at the end of the context. After it, the decode loop is given the next token
instead of choosing one, with the same gate, head and KV policy as in generation. The log-probability of a token is read
at the exit layer of its row.

Shape suffixes: C contexts, B rows (branches), T positions, N tokens (of all rows), K continuations of a row, A rows
that leave, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor

from exitbench.errors import UserError
from exitbench.harness.cells.cell import Scope
from exitbench.harness.engine.checkpoints.loading import Checkpoint
from exitbench.harness.engine.decoding.block_runner import BlockRunner
from exitbench.harness.engine.decoding.branches import Branch, Context, batches, branches_of, packs
from exitbench.harness.engine.decoding.decode import decode_step, prompt_step
from exitbench.harness.engine.decoding.kept_depth import with_exit_layer
from exitbench.harness.engine.decoding.trace import Observer, Trace
from exitbench.harness.engine.model.cache import Cache, DecodingCache
from exitbench.harness.engine.model.model import Transformer
from exitbench.harness.engine.model.positions import padded
from exitbench.harness.engine.model.token_record import TokenColumns, TokenRecord
from exitbench.methods.base import ActiveRows, BlockView, Gate, Parts, argmax_token

READ_OUT_BYTES = 64 * 2**20
"""Memory limit for the logits of a pass; tokens are read out in chunks that fit."""
PACKED_TOKENS = 512
"""Most branch tokens packed into one row, each of which attends over all of them."""


@dataclass
class Scored(TokenColumns):
    """Log-probabilities of the tokens of one given continuation.

    Attributes:
        token_ids: The given tokens.
        logprobs: Natural logarithm of each token's probability at its exit layer.
        greedy: Whether each token is the most probable one there; the lowest id wins a tie.
        records: Exit record of each token; empty if not traced.
    """

    token_ids: list[int]
    logprobs: list[float] = field(default_factory=list)
    greedy: list[bool] = field(default_factory=list)
    records: list[TokenRecord] = field(default_factory=list)

    @property
    def is_greedy(self) -> bool:
        """True if every token is the most probable one at its exit layer."""
        return all(self.greedy)


@torch.inference_mode()
def score(
    checkpoint: Checkpoint,
    contexts: Sequence[Context],
    parts: Parts,
    *,
    scope: Scope = "token",
    gates_first_token: bool = True,
    rows: int = 1,
    max_new_tokens: int | None = None,
    traced: bool = True,
) -> list[list[Scored]]:
    """Return log-probabilities of given continuations of contexts; each token is read where the method lets it exit.

    Args:
        checkpoint: The model and its special tokens.
        contexts: Contexts and their continuations.
        parts: The method.
        scope: ``token``: every token exits by itself; ``context``: the exit depth of the first scored token is kept for
            all tokens of all continuations of the context.
        gates_first_token: Let the first token of a decoder-only model exit early too; otherwise it is read from the
            context's own pass, at full depth. The first token of an encoder-decoder always may.
        rows: Maximum number of rows run together, with continuations of one or several contexts.
        max_new_tokens: N of position-decayed thresholds; None: the longest continuation of all.
        traced: Record exits and check that all numbers are finite. Log-probabilities are the same without.

    Returns:
        Scores by context and continuation, in their order.

    Raises:
        UserError: The method gives no log-probabilities (`why_not`); a context or a continuation is empty, or longer
            than the model's positions; ``scope = "context"`` with a first token read at full depth.
        ArithmeticError: The score is traced, and a logit or a gate's score is not finite.

    Examples:
        >>> ((yes, no),) = score(checkpoint, [Context(context_ids, [yes_ids, no_ids])], parts)
        >>> sum(yes.logprobs) > sum(no.logprobs)
    """
    model = checkpoint.model
    _check(contexts, parts, rows)
    if scope == "context" and not gates_first_token and not model.encoder_blocks:
        raise UserError(
            'scope = "context" keeps the depth at which the first scored token leaves, and first_token = "full" reads '
            'that one at full depth; use first_token = "gated", or scope = "token".'
        )
    scored = [[Scored(list(token_ids)) for token_ids in context.continuations] for context in contexts]
    longest = max_new_tokens or max((context.longest for context in contexts if context.continuations), default=1)
    scorer = _Scorer(checkpoint, parts, scope, gates_first_token, rows, longest, traced)
    for batch in batches(model, contexts, rows):
        scorer.score([contexts[place] for place in batch], [scored[place] for place in batch])
    return scored


def why_not(parts: Parts) -> str | None:
    """Return why a method gives no log-probabilities of given tokens; None if it does."""
    if parts.kv_policy.verifies:
        return (
            "verifies its drafts: where the full model rejects one, its own choice takes the draft's place, and a "
            "given token is not to be replaced"
        )
    if parts.gate.remembers:
        return "decides by earlier tokens of its own answer, and a given continuation is no answer"
    if parts.head.reads_part:
        return "reads only a part of the vocabulary, and other tokens have no probability then"
    return parts.gate.why_no_log_p


def fixed_depth(parts: Parts, n_blocks: int) -> int | None:
    """Return the exit layer of all tokens if it is fixed in advance; None if gate scores decide or all blocks run."""
    gate_blocks = parts.gate_blocks(n_blocks)
    if not gate_blocks:
        return n_blocks
    return None if parts.gate.decides or parts.runs_all_blocks else gate_blocks[0]


def _check(contexts: Sequence[Context], parts: Parts, rows: int) -> None:
    if (reason := why_not(parts)) is not None:
        raise UserError(f"this method does not provide log-likelihoods: it {reason}.")
    if rows < 1:
        raise UserError(f"rows is {rows}; allowed: 1 or more.")
    for number, context in enumerate(contexts, start=1):
        if not context.context_ids:
            raise UserError(f"context {number} is empty; a model reads the first scored token from a context's end.")
        if not all(context.continuations):
            raise UserError(f"context {number} has an empty continuation; there is nothing to score in it.")


class _TokenReader:
    """Reader of log-probabilities of given tokens, used in place of the gate's token chooser.

    Args:
        gate: The method's gate.
        token_BK: Given tokens to score in each row, one per continuation.

    Attributes:
        logprob_BK: Natural logarithms of their probabilities.
        greedy_BK: Whether each given token is the most probable one.
    """

    def __init__(self, gate: Gate, token_BK: Tensor) -> None:
        self.gate, self.token_BK = gate, token_BK
        self.logprob_BK = torch.empty(token_BK.shape, device=token_BK.device)
        self.greedy_BK = torch.empty_like(token_BK, dtype=torch.bool)

    def __call__(self, view: BlockView) -> Tensor:
        log_p_AV, rows_A = self.gate.log_p(view), view.active.rows_A
        rows = slice(None) if rows_A is None else rows_A
        token_AK = self.token_BK[rows]
        self.logprob_BK[rows] = log_p_AV.gather(1, token_AK)
        self.greedy_BK[rows] = argmax_token(log_p_AV)[:, None] == token_AK
        return token_AK[:, 0]


class _Exits(Observer):
    """Observer that records each row's exit layer in a step, for untraced scores with ``scope = "context"``."""

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self.exit_layers: list[int] = []

    def step_began(self, n_rows: int) -> None:
        self.exit_layers = [self.n_blocks] * n_rows

    def exited(self, view: BlockView, *, runs_all_blocks: bool) -> None:
        for row in view.active.rows:
            self.exit_layers[row] = view.block


@dataclass(frozen=True)
class _TokenPosition:
    """Position at which one or several continuations of a context have a token to score.

    Attributes:
        continuations: Continuations with the same tokens before this position.
        position: Position of the token in the continuations, from 1.
        seed: Seed of the context.
    """

    continuations: Sequence[Scored]
    position: int
    seed: int

    @property
    def token_ids(self) -> list[int]:
        """Given tokens at this position, one per continuation."""
        return [scored.token_ids[self.position - 1] for scored in self.continuations]


class _Scorer:
    """Scorer of continuations, one batch of contexts at a time; for the arguments see `score`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        parts: Parts,
        scope: Scope,
        gates_first_token: bool,
        rows: int,
        max_new_tokens: int,
        traced: bool,
    ) -> None:
        self.model, self.start_id, self.parts = checkpoint.model, checkpoint.start_id or 0, parts
        self.scope, self.rows, self.max_new_tokens = scope, rows, max_new_tokens
        self.is_decoder_only = not self.model.encoder_blocks
        self.reads_prompt = self.is_decoder_only and not gates_first_token
        self.trace = Trace(self.model) if traced else None
        self.observer: Trace | _Exits = self.trace or _Exits(self.model.n_blocks)
        self._read: list[tuple[Sequence[_TokenPosition], list[TokenRecord] | None, _TokenReader]] = []

    def score(self, contexts: Sequence[Context], scored: Sequence[Sequence[Scored]]) -> None:
        """Score the continuations of a batch of contexts, and append the results to their `Scored` entries."""
        firsts = [
            _TokenPosition(scored_context, 1, context.seed)
            for context, scored_context in zip(contexts, scored, strict=True)
        ]
        depth = fixed_depth(self.parts, self.model.n_blocks)
        branches = [branch for branch in branches_of(contexts) if branch.fed]
        if depth is None or self.parts.gate.needs_history:
            cache = self._first_decoded(contexts, firsts)
        else:
            cache = self._first_at_once(contexts, firsts, depth)
        if self.scope == "token" or depth is not None:
            self._later_tokens(cache, branches, firsts, self.parts)
        else:
            exits = self.observer.exit_layers
            for exit_depth in sorted(set(exits)):
                chosen = [branch for branch in branches if exits[branch.context] == exit_depth]
                self._later_tokens(cache, chosen, firsts, with_exit_layer(self.parts, exit_depth))
        self._append_results()

    # ------------------------------------------------------- the first token, one row a context

    def _first_decoded(self, contexts: Sequence[Context], firsts: Sequence[_TokenPosition]) -> DecodingCache:
        """Prefill the contexts and score all first tokens by the decode loop, one row per context; return the cache.

        ``firsts`` are the positions of these tokens, one per context.
        """
        model, reader = self.model, self._reader(self.parts, firsts)
        prompts, seeds = [context.context_ids for context in contexts], tuple(place.seed for place in firsts)
        cache: DecodingCache
        cache, state_CD = model.start(
            prompts,
            max(context.longest for context in contexts),
            holds_last=self.is_decoder_only and not self.reads_prompt,
        )
        if state_CD is not None:
            prompt_step(model, state_CD, self.parts, self.max_new_tokens, seeds, reader, self.observer)
        else:
            lead = [prompt[-1] if self.is_decoder_only else self.start_id for prompt in prompts]
            self._step(BlockRunner(model, cache, self.parts), lead, 1, seeds, reader)
        self._note(firsts, reader)
        return cache

    def _first_at_once(
        self, contexts: Sequence[Context], firsts: Sequence[_TokenPosition], depth: int
    ) -> DecodingCache:
        """Prefill the contexts, and score all first tokens at once at the fixed exit layer ``depth``; return the cache.

        ``firsts`` are the positions of these tokens, one per context. They are read at full depth if first tokens may
        not exit early.
        """
        prompts, longest = [context.context_ids for context in contexts], max(context.longest for context in contexts)
        cache: DecodingCache
        if self.is_decoder_only:
            depth = self.model.n_blocks if self.reads_prompt else depth
            cache, state_CD = self.model.start(prompts, longest, depth=depth)
            assert state_CD is not None, "no token was held back"
        else:
            cache, _ = self.model.start(prompts, longest)
            lead_C1 = torch.full((len(prompts), 1), self.start_id, device=self.model.device)
            state_CD = self._pass(self.model.embed(lead_C1, cache), depth)[-1][:, 0]
            cache.length += 1
        self._read_out(self.parts, depth, [state_CD], firsts)
        return cache

    # ------------------------------------------------------------ the others, one row a branch

    def _later_tokens(
        self, cache: DecodingCache, branches: Sequence[Branch], firsts: Sequence[_TokenPosition], parts: Parts
    ) -> None:
        depth = fixed_depth(parts, self.model.n_blocks)
        if depth is not None and isinstance(cache, Cache):
            packed = packs(branches, PACKED_TOKENS)
            for start in range(0, len(packed), self.rows):
                self._side_by_side(cache, packed[start : start + self.rows], firsts, parts, depth)
            return
        for start in range(0, len(branches), self.rows):
            chosen = branches[start : start + self.rows]
            rows, branch_cache = [branch.context for branch in chosen], cache
            if len(branches) > self.rows or rows != list(range(cache.n_rows)):  # others resume from it
                branch_cache = cache.copied(self._tensor(rows))
            if depth is None:
                self._decoded(branch_cache, chosen, firsts, parts)
            else:
                tokens_BT, mask_BT = padded([branch.fed for branch in chosen], self.model.device, side="right")
                self._at_once(self.model.embed(tokens_BT, branch_cache), mask_BT, chosen, firsts, parts, depth)

    def _decoded(
        self, cache: DecodingCache, branches: Sequence[Branch], firsts: Sequence[_TokenPosition], parts: Parts
    ) -> None:
        """Score branches (groups of continuations) by forced decode, one token per row and step; ended rows leave."""
        runner = BlockRunner(self.model, cache, parts)
        alive = [(branch, self._places(branch, firsts)) for branch in branches]
        for step in count():
            now = [places[step] for _, places in alive]
            reader = self._reader(parts, now)
            seeds = tuple(place.seed for place in now)
            self._step(runner, [branch.fed[step] for branch, _ in alive], step + 2, seeds, reader)
            self._note(now, reader)
            going = [row for row, (_, places) in enumerate(alive) if len(places) > step + 1]
            if not going:
                break
            if len(going) < len(alive):
                cache.keep(self._tensor(going))
                alive = [alive[row] for row in going]

    def _side_by_side(
        self, cache: Cache, rows: Sequence[Sequence[Branch]], firsts: Sequence[_TokenPosition], parts: Parts, depth: int
    ) -> None:
        """Score branches (groups of continuations) at a fixed depth, several per row (lean engine only).

        ``rows`` are the branches in each row, all of one context. ``firsts`` are the first tokens' positions, one per
        context.
        """
        model = self.model
        assert isinstance(model, Transformer), "as is its cache"
        fed = [[token for branch in row for token in branch.fed] for row in rows]
        numbers = [[number for number, branch in enumerate(row) for _ in branch.fed] for row in rows]
        offsets = [[offset for branch in row for offset in range(len(branch.fed))] for row in rows]
        (tokens_BT, mask_BT), (number_BT, _), (offset_BT, _) = (
            padded(each, model.device, side="right") for each in (fed, numbers, offsets)
        )
        if mask_BT is not None:
            number_BT = number_BT.masked_fill(~mask_BT, -1)
        wide = cache.copied_with_room(
            model, self._tensor([row[0].context for row in rows]), cache.length + tokens_BT.shape[1]
        )
        embedded = model.embed_branches(tokens_BT, number_BT, offset_BT, wide)
        self._at_once(embedded, mask_BT, [branch for row in rows for branch in row], firsts, parts, depth)

    def _at_once(
        self,
        embedded: tuple[Tensor, Any],
        mask_BT: Tensor | None,
        branches: Sequence[Branch],
        firsts: Sequence[_TokenPosition],
        parts: Parts,
        depth: int,
    ) -> None:
        """Run all embedded positions through ``depth`` blocks in one pass, and score the tokens of all branches.

        ``embedded`` is the embedded tokens and the engine's context of the pass. ``mask_BT`` is False at padding; None
        without padding.
        """
        states = self._pass(embedded, depth, keeps_all=parts.gate.needs_history)
        flat = [state.flatten(0, 1) if mask_BT is None else state[mask_BT] for state in states]
        self._read_out(parts, depth, flat, [place for branch in branches for place in self._places(branch, firsts)])

    def _places(self, branch: Branch, firsts: Sequence[_TokenPosition]) -> list[_TokenPosition]:
        """Return the positions of a branch's tokens after the first, each of which is predicted from a fed token."""
        first = firsts[branch.context]
        chosen = [first.continuations[choice] for choice in branch.choices]
        return [_TokenPosition(chosen, position, first.seed) for position in range(2, len(branch.fed) + 2)]

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, device=self.model.device)

    def _pass(self, embedded: tuple[Tensor, Any], depth: int, *, keeps_all: bool = False) -> list[Tensor]:
        """Run ``depth`` blocks; return the states [B, T, D] after them, preceded by earlier states if ``keeps_all``."""
        hidden_BTD, context = embedded
        states = [hidden_BTD]
        for block in range(1, depth + 1):
            hidden_BTD = self.model.block(block, hidden_BTD, context)
            states = [*states, hidden_BTD] if keeps_all else [hidden_BTD]
        return states

    # ------------------------------------------------------------------------ read-outs

    def _reader(self, parts: Parts, places: Sequence[_TokenPosition]) -> _TokenReader:
        """Return a reader of the given tokens at all positions; positions with fewer tokens repeat their first one."""
        rows = [place.token_ids for place in places]
        widest = max(map(len, rows))
        filled = [row + row[:1] * (widest - len(row)) for row in rows]
        return _TokenReader(parts.gate, torch.tensor(filled, device=self.model.device))

    def _step(
        self, runner: BlockRunner, fed: Sequence[int], position: int, seeds: tuple[int, ...], reader: _TokenReader
    ) -> None:
        token_B = torch.tensor(fed, device=self.model.device)
        positions = (position,) * len(token_B)
        decode_step(runner, token_B, positions, self.max_new_tokens, seeds, reader, self.observer)

    def _read_out(self, parts: Parts, block: int, states: Sequence[Tensor], places: Sequence[_TokenPosition]) -> None:
        """Score the tokens at ``places`` from states [N, D] after ``block``.

        The last entry of ``states`` is after that block; the others, for gates with history, are after earlier blocks.
        """
        few = max(1, READ_OUT_BYTES // (4 * self.model.vocab_size))
        for start in range(0, len(places), few):
            some = places[start : start + few]
            reader, n = self._reader(parts, some), len(some)
            self.observer.step_began(n)
            view = BlockView(
                block=block,
                active=ActiveRows(
                    tuple(place.position for place in some), tuple(place.seed for place in some), (0,) * n, range(n)
                ),
                max_new_tokens=self.max_new_tokens,
                hidden_AD=states[-1][start : start + few],
                memory={},
                model=self.model,
                head=parts.head,
                earlier=[state[start : start + few] for state in states[:-1]],
            )
            if block < self.model.n_blocks:
                self.observer.scored(view, parts.gate.score(view))
                self.observer.exited(view, runs_all_blocks=False)
            reader(view)
            self.observer.read(view)
            self._note(some, reader)

    def _note(self, places: Sequence[_TokenPosition], reader: _TokenReader) -> None:
        records = None
        if self.trace is not None:
            self.trace.check_finite()
            records = self.trace.records
        self._read.append((places, records, reader))

    def _append_results(self) -> None:
        """Copy the results of all positions to the host at once, and append them to the `Scored` entries."""
        for places, records, reader in self._read:
            rows = zip(places, reader.logprob_BK.tolist(), reader.greedy_BK.tolist(), strict=True)
            for row, (place, logprobs, greedy) in enumerate(rows):
                for scored, logprob, is_greedy in zip(place.continuations, logprobs, greedy, strict=False):
                    scored.logprobs.append(logprob)
                    scored.greedy.append(is_greedy)
                    if records is not None:
                        token_id = scored.token_ids[place.position - 1]
                        record = records[row]._replace(token_id=token_id, logprob=logprob, is_greedy=is_greedy)
                        scored.records.append(record)
        self._read.clear()
