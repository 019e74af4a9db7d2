"""Kinds of target words: what each word of a generated answer depends on, and so how many blocks it should need."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, get_args

Kind = Literal[
    "frame",
    "end",
    "copy",
    "agreement",
    "lexical",
    "distance",
    "state1",
    "state2",
    "state3",
    "hop1",
    "hop2",
    "hop3",
    "hop4",
    "hop5",
]
"""Dependency of a target word, shallow kinds first:

frame: the fixed pattern of the sentence, whatever its content: frequent words.
end: a full stop, and the end of the answer.
copy: one source word, copied or translated one to one.
agreement: gender and number of a word of the same phrase.
lexical: the meaning of another word, which selects among near-synonyms.
distance: gender and number of a word of another phrase or sentence, past intervening words with other features.
state1, state2, state3: n statements of the source, each changing the state given by the previous one.
hop1, hop2, hop3, hop4, hop5: n facts of the source, each looked up with the result of the previous one; fewer if the
    answer itself has already stated a part of the chain.
"""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""Kinds in the order in which they should need more blocks, family by family."""

Words = tuple[tuple[str, Kind], ...]


@dataclass(frozen=True)
class Record:
    """Generated document without an id.

    Attributes:
        fields: Fields with the names of the real data set, except `id`.
        source: Text that decides the document's split; it occurs in one split only.
        kinds: Kind of each word of the target.
    """

    fields: Mapping[str, Any]
    source: str
    kinds: tuple[Kind, ...]


def of_kind(kind: Kind, text: str) -> Words:
    """Split a text into (word, kind) pairs, all with the same kind."""
    return tuple((word, kind) for word in text.split())


def text_of(words: Words) -> str:
    """Join the words of (word, kind) pairs with spaces; punctuation marks are words too."""
    return " ".join(word for word, _ in words)


def kinds_of(words: Words) -> tuple[Kind, ...]:
    """Return the kinds of (word, kind) pairs, in order."""
    return tuple(kind for _, kind in words)


def split_all(texts: Iterable[str]) -> set[str]:
    """Return the set of all words of the texts."""
    return {word for text in texts for word in text.split()}


WOMEN = ("Anna", "Clara", "Eva", "Ida", "Julia", "Lena", "Maria", "Nora", "Olga", "Rosa", "Sofia", "Vera")
MEN = ("Adam", "Ben", "David", "Emil", "Felix", "Hugo", "Ivan", "Karl", "Leo", "Oscar", "Paul", "Theo")
NAMES = WOMEN + MEN


def is_woman(name: str) -> bool:
    """Return whether a name is a woman's."""
    return name in WOMEN


T = TypeVar("T")


class Draw:
    """Source of random choices; the same key gives the same choices."""

    def __init__(self, key: str) -> None:
        """Seed the random choices with a string."""
        self._random = random.Random(key)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self._random.random() < probability

    def choose(self, choices: Sequence[T]) -> T:
        """Return one of the choices, each with the same probability."""
        return choices[int(self._random.random() * len(choices))]

    def sample(self, choices: Sequence[T], n: int) -> list[T]:
        """Return n distinct choices in random order (Fisher-Yates); with n = len(choices), a shuffle."""
        pool = list(choices)
        for i in range(n):
            j = i + int(self._random.random() * (len(pool) - i))
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:n]
