"""Engine protocol: the interface that decode loop, probes and costs use, independent of the engine.

It embeds, runs block l on some rows, fills keys and values of skipped blocks, and reads out (`methods.base.Model`). The
lean engine (`engine.model`) has its own forward pass for a few families; the hosted one (`engine.hosted`) uses
transformers' forward pass to prepare and run the blocks of all other families.

Shape suffixes: B rows of the batch, A rows running at a block, T new positions, N positions of several rows, D model
width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from exitbench.harness.cells.cell import EngineName
from exitbench.methods.base import Cost, ModelInterface, Parts

if TYPE_CHECKING:
    from exitbench.harness.engine.model.cost import TokenPlace

Skipped = tuple[int, Tensor, Tensor | None]
"""Number of blocks executed, state to copy [A, D], and rows (None: all) of tokens that skip the remaining blocks."""


class EngineStep(Protocol):
    """A step begun by `Engine.embed`: context shared by its blocks, private except for the embedding."""

    @property
    def embedding_BD(self) -> Tensor | None:
        """Embedding of the newest position of every row."""


class Engine(ModelInterface, Protocol):
    """A model whose blocks can be run one by one. `Any` stands for the engine's own caches, contexts and places."""

    @property
    def engine(self) -> EngineName:
        """Name of this engine."""

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""

    @property
    def device(self) -> torch.device:
        """Device of the weights."""

    @property
    def max_positions(self) -> int | None:
        """Largest number of tokens of prompt and answer together; None if unlimited."""

    @property
    def encoder_blocks(self) -> int:
        """Blocks of the encoder; 0 means decoder-only."""

    @property
    def pads_left(self) -> bool:
        """True if rows of a decoder-only model may be padded on the left, so that different lengths share a batch."""

    @property
    def fills_in_passing(self) -> bool:
        """True if `block` accepts ``exited_BD``."""

    def new_cache(self, n_rows: int, room: int, padding_B: Tensor | None = None) -> Any:
        """Return an empty cache of a decoder-only model; ``padding_B`` is on the left."""

    def start(
        self, prompts: Sequence[Sequence[int]], room: int, *, holds_last: bool = False, depth: int | None = None
    ) -> tuple[Any, Tensor | None]:
        """Prefill: everything done once per prompt, at full depth by default.

        Args:
            prompts: Token ids of each row.
            room: Number of new decoder positions to allocate.
            holds_last: Decoder-only models: hold back each prompt's last token, which will be fed next.
            depth: Decoder-only models: run only this many blocks, if no later token runs more; None: all.

        Returns:
            The cache, and for decoder-only models the state after the last prompt token [B, D] (None for others, and if
            that token is held back).

        Raises:
            UserError: Prompt and answer are longer than the model's positions, or ``holds_last`` for an
                encoder-decoder.
        """

    def embed(self, tokens_BT: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Begin a step of T new positions: embed [B, T] to [B, T, D] and prepare the `EngineStep` of all blocks."""

    def window(self, cache: Any, n_positions: int) -> EngineStep:
        """Return a context to run blocks at the newest ``n_positions`` of every row; the last is the current step's."""

    def places(self, cache: Any, rows_A: Tensor | None, places_AT: Tensor) -> Any:
        """Prepare to run blocks at per-row cache positions, in any order; None in ``rows_A`` means all rows."""

    def block(
        self,
        block: int,
        hidden: Tensor,
        context: Any,
        rows_A: Tensor | None = None,
        places: Any | None = None,
        exited_BD: Tensor | None = None,
    ) -> Tensor:
        """Run decoder block ``block`` (1..L) for the step's positions, and write its keys and values.

        Args:
            block: Number of the block.
            hidden: Output of the block before, [A, T, D]; [A, D] if one position is new.
            context: Context of the step, as `embed` returned it.
            rows_A: Rows of the batch that run, ascending; None means all.
            places: Positions of each row up to the current one; None means the step's own.
            exited_BD: Exit states, at their rows, of all rows that do not run; their keys and values are written
                as by `fill`. Entries of running rows are overwritten. None: no others are written; required unless
                the engine `fills_in_passing`.

        Returns:
            The residual stream after the block, shaped like ``hidden``.
        """

    def fill(self, skipped: Sequence[Skipped], context: Any) -> None:
        """Write keys and values of the skipped blocks at the step's position, projected from exit states.

        Args:
            skipped: Rows that have left, ascending by exit layer.
            context: Context of the step.
        """

    def project(self, block: int, states_ND: Tensor, rows_N: Tensor, places_N: Tensor, cache: Any) -> None:
        """Project states to keys and values of one block, and write them at positions `places_N` of rows `rows_N`."""

    def block_cost(self, place: TokenPlace) -> Cost:
        """Return the work of one decoder block for one token of one row."""

    def why_not(self, parts: Parts, n_rows: int) -> str | None:
        """Return why a method cannot be run on this model in batches of this number of rows; None if it can."""
