"""Engine protocol: what decode loop, probes and costs ask of a model, whichever engine runs its blocks.

Embed, run block l on some rows, fill keys and values of skipped blocks, read out (`methods.base.Model`). The lean
engine (`engine.model`) has a forward pass of its own for a few families; the hosted one (`engine.hosted`) lets that of
transformers prepare and run the blocks of all others.

Shape suffixes: B rows of the batch, A rows running at a block, T new positions, N positions of several rows, D model
width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from exitbench.harness.cells.cell import EngineName
from exitbench.methods.base import Cost, Model, Parts

if TYPE_CHECKING:
    from exitbench.harness.engine.model.cost import TokenPlace

Skipped = tuple[int, Tensor, Tensor | None]
"""Blocks executed, the state to copy [A, D] and the rows (None: all) of tokens whose other blocks are skipped."""


class Begun(Protocol):
    """A step that `Engine.embed` has begun: what its blocks share, private but for the embedding."""

    @property
    def embedding_BD(self) -> Tensor | None:
        """Embedding of the newest position of every row."""


class Engine(Model, Protocol):
    """A model whose blocks can be run one by one. Caches, contexts and places are its own: `Any` is what it gave."""

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
        """Tokens that prompt and answer may have together; None where positions have no end."""

    @property
    def encoder_blocks(self) -> int:
        """Blocks of the encoder; 0 means decoder-only."""

    @property
    def pads_left(self) -> bool:
        """Whether rows of a decoder-only model may be padded on the left, and so stand in one batch."""

    @property
    def fills_in_passing(self) -> bool:
        """Whether `block` takes ``left_BD``."""

    def new_cache(self, n_rows: int, room: int, padding_B: Tensor | None = None) -> Any:
        """Return an empty cache of a decoder-only model; ``padding_B`` is on the left."""

    def start(
        self, prompts: Sequence[Sequence[int]], room: int, *, holds_last: bool = False, depth: int | None = None
    ) -> tuple[Any, Tensor | None]:
        """Prefill: everything that happens once a prompt, at full depth unless told otherwise.

        Args:
            prompts: Token ids of each row.
            room: New decoder positions to leave space for.
            holds_last: Decoder-only models: hold back each prompt's last token, which is to be fed next.
            depth: Decoder-only models: run so many blocks, because no later token runs more; None: all.

        Returns:
            The cache, and for decoder-only models the state after the last prompt token [B, D] (None otherwise, and
            where that token is held back).

        Raises:
            UserError: Prompt and answer are longer than the model's positions, or the last token of an
                encoder-decoder's prompt is to be held back.
        """

    def embed(self, tokens_BT: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Begin a step of T new positions: embed [B, T] to [B, T, D] and prepare what all blocks share (`Begun`)."""

    def window(self, cache: Any, n_positions: int) -> Begun:
        """Go back to the newest ``n_positions`` of every row, the step's own last, to run blocks at all of them."""

    def places(self, cache: Any, rows_A: Tensor | None, places_AT: Tensor) -> Any:
        """Prepare to run blocks at cache positions given a row, in any order; None in ``rows_A`` means all rows."""

    def block(
        self,
        block: int,
        hidden: Tensor,
        context: Any,
        rows_A: Tensor | None = None,
        places: Any | None = None,
        left_BD: Tensor | None = None,
    ) -> Tensor:
        """Run decoder block ``block`` (1..L) for the step's positions; writes its keys and values.

        Args:
            block: Number of the block.
            hidden: Output of the block before, [A, T, D]; [A, D] where one position is new.
            context: Of the step, as `embed` gave it.
            rows_A: Rows of the batch that run, ascending; None means all.
            places: Positions of each row up to the current one; None means the step's own.
            left_BD: Exit states, at their rows, of all that do not run: their keys and values are written too, as
                `fill` would. What stands at the rows that run is overwritten. None: nobody else's are; an engine that
                does not `fills_in_passing` is given nothing else.

        Returns:
            The residual stream after the block, shaped like ``hidden``.
        """

    def fill(self, skipped: Sequence[Skipped], context: Any) -> None:
        """Write keys and values of the skipped blocks at the step's position, projected from exit states.

        Args:
            skipped: What has left, by exit layer, the first first.
            context: Of the step.
        """

    def project(self, block: int, states_ND: Tensor, rows_N: Tensor, places_N: Tensor, cache: Any) -> None:
        """Write keys and values of one block at earlier positions of rows, projected from states."""

    def block_cost(self, place: TokenPlace) -> Cost:
        """Work of one decoder block for one token of one row."""

    def why_not(self, parts: Parts, n_rows: int) -> str | None:
        """Return why a method cannot be run on this model in batches of this number of rows; None if it can."""
