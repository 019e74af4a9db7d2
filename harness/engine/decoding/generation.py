"""A request to generate, and the tokens generated for it with their exit trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Request:
    """One document to answer.

    Attributes:
        prompt_ids: Encoder input, or the prompt of a decoder-only model.
        seed: What random methods draw from; fixed per document, so that batches do not change results.
    """

    prompt_ids: Sequence[int]
    seed: int = 0


@dataclass
class Generation:
    """The answer to one request and its exit trace; one entry a new token, the end-of-sequence token included.

    A decode that is not traced (`decode`) leaves tokens and stop reason only.

    Attributes:
        token_ids: New tokens.
        exit_layers: Blocks whose output the token was read from, 1..L.
        blocks_run: Blocks executed before the next token; differs from the exit layer for oracles and exact caches.
        head_rows: Rows of the LM head multiplied for the token.
        int8_rows: Rows of its int8 copy, where bounds decide.
        fallbacks: How often these left a decision open, so that the whole head was read.
        scores: Confidence at the exit; None where the token left at the last block.
        half_widths: By how much it may be off, where bounds decided; None where it is exact, or is None itself.
        rejected: Drafts thrown away right before the token was decided; it is the full model's choice in their place.
        wasted: Positions run for those drafts in vain.
        stop_reason: ``eos``, ``length`` or ``stop_string``.
    """

    token_ids: list[int] = field(default_factory=list)
    exit_layers: list[int] = field(default_factory=list)
    blocks_run: list[int] = field(default_factory=list)
    head_rows: list[int] = field(default_factory=list)
    int8_rows: list[int] = field(default_factory=list)
    fallbacks: list[int] = field(default_factory=list)
    scores: list[float | None] = field(default_factory=list)
    half_widths: list[float | None] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    wasted: list[int] = field(default_factory=list)
    stop_reason: str = "length"

    def cut(self, length: int) -> None:
        """Forget all tokens but the first so many."""
        for column in (
            self.token_ids,
            self.exit_layers,
            self.blocks_run,
            self.head_rows,
            self.int8_rows,
            self.fallbacks,
            self.scores,
            self.half_widths,
            self.rejected,
            self.wasted,
        ):
            del column[length:]
