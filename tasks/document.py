"""Documents, and scores of the outputs for them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from exitbench.errors import UserError


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, no NaN, real characters."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class Document:
    """One record of a task, with the field names of the real data set.

    Attributes:
        key: First 16 hexadecimal digits of the SHA-256 of the canonical JSON of `fields`.
        fields: squad: id, title, context, question, answers{text, answer_start};
            samsum: id, dialogue, summary; wmt: id, en, fr.
        token_kinds: Built-in data only: the kind of each target word. Not part of the key.
    """

    key: str
    fields: Mapping[str, Any]
    token_kinds: tuple[str, ...] = ()

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], token_kinds: tuple[str, ...] = ()) -> "Document":
        """Make a document, deriving its key from its fields."""
        digest = sha256(canonical_json(fields).encode()).hexdigest()
        return cls(key=digest[:16], fields=fields, token_kinds=token_kinds)


@dataclass(frozen=True)
class DocumentScore:
    """The scores of one output.

    Attributes:
        values: One value a metric, on a 0..100 scale. For a corpus metric this is its sentence form.
        statistics: Corpus metrics only: sufficient statistics, which add up over documents.
    """

    values: dict[str, float]
    statistics: dict[str, list[float]] = field(default_factory=dict)

    def summands(self, metric: str) -> list[float]:
        """Return what `Task.aggregate` sums over documents: the statistics, or else the value alone, [S]."""
        return self.statistics.get(metric, [self.values[metric]])


LEVELS: Final = (1, 2, 3)
"""More facts, hops and clauses a document from level to level."""
DEFAULT_LEVEL: Final = 2
"""What the models that come along learned."""


def require_level(level: int) -> None:
    """Check a level.

    Raises:
        UserError: There is no such level.
    """
    if level not in LEVELS:
        raise UserError(f"built-in data: level is {level}. Allowed: {', '.join(map(str, LEVELS))}.")
