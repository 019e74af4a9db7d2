"""TokenRecord: the values recorded per token, from the engine to the columns of the database.

A new quantity per token needs a field here, the line that computes it (in `decoding.trace`), and a column in
`results/tables/traces.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from exitbench.methods.base import ModelInterface, Parts


class TokenRecord(NamedTuple):
    """Exit layer, blocks run and LM-head reads of one token: generated, scored, or the label of a classified text.

    Attributes:
        token_id: The token; for a text, the index of its label.
        exit_layer: Block after which the token was read out, 1..L.
        blocks_run: Number of blocks executed for it. It exceeds the exit layer for oracles, accepted drafts, and KV
            policies that run skipped blocks later. Scored continuations of one context share the position that predicts
            their first token, or all positions if only their last tokens differ. Each record counts the full work,
            including shared positions.
        head_rows: Number of rows of the LM head multiplied for it; a shared read-out counts in each record. For a text,
            rows of the classifier.
        score: Gate score at the exit layer, or 1 if the depth was fixed in advance; None at the last block.
        score_half_width: Largest error of the score, if the gate is certified (decides from bounds of the logits);
            None if there is no score, or an exact one.
        head_rows_int8: Number of rows of the LM head's int8 copy multiplied for it, if the gate is certified.
        head_fallbacks: Number of times that the bounds left a decision open, so that the whole LM head was read.
        rejected: Number of drafts that verification discarded right before this token, which full depth chose instead.
        rejected_layers: Exit layers of those drafts; not stored in the database.
        wasted: Number of positions that ran for those drafts and were discarded; not stored in the database.
        logprob: Natural logarithm of its probability at the exit layer; None for a generated token.
        is_greedy: Whether it is the most probable token at the exit layer (lowest id among ties); None for a generated
            token.
    """

    token_id: int
    exit_layer: int
    blocks_run: int
    head_rows: int = 0
    score: float | None = None
    score_half_width: float | None = None
    head_rows_int8: int = 0
    head_fallbacks: int = 0
    rejected: int = 0
    rejected_layers: tuple[int, ...] = ()
    wasted: int = 0
    logprob: float | None = None
    is_greedy: bool | None = None

    def to_row(self, parts: Parts | None) -> dict[str, Any]:
        """Return the record as a row of the table `token_exit`, by column; None for columns that do not apply.

        Args:
            parts: The method that ran; None for a replay, which recomputes exits from stored scores without the model.
        """
        row = self._asdict()
        del row["rejected_layers"], row["wasted"]
        if parts is None:
            row["head_rows"] = None
        if parts is None or not parts.head.is_bounded:
            row |= {"head_rows_int8": None, "head_fallbacks": None}
        if parts is None or not parts.kv_policy.verifies:
            row["rejected"] = None
        return row | {"reason": "last" if self.score is None else "threshold"}


class TokenColumns:
    """Base class of objects with `records` of tokens; each property is one field as a list, one entry per token."""

    records: list[TokenRecord]

    @property
    def exit_layers(self) -> list[int]:
        """Exit layer of each token."""
        return [record.exit_layer for record in self.records]

    @property
    def blocks_run(self) -> list[int]:
        """Number of blocks executed for each token."""
        return [record.blocks_run for record in self.records]

    @property
    def head_rows(self) -> list[int]:
        """Number of rows of the LM head multiplied for each token."""
        return [record.head_rows for record in self.records]

    @property
    def scores(self) -> list[float | None]:
        """Gate score of each token at its exit layer; None for a token that exited at the last block."""
        return [record.score for record in self.records]

    @property
    def rejected(self) -> list[int]:
        """Number of drafts that verification discarded right before each token."""
        return [record.rejected for record in self.records]


def full_depth_records(token_ids: Sequence[int], model: ModelInterface) -> list[TokenRecord]:
    """Return the records of tokens generated at full depth: all blocks run, and the LM head read once."""
    return [TokenRecord(token_id, model.n_blocks, model.n_blocks, model.vocab_size) for token_id in token_ids]
