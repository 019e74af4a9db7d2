"""Engine protocol: the interface of the lean and the hosted engine, used by the decode loop, probes and costs.

It embeds, runs block l on some rows, fills keys and values of skipped blocks, and reads out
(`methods.base.ModelInterface`). The lean engine (`engine.model`) has its own forward pass for a few families; the
hosted one (`engine.hosted`) uses transformers' forward pass to prepare and run the blocks of all other families.

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
    """Data that all blocks of one step share, such as attention masks, as returned by `Engine.embed`.

    Only the embedding may be read outside of the engine.
    """

    @property
    def embedding_BD(self) -> Tensor | None:
        """Embedding of each batch row's newest token; may be None in a step from `Engine.recent_context`."""


class Engine(ModelInterface, Protocol):
    """Model whose blocks can be run one by one.

    `Any` stands for types that differ by engine: the cache, the step context and the prepared cache positions.
    """

    @property
    def engine(self) -> EngineName:
        """Name of the engine that runs the model: ``lean`` or ``hosted``."""

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""

    @property
    def device(self) -> torch.device:
        """Device of the weights; if blocks are on several devices, the device of the LM head."""

    @property
    def max_positions(self) -> int | None:
        """Maximum number of tokens of prompt and answer together; None if unlimited."""

    @property
    def encoder_blocks(self) -> int:
        """Number of encoder blocks; 0 for a decoder-only model."""

    @property
    def pads_left(self) -> bool:
        """Whether prompts of a decoder-only model may be padded on the left, to batch prompts of different length."""

    @property
    def fills_exited_rows(self) -> bool:
        """Whether `block` can also write keys and values of rows that have exited (its argument ``exited_BD``)."""

    def new_cache(self, n_rows: int, room: int, padding_B: Tensor | None = None) -> Any:
        """Return an empty KV cache of a decoder-only model for ``n_rows`` batch rows.

        It is allocated for ``room`` positions of prompt and answer together. ``padding_B`` is the number of
        left-padding positions of each row; None means no padding.
        """

    def start(
        self, prompts: Sequence[Sequence[int]], room: int, *, holds_last: bool = False, depth: int | None = None
    ) -> tuple[Any, Tensor | None]:
        """Prefill a batch of prompts: run the encoder, or by default all blocks of a decoder-only model.

        Args:
            prompts: Token ids of each prompt.
            room: Number of decoder positions to allocate for new tokens.
            holds_last: Decoder-only models: leave out each prompt's last token, which the caller feeds next.
            depth: Decoder-only models: number of blocks to run, if no later token runs more; None means all.

        Returns:
            The cache, and the state of each prompt's last token, [B, D]. The state is None for an encoder-decoder,
            and if the last token is left out.

        Raises:
            UserError: Prompt and answer exceed the model's maximum number of positions, or ``holds_last`` is set for an
                encoder-decoder.
        """

    def embed(self, tokens_BT: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Begin a step of T new tokens per row, at the cache's next positions.

        Returns the embeddings [B, T, D], and the `EngineStep`: masks and other data that all blocks of the step share.
        """

    def recent_context(self, cache: Any, n_positions: int) -> EngineStep:
        """Return an `EngineStep` for blocks that run at the newest ``n_positions`` cache positions of every row.

        The last of these positions is that of the current step.
        """

    def places(self, cache: Any, rows_A: Tensor | None, places_AT: Tensor) -> Any:
        """Return the argument ``places`` of `block`, to run blocks at other cache positions than those of the step.

        The result includes the attention masks of these positions, which several blocks of a step then share.

        Args:
            cache: KV cache of the batch.
            rows_A: Indices of the batch rows that will run blocks; None means all.
            places_AT: T cache positions per row, in any order.
        """

    def block(
        self,
        block: int,
        hidden: Tensor,
        context: Any,
        rows_A: Tensor | None = None,
        places: Any | None = None,
        exited_BD: Tensor | None = None,
    ) -> Tensor:
        """Run decoder block ``block`` (1..L) at the step's positions, and write its keys and values to the cache.

        Args:
            block: Number of the block.
            hidden: Output of the block before, [A, T, D]; [A, D] if each row has one new position.
            context: The step: data that its blocks share, as returned by `embed` or `recent_context`.
            rows_A: Indices of the batch rows that run the block, ascending; None means all.
            places: Other cache positions to run at, prepared by `places`; None means the positions of the step.
            exited_BD: Exit states of the rows that do not run, each at its row's index; their keys and values are
                written as by `fill`. Entries of running rows are overwritten. None means that nothing is written for
                rows that do not run; must be None unless the engine `fills_exited_rows`.

        Returns:
            The residual stream after the block, shaped like ``hidden``.
        """

    def fill(self, skipped: Sequence[Skipped], context: Any) -> None:
        """Write keys and values of skipped blocks at the step's position, projected from the rows' exit states.

        Args:
            skipped: For each exit layer, ascending: its block, and exit states [A, D] and indices of the rows that
                exited there (None: all rows).
            context: The step: data that its blocks share, as returned by `embed`.
        """

    def project(self, block: int, states_ND: Tensor, rows_N: Tensor, places_N: Tensor, cache: Any) -> None:
        """Project states to keys and values of one block, and write them to the cache without running the block.

        State n of ``states_ND`` is written at cache position ``places_N[n]`` of batch row ``rows_N[n]``.
        """

    def block_cost(self, place: TokenPlace) -> Cost:
        """Return the cost of one decoder block for one token; ``place`` has the lengths that its attention reads."""

    def why_not(self, parts: Parts, n_rows: int) -> str | None:
        """Return the reason why a method cannot run on this model in batches of ``n_rows`` rows; None if it can."""
