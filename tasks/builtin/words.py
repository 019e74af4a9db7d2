"""Kinds of target words: what each word of a generated answer depends on, and how many blocks that should take."""

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
"""What decides a target word, shallow kinds first:

frame: the pattern of the sentence, the same whatever it says: frequent words.
end: a full stop, and the end of the answer.
copy: one source word, carried over or translated one to one.
agreement: gender and number of a word of the same phrase.
lexical: the meaning of another word, which decides among near-synonyms.
distance: gender and number of a word of another phrase or sentence, past others that would have it otherwise.
state1, state2, state3: so many statements of the source, one changing what the other said: counts, dates, times.
hop1, hop2, hop3, hop4, hop5: so many facts of the source, each found by what the one before says; fewer where the
    answer itself has said a part of the way.
"""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
"""In the order in which blocks should be needed, family by family."""

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


WOMEN = ("Anna", "Clara", "Eva", "Ida", "Julia", "Lena", "Maria", "Nora", "Olga", "Rosa", "Sofia", "Vera")
MEN = ("Adam", "Ben", "David", "Emil", "Felix", "Hugo", "Ivan", "Karl", "Leo", "Oscar", "Paul", "Theo")
NAMES = WOMEN + MEN


def is_woman(name: str) -> bool:
    """Tell a name's gender."""
    return name in WOMEN


T = TypeVar("T")


class Draw:
    """A seeded source of choices."""

    def __init__(self, key: str) -> None:
        """Start the sequence that belongs to a key."""
        self._random = random.Random(key)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self._random.random() < probability

    def one(self, choices: Sequence[T]) -> T:
        """Return one of the choices, each as likely as the others."""
        return choices[int(self._random.random() * len(choices))]

    def some(self, choices: Sequence[T], n: int) -> list[T]:
        """Return n different choices in random order (Fisher-Yates); with n = len(choices), a shuffle."""
        pool = list(choices)
        for i in range(n):
            j = i + int(self._random.random() * (len(pool) - i))
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:n]
