"""Documents of a task, and scores of a model's outputs for them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from exitbench.errors import UserError


def canonical_json(value: Any) -> str:
    """Return the canonical JSON text of a value: sorted keys, no spaces, no NaN, unescaped Unicode."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class Document:
    """One record of a task, such as a question with its passage, with the field names of the original data set.

    Attributes:
        key: First 16 hexadecimal digits of the SHA-256 of the canonical JSON of `fields`.
        fields: squad: id, title, context, question, answers{text, answer_start};
            samsum: id, dialogue, summary; wmt: id, en, fr.
        token_kinds: Built-in data only: the kind of each target word (`builtin.words.Kind`). Not part of the key.
    """

    key: str
    fields: Mapping[str, Any]
    token_kinds: tuple[str, ...] = ()

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], token_kinds: tuple[str, ...] = ()) -> "Document":
        """Build a document from its fields; its key is a digest of them."""
        digest = sha256(canonical_json(fields).encode()).hexdigest()
        return cls(key=digest[:16], fields=fields, token_kinds=token_kinds)


@dataclass(frozen=True)
class DocumentScore:
    """Scores of a model's output for one document.

    Attributes:
        values: One value per metric, usually 0..100. For a corpus metric such as BLEU, the value of this document
            alone.
        statistics: Corpus metrics only: sufficient statistics, whose sums over documents determine the metric.
    """

    values: dict[str, float]
    statistics: dict[str, list[float]] = field(default_factory=dict)

    def summands(self, metric: str) -> list[float]:
        """Return this document's S numbers that are summed over documents to compute a metric (`Task.aggregate`).

        These are the metric's statistics or, if it has none, its value.
        """
        return self.statistics.get(metric, [self.values[metric]])


LEVELS: Final = (1, 2, 3)
"""Difficulty levels: a higher level has more facts, hops and clauses per document."""
DEFAULT_LEVEL: Final = 2
"""Level of the data that the bundled models were trained on."""


def require_level(level: int) -> None:
    """Check that a difficulty level of the built-in data exists.

    Raises:
        UserError: The level does not exist.
    """
    if level not in LEVELS:
        raise UserError(f"built-in data: level is {level}. Allowed: {', '.join(map(str, LEVELS))}.")
