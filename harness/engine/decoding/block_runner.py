"""Run transformer blocks with early exit: keys and values of skipped blocks, and deferred tokens.

The KV policy decides where the keys and values of a token's skipped blocks come from:

* They are projected from the exit state, when other rows run the block or at the end of the step.
* The skipped blocks run at once.
* The skipped blocks are deferred (`KVPolicy.deferred`). The token waits in the cache until a later token of its row
  runs them. Then its state is projected to keys and values, or it runs the block together with the later token.

Shape suffixes: B rows of the batch, A rows that run or leave a block, T positions of a row, N tokens of several rows, D
model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from exitbench.harness.engine.model.cache import DeferredToken

if TYPE_CHECKING:
    from exitbench.harness.engine.model.cache import DecodingCache
    from exitbench.harness.engine.model.engine import Engine, EngineStep, Skipped
    from exitbench.methods.base import BlockView, Parts


class BlockRunner:
    """Runner of the decoder blocks for a batch, step by step; also the `DecoderCache` that KV policies call at exits.

    Attributes:
        model: The model.
        cache: The KV cache of the batch; grows by one position per step.
        parts: The method: gate, threshold, head and KV policy.
    """

    def __init__(self, model: Engine, cache: DecodingCache, parts: Parts) -> None:
        self.model, self.cache, self.parts = model, cache, parts
        self._policy = parts.kv_policy
        self._context: EngineStep | None = None
        self._to_fill: list[Skipped] = []  # ascending by exit layer
        self._exited_BD: Tensor | None = None  # exit states of rows that left early, at their rows
        self._filled = 0  # last block that wrote keys and values of those rows
        self._deferred_places: tuple[list[list[int]], Any] | None = None  # places where deferred tokens ran last
        self._windows: dict[int, EngineStep] = {}  # window contexts by number of newest positions
        self._joint_states = _JointStates()

    # ---------------------------------------------------------------- a step

    def begin(self, token_B: Tensor) -> Tensor:
        """Begin a step with the last token of every row; return the embeddings of these tokens, [B, D].

        Deferred tokens that have run all blocks by now stop waiting. The others restart at block 1 if the KV policy
        reruns them.
        """
        cache = self.cache
        cache.make_room()
        for row, tokens in enumerate(cache.waiting if self._policy.deferred else ()):
            cache.waiting[row] = [token for token in tokens if token.n_blocks_run < self.model.n_blocks]
            if self._policy.deferred == "rerun":
                for token in cache.waiting[row]:
                    assert token.embedding_D is not None, "kept as it was deferred"
                    token.ran(0, token.embedding_D, ())
        hidden_BTD, self._context = self.model.embed(token_B[:, None], cache)
        self._deferred_places = None
        self._windows.clear()
        return hidden_BTD[:, 0]

    def run(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None = None) -> Tensor:
        """Run a block on each row's new token and on deferred tokens waiting for it; return new tokens' states [A, D].

        Args:
            block: Number of the block, 1..L.
            hidden_AD: States of the new tokens after the block before.
            rows_A: Rows of the batch that run, ascending; None means all.
        """
        if self._policy.deferred is not None:
            rows = range(self.cache.n_rows) if rows_A is None else rows_A.tolist()
            waiting = [[token for token in self.cache.waiting[row] if token.n_blocks_run == block - 1] for row in rows]
            if any(waiting):
                if self._policy.deferred != "project":
                    return self._run_with_deferred(block, hidden_AD, rows, rows_A, waiting)
                self._project(block, rows, waiting)
        if self._exited_BD is None:
            return self.model.block(block, hidden_AD, self._context, rows_A)
        self._filled = block
        return self.model.block(block, hidden_AD, self._context, rows_A, exited_BD=self._exited_BD)

    def read_drafts_too(self, view: BlockView) -> None:
        """Read out a `BlockView` after the last block and, in the same LM-head product, drafts that ran all blocks.

        Drafts are tokens emitted early. Their logits are kept to verify them later.
        """
        n_rows, n_blocks = len(view.hidden_AD), self.model.n_blocks
        drafts = [token for tokens in self.cache.waiting for token in tokens if token.n_blocks_run == n_blocks]
        if drafts:
            drafts_ND = torch.stack([token.state_D for token in drafts])
            logits_NV = self.model.logits(torch.cat((view.hidden_AD, drafts_ND)))
            view.set_logits(logits_NV[:n_rows])
            for token, logits_V in zip(drafts, logits_NV[n_rows:], strict=True):
                token.logits_V = logits_V

    def end(self) -> None:
        """End the step: write the keys and values of skipped blocks that `fill_from_state` has requested."""
        if self._exited_BD is not None and self._filled:  # `run` wrote them up to the last block that ran
            self._to_fill = [(self._filled, self._exited_BD, None)] if self._filled < self.model.n_blocks else []
        if self._to_fill:
            self.model.fill(self._to_fill, self._context)
        self._to_fill, self._exited_BD, self._filled = [], None, 0
        self.cache.length += 1

    # --------------------------------------------------------- deferred tokens

    def _run_with_deferred(
        self,
        block: int,
        hidden_AD: Tensor,
        rows: Sequence[int],
        rows_A: Tensor | None,
        waiting: list[list[DeferredToken]],
    ) -> Tensor:
        """Run a block on each row's deferred tokens and its new token; return the new tokens' states [A, D].

        ``waiting`` are the deferred tokens of each of the ``rows``; ``rows_A`` are these rows as a tensor (None: all).
        Rows with fewer deferred tokens are padded with copies of their new token, without effect.
        """
        hidden_ATD = self._joint_states.states(hidden_AD, waiting)
        n_deferred = hidden_ATD.shape[1] - 1
        if all(len(tokens) == n_deferred and self._are_newest(tokens) for tokens in waiting):
            if n_deferred + 1 not in self._windows:
                self._windows[n_deferred + 1] = self.model.recent_context(self.cache, n_deferred + 1)
            hidden_ATD = self.model.block(block, hidden_ATD, self._windows[n_deferred + 1], rows_A)
        else:
            places = self._places(rows, rows_A, waiting, n_deferred)
            hidden_ATD = self.model.block(block, hidden_ATD, self._context, rows_A, places)
        return self._joint_states.ran(block, hidden_ATD, waiting)

    def _are_newest(self, tokens: Sequence[DeferredToken]) -> bool:
        """Return whether a row's deferred tokens, in order, occupy the positions right before its new token."""
        return tokens[0].place == self.cache.length - len(tokens)

    def _places(
        self, rows: Sequence[int], rows_A: Tensor | None, waiting: list[list[DeferredToken]], n_deferred: int
    ) -> Any:
        """Return the cache positions of each row's deferred tokens and new token, as `Engine.block` takes them.

        Rows with fewer deferred tokens repeat the position of the new token.
        """
        newest = self.cache.length
        row_places = [
            [row, *(token.place for token in tokens), *[newest] * (n_deferred + 1 - len(tokens))]
            for row, tokens in zip(rows, waiting, strict=True)
        ]
        if self._deferred_places is None or self._deferred_places[0] != row_places:  # mostly those of the block before
            places_AT = torch.tensor(row_places, device=self.model.device)[:, 1:]
            self._deferred_places = row_places, self.model.places(self.cache, rows_A, places_AT)
        return self._deferred_places[1]

    def _project(self, block: int, rows: Sequence[int], waiting: list[list[DeferredToken]]) -> None:
        pairs = [(row, token) for row, tokens in zip(rows, waiting, strict=True) for token in tokens]
        states_ND = torch.stack([token.state_D for _, token in pairs])
        rows_N = torch.tensor([row for row, _ in pairs], device=self.model.device)
        places_N = torch.tensor([token.place for _, token in pairs], device=self.model.device)
        self.model.project(block, states_ND, rows_N, places_N, self.cache)
        for _, token in pairs:
            token.n_blocks_run = block

    def complete(self, rows: Sequence[int]) -> None:
        """Run all remaining blocks of the deferred tokens of some rows, after a step has ended.

        The newest deferred token of each row takes the role of the new token of a step.
        """
        cache, n_blocks = self.cache, self.model.n_blocks
        cache.length -= 1  # back in the step that fed the newest token
        for n_done in {cache.waiting[row][-1].n_blocks_run for row in rows} - {n_blocks}:
            group = [row for row in rows if cache.waiting[row][-1].n_blocks_run == n_done]
            newest = [cache.waiting[row].pop() for row in group]
            rows_A = None if len(group) == cache.n_rows else torch.tensor(group, device=self.model.device)
            hidden_AD = torch.stack([token.state_D for token in newest])
            for block in range(n_done + 1, n_blocks + 1):
                hidden_AD = self.run(block, hidden_AD, rows_A)
            for index, (row, token) in enumerate(zip(group, newest, strict=True)):
                token.ran(n_blocks, hidden_AD, (index,))
                cache.waiting[row].append(token)
        cache.length += 1

    # ---------------------------------------------- called by KV policies

    def fill_from_state(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Request keys and values of blocks block+1..L at the current position, projected from the exit state.

        They are written before the step ends. Does nothing if no later token can run those blocks
        (`Parts.may_read_skipped_keys`).

        Args:
            block: Number of blocks that were executed, 0..L-1; not below that of an earlier call in this step.
            hidden_AD: Exit states, without the final norm.
            rows_A: Rows of the batch; None means all.
        """
        assert not self._to_fill or block >= self._to_fill[-1][0], "rows leave in the order of blocks"
        if not self.parts.may_read_skipped_keys:
            return
        self._to_fill.append((block, hidden_AD, rows_A))
        if rows_A is not None and self.model.fills_exited_rows:
            if self._exited_BD is None:
                self._exited_BD = hidden_AD.new_empty(self.cache.n_rows, self.model.d_model)
            self._exited_BD.index_copy_(0, rows_A, hidden_AD)

    def run_rest(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> Tensor:
        """Run blocks block+1..L at the current position of some rows (None: all); return the states after L, [A, D]."""
        for deeper in range(block + 1, self.model.n_blocks + 1):
            hidden_AD = self.model.block(deeper, hidden_AD, self._context, rows_A)
        return hidden_AD

    def evict(self, block: int, rows_A: Tensor | None) -> None:
        """Mask the current position of the given rows (None: all) in the attention of blocks block+1..L.

        Does nothing if no later token can run those blocks.
        """
        if self.parts.may_read_skipped_keys:
            self.cache.evict(block, rows_A)

    def defer(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Defer the skipped blocks of rows that exit after ``block``, until a later token of the row runs these blocks.

        Does nothing if no later token runs them (`Parts.may_read_skipped_keys`), unless the policy reruns tokens from
        block 1.
        """
        cache = self.cache
        if not self.parts.may_read_skipped_keys and self._policy.deferred != "rerun":
            return
        assert self._context is not None and self._context.embedding_BD is not None, "a step begins with an embedding"
        embedding_BD = self._context.embedding_BD if self._policy.deferred == "rerun" else None
        rows = range(cache.n_rows) if rows_A is None else rows_A.tolist()
        for index, row in enumerate(rows):
            embedding_D = None if embedding_BD is None else embedding_BD[row]
            cache.waiting[row].append(DeferredToken(cache.length, block, hidden_AD, (index,), embedding_D))


class _JointStates:
    """Cached states of the tokens that ran a block together, since they mostly run the next block together too."""

    def __init__(self) -> None:
        self._states_ATD: Tensor | None = None
        self._newest_AD: Tensor | None = None
        self._waiting: list[list[DeferredToken]] = []

    def states(self, newest_AD: Tensor, waiting: list[list[DeferredToken]]) -> Tensor:
        """Return the states of each row's deferred tokens and new token, [A, T, D]; short rows repeat the new token's.

        Args:
            newest_AD: States of the new tokens.
            waiting: Deferred tokens of each row.
        """
        if self._states_ATD is not None and newest_AD is self._newest_AD and waiting == self._waiting:
            return self._states_ATD
        n_positions = max(map(len, waiting)) + 1
        states_N: list[Tensor] = []
        for newest_D, tokens in zip(newest_AD, waiting, strict=True):
            states_N += [token.state_D for token in tokens]
            states_N += [newest_D] * (n_positions - len(tokens))
        return torch.stack(states_N).view(len(waiting), n_positions, -1)

    def ran(self, block: int, states_ATD: Tensor, waiting: list[list[DeferredToken]]) -> Tensor:
        """Record each token's state after a block; return the states of the new tokens, [A, D]."""
        for index, tokens in enumerate(waiting):
            for slot, token in enumerate(tokens):
                token.ran(block, states_ATD, (index, slot))
        self._states_ATD, self._newest_AD, self._waiting = states_ATD, states_ATD[:, -1], waiting
        return self._newest_AD
