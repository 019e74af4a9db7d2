"""Protocols that the engine implements for methods: the model, and the KV cache of the token being decoded.

Shape suffixes: A active rows at a block, D model width, V vocabulary, K token ids of a row, L blocks.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class ModelInterface(Protocol):
    """Model properties and read-outs that a method may use."""

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
        """Rows of the LM head, V (the vocabulary size)."""

    @property
    def exit_blocks(self) -> tuple[int, ...]:
        """Blocks with a trained exit head, ascending; () if there are none."""

    def exit_logits(self, block: int, hidden_AD: Tensor) -> Tensor:
        """Return logits [A, V] of a block's trained exit head from states [A, D]."""

    def exit_head_numel(self, block: int) -> int:
        """Return how many weights one read-out with the exit head of a block multiplies."""

    def final_normed(self, hidden: Tensor) -> Tensor:
        """Apply the model's final norm to states [..., D]."""

    def logits(self, hidden_AD: Tensor) -> Tensor:
        """Return logits [A, V] of states [A, D]: final norm and LM head."""

    def logit_bounds(self, hidden_AD: Tensor) -> LogitBounds:
        """Return intervals that contain the result of `logits`, computed from an int8 copy of the LM head."""

    def head_weights(self, ids_AK: Tensor) -> Tensor:
        """Return rows of the LM head by token id, [A, K, D] (width D + 1 if the head has a bias)."""

    def logits_of(self, hidden_AD: Tensor, weights_AKD: Tensor) -> Tensor:
        """Return logits [A, K] of states [A, D]: final norm and only the given rows of the LM head."""


class LogitBounds(Protocol):
    """Intervals [A, V] that contain the logits of the exact LM head.

    They come from an int8 copy of the head. Rescored rows are rows of the exact head that were read to narrow them.
    """

    lower_AV: Tensor
    upper_AV: Tensor
    rescored_A: Tensor
    """Rows of the exact LM head read so far, for each row of the batch."""

    def sharpen(self) -> None:
        """Narrow the intervals of token ids whose logits may be the largest, from their rows of the exact head."""

    def largest(self) -> Tensor | None:
        """Return ids [A] of the largest logits, or None if rounding error leaves any row undecided."""

    def take(self, index_A: Tensor) -> LogitBounds:
        """Select rows by index. Rescored-row counts restart at 0, since the new object has not read anything."""


class DecoderCache(Protocol):
    """Cache operations of a KV policy for the token being decoded; ``rows_A`` None means every row of the batch."""

    def fill_from_state(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Schedule, for the end of the step, projecting one state [A, D] to keys and values of blocks block+1..L.

        It overwrites entries written earlier in the step, for example by `run_rest`. Within a step, calls come in order
        of ascending ``block``.
        """

    def run_rest(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> Tensor:
        """Run blocks block+1..L, which writes their exact keys and values, and return the state after block L."""

    def evict(self, block: int, rows_A: Tensor | None) -> None:
        """Mask the token's position for later tokens in blocks block+1..L (`KVPolicy.evicts`)."""

    def defer(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Write nothing now: a later token that runs deeper blocks first completes this one (`KVPolicy.deferred`)."""
