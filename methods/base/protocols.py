"""Protocols of the engine for methods: the model, and the KV cache of the token being decoded.

Shape suffixes: A rows still running at a block, D model width, V vocabulary, K token ids of a row, L blocks.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class ModelInterface(Protocol):
    """Properties of the model that a method may read."""

    @property
    def n_blocks(self) -> int:
        """Decoder blocks, L."""

    @property
    def d_model(self) -> int:
        """Width of the residual stream, D."""

    @property
    def kv_width(self) -> int:
        """Width of the keys (and of the values) of one block: KV heads times head size."""

    @property
    def vocab_size(self) -> int:
        """Rows of the LM head, V."""

    @property
    def exit_blocks(self) -> tuple[int, ...]:
        """Blocks with a trained exit head, ascending; () without."""

    def exit_logits(self, block: int, hidden_AD: Tensor) -> Tensor:
        """The trained exit head of a block: states [A, D] to logits [A, V]."""

    def exit_head_numel(self, block: int) -> int:
        """Weights that one read-out with the exit head of a block multiplies."""

    def final_normed(self, hidden: Tensor) -> Tensor:
        """The model's final norm of states [..., D]."""

    def logits(self, hidden_AD: Tensor) -> Tensor:
        """Final norm and LM head: states [A, D] to logits [A, V]."""

    def logit_bounds(self, hidden_AD: Tensor) -> LogitBounds:
        """Bounds of what `logits` gives, from an int8 copy of the LM head."""

    def head_weights(self, ids_AK: Tensor) -> Tensor:
        """Rows of the LM head, [A, K, D] (width D + 1 if the head has a bias)."""

    def logits_of(self, hidden_AD: Tensor, weights_AKD: Tensor) -> Tensor:
        """Final norm and only these rows of the LM head: logits [A, K]."""


class LogitBounds(Protocol):
    """Intervals [A, V] in which the logits lie that the LM head would give, whatever was read in its place."""

    lower_AV: Tensor
    upper_AV: Tensor
    rescored_A: Tensor
    """Rows of the LM head itself that were read for each row so far."""

    def sharpen(self) -> None:
        """Narrow the intervals of the ids that matter most."""

    def largest(self) -> Tensor | None:
        """Ids [A] of the largest logits, the lowest of a tie; None where that is not known of every row."""

    def take(self, index_A: Tensor) -> LogitBounds:
        """Select rows by index; of what was read, nothing is theirs."""


class DecoderCache(Protocol):
    """Operations of a KV policy on the keys and values of the token being decoded."""

    def fill_from_state(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Have keys and values of blocks block+1..L projected from the same state [A, D], as the step ends.

        What is written there before, by `run_rest` say, is overwritten. Deeper exits of a step come later.
        """

    def run_rest(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> Tensor:
        """Run blocks block+1..L, which writes their exact keys and values; returns the state after block L."""

    def defer(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        """Write nothing now: later tokens that run deeper blocks first complete this one (`KVPolicy.deferred`)."""
