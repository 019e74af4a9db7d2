"""Protocols that the engine implements for methods: the model, and the KV cache of the token being decoded.

Shape suffixes: A active rows at a block, D model width, V vocabulary, K token ids of a row, L blocks.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class ModelInterface(Protocol):
    """The part of a model that a method may use: its sizes, and read-outs of logits from hidden states."""

    @property
    def n_blocks(self) -> int:
        """Number of decoder blocks, L."""

    @property
    def d_model(self) -> int:
        """Width of the residual stream, D."""

    @property
    def kv_width(self) -> int:
        """Width of the keys (and of the values) of one block: KV heads times head size."""

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary, V: the number of weight rows of the LM head."""

    @property
    def exit_blocks(self) -> tuple[int, ...]:
        """Blocks with a trained exit head, ascending; () if there are none."""

    def exit_logits(self, block: int, hidden_AD: Tensor) -> Tensor:
        """Return the logits [A, V] that a block's trained exit head computes from states [A, D]."""

    def exit_head_numel(self, block: int) -> int:
        """Return the number of weights multiplied in one read-out with a block's exit head."""

    def final_normed(self, hidden: Tensor) -> Tensor:
        """Return states [..., D] after the model's final norm."""

    def logits(self, hidden_AD: Tensor) -> Tensor:
        """Return the logits [A, V] of states [A, D], computed by final norm and LM head."""

    def logit_bounds(self, hidden_AD: Tensor) -> LogitBounds:
        """Return lower and upper bounds of the result of `logits`, computed from an int8 copy of the LM head."""

    def head_weights(self, ids_AK: Tensor) -> Tensor:
        """Return the LM head's weight rows of token ids, [A, K, D], or [A, K, D + 1] with the bias appended."""

    def logits_of(self, hidden_AD: Tensor, weights_AKD: Tensor) -> Tensor:
        """Return the logits [A, K] of states [A, D], computed by final norm and the weight rows from `head_weights`."""


class LogitBounds(Protocol):
    """Lower and upper bounds [A, V] of the exact LM head's logits, computed from an int8 copy of the head.

    Individual weight rows of the exact head can be read to narrow the bounds; this is called rescoring.
    """

    lower_AV: Tensor
    upper_AV: Tensor
    rescored_A: Tensor
    """Rows of the exact LM head read so far, for each row of the batch."""

    def sharpen(self) -> None:
        """Narrow the bounds of the token ids that may have the largest logit, by reading their exact weight rows."""

    def argmax_ids(self) -> Tensor | None:
        """Return the token ids [A] of the largest exact logits, or None if the bounds leave any row undecided."""

    def take(self, index_A: Tensor) -> LogitBounds:
        """Return the bounds of a subset of the rows, given by their indices.

        In the result, the number of exact weight rows read (`rescored_A`) restarts at 0; this object keeps the earlier
        count.
        """


class DecoderCache(Protocol):
    """KV-cache operations that a KV policy may call for tokens that exit after ``block``.

    ``rows_A`` has the batch indices of the rows that exit (None: every row), and ``hidden_AD`` their states.
    """

    def fill_from_state(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Fill keys and values of blocks block+1..L by projecting the exit states ``hidden_AD`` of the rows ``rows_A``.

        The projected keys and values are written when the step ends. They replace those written earlier in the step,
        for example by `run_rest`. Within a step, calls come in ascending order of ``block``.
        """

    def run_rest(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> Tensor:
        """Run blocks block+1..L on the rows ``rows_A`` from their exit states; return the states after block L, [A, D].

        The blocks write their exact keys and values.
        """

    def evict(self, block: int, rows_A: Tensor | None) -> None:
        """Mask the rows' current position in blocks block+1..L: later tokens do not attend to it there."""

    def defer(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Store the exit states, and leave blocks block+1..L empty until a later token of the same row runs them."""
