"""Words with their kinds: why each word of a target is what it is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["frame", "copy", "agreement", "lexical", "hop1", "hop2", "hop3"]
"""What decides a target word:

frame: the pattern of the sentence, the same whatever it says.
copy: one source word, carried over or translated one to one.
agreement: gender and number of another word.
lexical: the meaning of another word, which decides between translations.
hop1, hop2, hop3: so many statements of the source, put together.
"""

Words = tuple[tuple[str, Kind], ...]


@dataclass(frozen=True)
class Record:
    """One generated document before it has an id.

    Attributes:
        fields: The fields of the real data set, except `id`.
        source: What must not occur in two splits.
        kinds: The kind of each word of the target.
    """

    fields: Mapping[str, Any]
    source: str
    kinds: tuple[Kind, ...]


def of_kind(kind: Kind, text: str) -> Words:
    """Give every word of a text the same kind."""
    return tuple((word, kind) for word in text.split())


def text_of(words: Words) -> str:
    """Return the words as text; punctuation is a word like any other."""
    return " ".join(word for word, _ in words)


def kinds_of(words: Words) -> tuple[Kind, ...]:
    """Return the kind of each word."""
    return tuple(kind for _, kind in words)


def split_all(texts: Iterable[str]) -> set[str]:
    """Return the set of all words of some texts."""
    return {word for text in texts for word in text.split()}
