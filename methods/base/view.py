"""BlockView: states, logits, positions and memory of the active rows after a block.

Shape suffixes: A active rows at a block, D model width, V vocabulary, K columns of logits, L blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from exitbench.methods.base.parts import Head, Threshold
    from exitbench.methods.base.protocols import LogitBounds, ModelInterface


@dataclass(frozen=True)
class ActiveRows:
    """The rows of the batch whose current token has not exited before a block, with data that gates need of each row.

    Attributes:
        positions_A: Position of the token in each row's answer, from 1. Positions differ between rows if drafts of some
            rows were discarded.
        seeds_A: Random seed of each row; it does not depend on the batch.
        waiting_A: Number of earlier tokens per row whose skipped blocks are not completed yet (`KVPolicy.deferred`).
        rows: Indices of the rows in the batch, ascending.
        rows_A: The same indices on the device; None means every row, so that no indexing is needed.
        thresholds_A: Threshold rule of each row if several settings of a method decode in one batch; () means the
            method's own rule for all rows.
        texts_A: Prompt ids and answer ids so far of each row, as pairs; () unless the gate remembers earlier tokens.
    """

    positions_A: tuple[int, ...]
    seeds_A: tuple[int, ...]
    waiting_A: tuple[int, ...] = ()
    rows: Sequence[int] = ()
    rows_A: Tensor | None = None
    thresholds_A: tuple[Threshold, ...] = ()
    texts_A: tuple[tuple[Sequence[int], Sequence[int]], ...] = ()

    def take(self, index: Sequence[int], index_A: Tensor) -> ActiveRows:
        """Return the subset of rows with indices ``index`` (0..A-1); ``index_A`` has the same indices on the device."""
        return ActiveRows(
            tuple(self.positions_A[at] for at in index),
            tuple(self.seeds_A[at] for at in index),
            tuple(self.waiting_A[at] for at in index),
            [self.rows[at] for at in index],
            index_A if self.rows_A is None else self.rows_A.index_select(0, index_A),
            tuple(self.thresholds_A[at] for at in index) if self.thresholds_A else (),
            tuple(self.texts_A[at] for at in index) if self.texts_A else (),
        )

    @classmethod
    def joined(cls, groups: Sequence[ActiveRows]) -> ActiveRows:
        """Return several groups of rows of one batch as one group; they do not overlap, and none is the whole batch."""
        one_after_another = itertools.chain.from_iterable
        return cls(
            tuple(one_after_another(group.positions_A for group in groups)),
            tuple(one_after_another(group.seeds_A for group in groups)),
            tuple(one_after_another(group.waiting_A for group in groups)),
            tuple(one_after_another(group.rows for group in groups)),
            torch.cat([group.rows_A for group in groups if group.rows_A is not None]),
            tuple(one_after_another(group.thresholds_A for group in groups)),
            tuple(one_after_another(group.texts_A for group in groups)),
        )


class BlockView:
    """Input of a gate or head after one block, for the A active rows of the batch.

    Attributes:
        block: Blocks executed so far, 1..L.
        active: Positions, seeds and waiting tokens of the rows; also as `positions_A`, `seeds_A`, `waiting_A`.
        max_new_tokens: Longest answer allowed, in tokens; it is N in position-decayed thresholds.
        hidden_AD: Output of the block (residual stream, not normalized).
        memory: Tensors that the method carries from block to block of this token, with leading dimension A. The decode
            loop drops the rows that exit. Empty at block 1 of every token.
        answer_memory: Tensors that the gate carries from token to token of an answer, with leading dimension A
            (`Gate.start_answers`). Empty for a first token that is read from prefill.
        earlier: States [A, D] after blocks 0 (the embedding) to block-1, only if the gate needs the history.
        previous_score_A: Score at the previous gate block; None at the first gate block.
        model: The model that decodes.
        ahead_LAD: States after blocks 1..L, only if the gate looks ahead (an oracle); else None.
        head_rows: Weight rows of the LM head read for each active row: one number for all of them, or [A].
        head_rows_int8: Weight rows of the LM head's int8 copy read for each active row.
        head_fallbacks: Number of times the exact LM head was read because bounds left a decision open.
        score_half_width_A: Half the width of the score's interval if bounds decided; the score is then the middle of
            this interval. None if the score is exact.
    """

    def __init__(
        self,
        *,
        block: int,
        active: ActiveRows,
        max_new_tokens: int,
        hidden_AD: Tensor,
        memory: dict[str, Tensor],
        model: ModelInterface,
        head: Head,
        earlier: Sequence[Tensor] = (),
        previous_score_A: Tensor | None = None,
        ahead_LAD: Tensor | None = None,
        normed: dict[int, Tensor] | None = None,
        answer_memory: dict[str, Tensor] | None = None,
    ) -> None:
        self.block = block
        self.active = active
        self.max_new_tokens = max_new_tokens
        self.hidden_AD = hidden_AD
        self.memory = memory
        self.answer_memory = {} if answer_memory is None else answer_memory
        self.model = model
        self.earlier = earlier
        self.previous_score_A = previous_score_A
        self.ahead_LAD = ahead_LAD
        self.head_rows: int | Tensor = 0
        self.head_rows_int8 = 0
        self.head_fallbacks = 0
        self.score_half_width_A: Tensor | None = None
        self._head = head
        self._normed = {} if normed is None else normed
        self._read: Reading | None = None
        self._bounds: LogitBounds | None = None
        self._parent: tuple[BlockView, Tensor] | None = None

    @property
    def positions_A(self) -> tuple[int, ...]:
        """Position of each row's token in its answer, from 1."""
        return self.active.positions_A

    @property
    def seeds_A(self) -> tuple[int, ...]:
        """Random seed of each active row; it does not depend on the batch."""
        return self.active.seeds_A

    @property
    def waiting_A(self) -> tuple[int, ...]:
        """Number of earlier tokens of each row whose skipped blocks have not been completed yet."""
        return self.active.waiting_A

    @property
    def logits_AK(self) -> Tensor:
        """Logits [A, K] of the method's head after this block, computed once for both score and emitted token."""
        return self._reading().logits_AK

    @property
    def ids_AK(self) -> Tensor | None:
        """Token ids [A, K] of the columns of `logits_AK`; None if the head reads the whole vocabulary."""
        return self._reading().ids_AK

    @property
    def bounds(self) -> LogitBounds | None:
        """Lower and upper bounds of the logits after this block, computed once.

        None if the head has no bounds or the exact logits were read first.
        """
        if self._read is None and self._bounds is None:
            self._bounds = self._head.bounds(self)
        return self._bounds

    def most_probable(self) -> Tensor:
        """Return the token id with the highest logit of each row, [A]; the lowest id wins a tie.

        The exact logits are read only if bounds of the logits do not decide this for every row.
        """
        if (bounds := self.bounds) is not None and self._read is None:
            ids_A = bounds.argmax_ids()
            if ids_A is not None:
                return ids_A
            self.head_fallbacks += 1
        return self.best(self.logits_AK)

    def largest_logits(self) -> Tensor:
        """Return the highest logit of each row, [A], or its upper bound if only bounds were computed."""
        if self._read is None and self._bounds is not None:
            return self._bounds.upper_AV.amax(-1)
        return self.logits_AK.amax(-1).float()

    @property
    def logits_ahead_LAV(self) -> Tensor:
        """Logits [L, A, V] after every block; only for a gate that looks ahead."""
        assert self.ahead_LAD is not None, "the caller runs all blocks ahead for gates that need it"
        return self._head.logits_ahead(self.model, self.ahead_LAD)

    @property
    def is_last(self) -> bool:
        """Whether this is the view after the model's last block."""
        return self.block == self.model.n_blocks

    def state(self, block: int) -> Tensor:
        """Return the state [A, D] after an earlier block (0: the embedding) or the current block."""
        return self.hidden_AD if block == self.block else self.earlier[block]

    def normed_state(self, block: int) -> Tensor:
        """Return the state [A, D] after ``block``, with the final norm applied; cached until a row exits."""
        if block not in self._normed:
            self._normed[block] = self.model.final_normed(self.state(block))
        return self._normed[block]

    def earlier_logits(self, block: int) -> Tensor:
        """Return the logits [A, K] after an earlier block, for the same token ids as `logits_AK`."""
        self._reading()
        return self._head.earlier_logits(self, block)

    def token(self, index_A: Tensor) -> Tensor:
        """Return token ids [A], given one column index of `logits_AK` per row, [A]."""
        ids_AK = self.ids_AK
        return index_A if ids_AK is None else ids_AK.gather(1, index_A[:, None])[:, 0]

    def best(self, value_AK: Tensor) -> Tensor:
        """Return the token id with the highest value of each row, [A]; the lowest id wins a tie.

        ``value_AK`` has one value for each column of `logits_AK`.
        """
        ids_AK = self.ids_AK
        if ids_AK is None:
            return argmax_token(value_AK)
        # Columns may be sorted by rank, so argmax would not find the lowest id.
        return ids_AK.masked_fill(value_AK < value_AK.amax(-1, keepdim=True), self.model.vocab_size).amin(-1)

    def take(self, index: Sequence[int], index_A: Tensor) -> BlockView:
        """Return the view of the rows with indices ``index`` (0..A-1); ``index_A`` has the same ones on the device."""
        before_A, ahead_LAD = self.previous_score_A, self.ahead_LAD
        view = BlockView(
            block=self.block,
            active=self.active.take(index, index_A),
            max_new_tokens=self.max_new_tokens,
            hidden_AD=self.hidden_AD.index_select(0, index_A),
            memory={name: value.index_select(0, index_A) for name, value in self.memory.items()},
            model=self.model,
            head=self._head,
            earlier=[state.index_select(0, index_A) for state in self.earlier],
            previous_score_A=None if before_A is None else before_A.index_select(0, index_A),
            ahead_LAD=None if ahead_LAD is None else ahead_LAD.index_select(1, index_A),
            answer_memory={name: value.index_select(0, index_A) for name, value in self.answer_memory.items()},
        )
        if (read := self._read) is not None:
            ids_AK = None if read.ids_AK is None else read.ids_AK.index_select(0, index_A)
            view._read = Reading(read.logits_AK.index_select(0, index_A), ids_AK)
        elif self._bounds is not None:
            view._bounds, view._parent = self._bounds.take(index_A), (self, index_A)
        return view

    def at_full_depth(self, hidden_AD: Tensor) -> BlockView:
        """Return the view of the same rows after the last block, where their states are ``hidden_AD``."""
        return BlockView(
            block=self.model.n_blocks,
            active=self.active,
            max_new_tokens=self.max_new_tokens,
            hidden_AD=hidden_AD,
            memory=self.memory,
            model=self.model,
            head=self._head,
            answer_memory=self.answer_memory,
        )

    @classmethod
    def joined(cls, views: Sequence[BlockView]) -> BlockView:
        """Return one view of all rows that exited after different blocks, to choose their tokens together.

        It counts as a view of the last block, and its states are the exit states of the rows.
        """
        first = views[0]
        return cls(
            block=first.model.n_blocks,
            active=ActiveRows.joined([view.active for view in views]),
            max_new_tokens=first.max_new_tokens,
            hidden_AD=torch.cat([view.hidden_AD for view in views]),
            memory={},
            model=first.model,
            head=first._head,
        )

    def set_logits(self, logits_AV: Tensor) -> None:
        """Set this view's logits [A, V], which the decode loop computed in one matrix product for several views."""
        self._read = Reading(logits_AV)
        self.head_rows = self.head_rows + self.model.vocab_size  # not in place: a copy of the view may share a tensor

    def pop_work(self) -> HeadWork | None:
        """Return the number of LM-head reads since the last call, and reset it; return None if nothing was read."""
        if isinstance(self.head_rows, int) and self.head_rows == self.head_rows_int8 == 0 and self._bounds is None:
            return None
        rows_A = torch.as_tensor(self.head_rows).expand(len(self.hidden_AD)).cpu()
        if self._bounds is not None:
            rows_A = rows_A + self._bounds.rescored_A.cpu()
            self._bounds.rescored_A.zero_()
        work = HeadWork(rows_A.tolist(), self.head_rows_int8, self.head_fallbacks)
        self.head_rows = self.head_rows_int8 = self.head_fallbacks = 0
        return work

    @property
    def is_read(self) -> bool:
        """Whether logits, or bounds of them, have been computed for this view."""
        return self._read is not None or self._bounds is not None

    def _reading(self) -> Reading:
        if self._read is None:
            self._read = self._head.read(self) if self._parent is None else self._read_subset(*self._parent)
        return self._read

    def _read_subset(self, parent: BlockView, index_A: Tensor) -> Reading:
        """Return the logits of this view's rows, taken from those of the larger view ``parent``.

        They are not computed again, since a matrix product with fewer batch rows may differ in its last bits.
        """
        logits_AK = parent.logits_AK.index_select(0, index_A)
        self.head_rows = self.head_rows + self.model.vocab_size
        return Reading(logits_AK)


class HeadWork(NamedTuple):
    """Number of LM-head reads for the batch rows of a view.

    Attributes:
        head_rows_A: Weight rows of the LM head read for each batch row.
        head_rows_int8: Weight rows of the LM head's int8 copy read for each batch row.
        head_fallbacks: Number of times bounds left a decision open, so that the whole LM head was read.
    """

    head_rows_A: Sequence[int]
    head_rows_int8: int
    head_fallbacks: int


@dataclass(frozen=True)
class Reading:
    """Result of a head: logits [A, K] and token ids [A, K] of their columns (None: the whole vocabulary, K = V)."""

    logits_AK: Tensor
    ids_AK: Tensor | None = None


def argmax_token(logits_AV: Tensor) -> Tensor:
    """Return the token id with the highest logit of each row, [A]; the lowest id wins a tie, as in transformers."""
    if logits_AV.dtype.itemsize == 2:  # several times as fast as argmax on a CPU
        return logits_AV.max(dim=-1).indices
    return torch.argmax(logits_AV, dim=-1)
