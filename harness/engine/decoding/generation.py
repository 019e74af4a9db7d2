"""A request to generate, and the tokens generated for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from exitbench.harness.engine.model.token_record import TokenColumns, TokenRecord


@dataclass(frozen=True)
class Request:
    """Prompt of one document to generate an answer for.

    Attributes:
        prompt_ids: Encoder input, or the prompt of a decoder-only model.
        seed: Seed of random methods; fixed per document, so that batching does not change results.
        length: Number of tokens after which the answer ends, if an earlier decode has found it; timed decodes get it in
            place of stop strings. None: unknown.
    """

    prompt_ids: Sequence[int]
    seed: int = 0
    length: int | None = None


@dataclass
class Generation(TokenColumns):
    """Tokens generated for one request.

    Attributes:
        token_ids: New tokens, the end-of-sequence token included.
        records: Exit record of each token; empty if the decode is not traced.
        stop_reason: Why the answer ended: ``eos``, ``length`` or ``stop_string``.
    """

    token_ids: list[int] = field(default_factory=list)
    records: list[TokenRecord] = field(default_factory=list)
    stop_reason: str = "length"
