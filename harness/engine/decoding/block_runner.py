"""Run transformer blocks with early exit: KV cache of skipped blocks, deferred tokens.

What a token skips is projected from its exit state as the step ends, or run after all, or put off (`DecoderCache`): a
deferred token waits in the cache until a later token of its row runs the blocks that it lacks (`KVPolicy.deferred`),
and is then projected to keys and values too, or runs the block in the same pass.

Shape suffixes: B rows of the batch, A rows that run or leave a block, T positions of a row, N tokens of several rows, D
model width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from exitbench.harness.engine.model.cache import DeferredToken

if TYPE_CHECKING:
    from exitbench.harness.engine.model.cache import DecodingCache
    from exitbench.harness.engine.model.engine import Begun, Engine, Skipped
    from exitbench.methods.base import Parts


class BlockRunner:
    """Runs the blocks of a batch's steps, one after another; satisfies the `DecoderCache` protocol of the methods.

    Attributes:
        model: The model.
        cache: The batch; grows by one position a step.
        parts: The method.
    """

    def __init__(self, model: Engine, cache: DecodingCache, parts: Parts) -> None:
        self.model, self.cache, self.parts = model, cache, parts
        self._policy = parts.kv_policy
        self._context: Begun | None = None
        self._to_fill: list[Skipped] = []  # by exit layer, the first first
        self._deferred_places: tuple[list[list[int]], Any] | None = None  # where deferred tokens were run last

    # ---------------------------------------------------------------- a step

    def begin(self, token_B: Tensor) -> Tensor:
        """Begin a step with the last token of every row; returns their embeddings, [B, D].

        Deferred tokens that have all blocks by now are forgotten, the others sent back to block 1 where the policy says
        so.
        """
        cache = self.cache
        cache.make_room()
        for row, tokens in enumerate(cache.waiting if self._policy.deferred else ()):
            cache.waiting[row] = [token for token in tokens if token.done < self.model.n_blocks]
            if self._policy.deferred == "rerun":
                for token in cache.waiting[row]:
                    token.done, token.state_D = 0, token.embedding_D
        hidden_BTD, self._context = self.model.embed(token_B[:, None], cache)
        self._deferred_places = None
        return hidden_BTD[:, 0]

    def run(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None = None) -> Tensor:
        """Run a block for the new token of each row, and complete there what waits; returns states [A, D].

        Args:
            block: Number of the block, 1..L.
            hidden_AD: States after the block before.
            rows_A: Rows of the batch that run, ascending; None means all.
        """
        if self._policy.deferred is not None:
            rows = range(self.cache.n_rows) if rows_A is None else rows_A.tolist()
            waiting = [[token for token in self.cache.waiting[row] if token.done == block - 1] for row in rows]
            if any(waiting):
                if self._policy.deferred != "project":
                    return self._run_beside(block, hidden_AD, rows, rows_A, waiting)
                self._project(block, rows, waiting)
        return self.model.block(block, hidden_AD, self._context, rows_A)

    def on_host(self, leaves_A: Tensor, block: int) -> list[bool]:
        """A decision after a block, on the host: the one look at the device that it needs."""
        return list(leaves_A.tolist())

    def end(self) -> None:
        """End the step: project what was asked for."""
        if self._to_fill:
            self.model.fill(self._to_fill, self._context)
            self._to_fill = []
        self.cache.length += 1

    # --------------------------------------------------------- deferred tokens

    def _run_beside(
        self,
        block: int,
        hidden_AD: Tensor,
        rows: Sequence[int],
        rows_A: Tensor | None,
        waiting: list[list[DeferredToken]],
    ) -> Tensor:
        """The new token stands last in every row; rows with fewer deferred ones repeat it in front, to no effect."""
        cache, longest = self.cache, max(len(tokens) for tokens in waiting)
        hidden_ATD = hidden_AD[:, None].repeat(1, longest + 1, 1)
        where = []  # row, and positions of deferred tokens and of the new one
        for index, (row, tokens) in enumerate(zip(rows, waiting, strict=True)):
            where.append([row, *(token.place for token in tokens), *[cache.length] * (longest + 1 - len(tokens))])
            if tokens:
                hidden_ATD[index, : len(tokens)] = torch.stack([token.state_D for token in tokens])
        if self._deferred_places is None or self._deferred_places[0] != where:  # mostly those of the block before
            places_AT = torch.tensor(where, device=self.model.device)[:, 1:]
            self._deferred_places = where, self.model.places(cache, rows_A, places_AT)
        hidden_ATD = self.model.block(block, hidden_ATD, self._context, rows_A, self._deferred_places[1])
        for index, tokens in enumerate(waiting):
            for slot, token in enumerate(tokens):
                token.done, token.state_D = block, hidden_ATD[index, slot]
        return hidden_ATD[:, -1]

    def _project(self, block: int, rows: Sequence[int], waiting: list[list[DeferredToken]]) -> None:
        pairs = [(row, token) for row, tokens in zip(rows, waiting, strict=True) for token in tokens]
        states_ND = torch.stack([token.state_D for _, token in pairs])
        rows_N = torch.tensor([row for row, _ in pairs], device=self.model.device)
        places_N = torch.tensor([token.place for _, token in pairs], device=self.model.device)
        self.model.project(block, states_ND, rows_N, places_N, self.cache)
        for _, token in pairs:
            token.done = block

    def complete(self, rows: Sequence[int]) -> None:
        """After a step, run the remaining blocks of what waits in these rows, the newest of each as the new token."""
        cache, n_blocks = self.cache, self.model.n_blocks
        cache.length -= 1  # back in the step that the newest was fed in
        for done in {cache.waiting[row][-1].done for row in rows} - {n_blocks}:
            group = [row for row in rows if cache.waiting[row][-1].done == done]
            newest = [cache.waiting[row].pop() for row in group]
            rows_A = None if len(group) == cache.n_rows else torch.tensor(group, device=self.model.device)
            hidden_AD = torch.stack([token.state_D for token in newest])
            for block in range(done + 1, n_blocks + 1):
                hidden_AD = self.run(block, hidden_AD, rows_A)
            for row, token, state_D in zip(group, newest, hidden_AD, strict=True):
                token.done, token.state_D = n_blocks, state_D
                cache.waiting[row].append(token)
        cache.length += 1

    # ---------------------------------------------- what KV policies may ask for

    def fill_from_state(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Have keys and values of blocks block+1..L at the current position projected from one state, as the step ends.

        Args:
            block: Blocks that were executed, 0..L-1; no fewer than told before in this step.
            hidden_AD: The state to copy, not normalised.
            rows_A: Rows of the batch; None means all.
        """
        assert not self._to_fill or block >= self._to_fill[-1][0], "rows leave in the order of blocks"
        self._to_fill.append((block, hidden_AD, rows_A))

    def run_rest(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> Tensor:
        """Run blocks block+1..L at the current position; returns the state after block L, [A, D]."""
        for deeper in range(block + 1, self.model.n_blocks + 1):
            hidden_AD = self.model.block(deeper, hidden_AD, self._context, rows_A)
        return hidden_AD

    def defer(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Let rows that leave after ``block`` wait with their states for a later token to run deeper blocks."""
        cache = self.cache
        assert self._context is not None and self._context.embedding_BD is not None, "a step begins with an embedding"
        embedding_BD = self._context.embedding_BD
        rows = range(cache.n_rows) if rows_A is None else rows_A.tolist()
        for state_D, row in zip(hidden_AD, rows, strict=True):
            cache.waiting[row].append(DeferredToken(cache.length, block, state_D, embedding_BD[row]))


RunnerFactory = Callable[[Any, Any, "Parts"], BlockRunner]
"""Makes what runs the blocks of a batch with a method: given a model, its cache and the method."""
