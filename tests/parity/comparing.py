"""Compare two programs' answers to the same documents: tokens, exit layers and scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

TOLERANCE = 1e-4
"""Largest difference of two scores that fp32 rounding explains."""


@dataclass(frozen=True)
class Answer:
    """Answer to one document.

    Attributes:
        key: Document key.
        tokens: New tokens, including the one that ends the answer.
        exits: Exit layer of each token.
        gate_scores: For each token, the blocks at which the gate was evaluated, with its scores.
        rolled_back: Number of tokens undone.
    """

    key: str
    tokens: Sequence[int]
    exits: Sequence[int]
    gate_scores: Sequence[Sequence[tuple[int, float]]]
    rolled_back: int


@dataclass
class Comparison:
    """Agreement of two programs, summed over documents.

    Attributes:
        documents: Number of documents.
        tokens: Numbers of tokens, of the published code and of this project.
        equal_tokens: Positions with the same token in both.
        equal_exits: Positions with the same token and exit layer in both.
        identical: Documents without any difference.
        scores: Number of scores compared: those up to the first differing token.
        largest: Largest difference of two scores.
        rolled_back: Tokens undone by the published code and by this project.
        depth: Sums of the exit layers of both.
        first: The first difference, in words; "" if there is none.
    """

    documents: int = 0
    tokens: list[int] = field(default_factory=lambda: [0, 0])
    equal_tokens: int = 0
    equal_exits: int = 0
    identical: int = 0
    scores: int = 0
    largest: float = 0.0
    rolled_back: list[int] = field(default_factory=lambda: [0, 0])
    depth: list[int] = field(default_factory=lambda: [0, 0])
    first: str = ""

    @property
    def equal(self) -> bool:
        """True if everything is equal up to rounding of scores."""
        return self.identical == self.documents

    def add(self, published: Answer, ours: Answer) -> None:
        """Compare two answers to one document.

        Raises:
            ValueError: They answer different documents, or one of them lacks exits or scores of a token.
        """
        for answer in (published, ours):
            if answer.key != published.key or not len(answer.tokens) == len(answer.exits) == len(answer.gate_scores):
                lengths = [len(column) for column in (answer.tokens, answer.exits, answer.gate_scores)]
                raise ValueError(f"{published.key!r}, {answer.key!r}: tokens, exits and scores are {lengths}")
        self.documents += 1
        difference = self._difference(published, ours)
        self.identical += not difference
        self.first = self.first or (difference and f"document {published.key}: {difference}")
        for side, answer in enumerate((published, ours)):
            self.tokens[side] += len(answer.tokens)
            self.rolled_back[side] += answer.rolled_back
            self.depth[side] += sum(answer.exits)
        pairs = zip(published.tokens, ours.tokens, published.exits, ours.exits, strict=False)
        same = [(token == other, exit_layer == layer) for token, other, exit_layer, layer in pairs]
        self.equal_tokens += sum(token for token, _ in same)
        self.equal_exits += sum(token and layer for token, layer in same)

    def _difference(self, published: Answer, ours: Answer) -> str:
        """Return the first difference in words; compare scores up to there."""
        for at, (token, other) in enumerate(zip(published.tokens, ours.tokens, strict=False)):
            place = f"token {at + 1}"
            if (scores := self._scores(published.gate_scores[at], ours.gate_scores[at])) is not None:
                return f"{place}: {scores}"
            if published.exits[at] != ours.exits[at]:
                return f"{place}: leaves after block {published.exits[at]} there, {ours.exits[at]} here"
            if token != other:
                return f"{place}: {token} there, {other} here"
        if len(published.tokens) != len(ours.tokens):
            return f"{len(published.tokens)} tokens there, {len(ours.tokens)} here"
        if published.rolled_back != ours.rolled_back:
            return f"{published.rolled_back} tokens undone there, {ours.rolled_back} here"
        return ""

    def _scores(self, published: Sequence[tuple[int, float]], ours: Sequence[tuple[int, float]]) -> str | None:
        for (block, score), (other_block, other) in zip(published, ours, strict=False):
            if block != other_block:
                break
            self.scores += 1
            self.largest = max(self.largest, abs(score - other))
            if not abs(score - other) <= TOLERANCE:  # also true for NaN
                return f"scores {score:.6f} at block {block} there, {other:.6f} here"
        if [block for block, _ in published] != [block for block, _ in ours]:
            return f"asked at blocks {[block for block, _ in published]} there, {[block for block, _ in ours]} here"
        return None


def compared(published: Iterable[Answer], ours: Iterable[Answer]) -> Comparison:
    """Compare answers to the same documents in the same order.

    Raises:
        ValueError: The documents differ, or an answer lacks exits or scores of a token.
    """
    comparison = Comparison()
    for first, second in zip(published, ours, strict=True):
        comparison.add(first, second)
    return comparison


def differing_thresholds(published: Sequence[float], ours: Sequence[float]) -> str:
    """Return the first difference between two lists of thresholds, in words; "" if they are equal."""
    for at, (first, second) in enumerate(zip(published, ours, strict=True)):
        if not abs(first - second) < 1e-9:
            return f"threshold {at + 1}: {first:.4f} there, {second:.4f} here"
    return ""


HEADER = (
    "setting",
    "documents",
    "tokens",
    "equal",
    "exits equal",
    "largest score difference (scores)",
    "undone",
    "mean exit",
    "documents identical",
)


def table_cells(name: str, comparison: Comparison) -> list[str]:
    """Return a table row: one number if both programs agree, else published / local."""

    def both(values: Sequence[int]) -> str:
        return f"{values[0]}" if values[0] == values[1] else f"{values[0]} / {values[1]}"

    means = [f"{depth / max(1, n):.3f}" for depth, n in zip(comparison.depth, comparison.tokens, strict=True)]
    return [
        name,
        f"{comparison.documents}",
        both(comparison.tokens),
        f"{comparison.equal_tokens}",
        f"{comparison.equal_exits}",
        f"{comparison.largest:.1e} ({comparison.scores})" if comparison.scores else "",
        both(comparison.rolled_back) if any(comparison.rolled_back) else "",
        means[0] if means[0] == means[1] else " / ".join(means),
        f"{comparison.identical}",
    ]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows under `HEADER` as a Markdown table; numbers are aligned right."""
    head = [f"| {' | '.join(HEADER)} |", f"|---|{'--:|' * (len(HEADER) - 1)}"]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows)])
