"""Questions about where somebody ends, with a context of shuffled facts.

The facts are of a small world of people who follow each other to the places that some of them visit. Everybody has one
fact; whoever follows somebody ends where that person does. So where somebody ends takes as many facts as there are
people on the way.

Answers are exactly extractive. The number of hops of a question is the number of facts that its answer
needs; a copied answer is found by its cue words alone, without binding a name to anything. Of a long
answer only the first word takes the hops: the others follow it in the text.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from exitbench.tasks.builtin.words import NAMES, Draw, Kind, Record, Words, kinds_of, of_kind, split_all, text_of

CITIES = (
    "Athens", "Berlin", "Cairo", "Delhi", "Dublin", "Geneva", "Lisbon", "Madrid", "Oslo", "Paris", "Prague", "Rome",
    "Seoul", "Tokyo", "Vienna",
)  # fmt: skip
VEHICLES = ("boat", "bus", "car", "plane", "train", "tram")
FOLLOW = ("follows", "joins")
VISIT = "visits"
LENGTHS = (1, 1, 1, 2, 3, 4, 5)
"""Facts of a chain, each as likely as it is named."""
HOPS: tuple[Kind, ...] = ("hop1", "hop2", "hop3", "hop4", "hop5")


@dataclass(frozen=True)
class Fact:
    """A statement: who does what to whom or what."""

    subject: str
    verb: str
    object_: str

    @property
    def text(self) -> str:
        """The statement."""
        return f"{self.subject} {self.verb} {self.object_} ."


def draw_chains(draw: Draw, people: Sequence[str], first: int | None = None) -> list[list[Fact]]:
    """Draw chains of facts, one for each person: from person to person, and at last to a place.

    Args:
        draw: Decides.
        people: Who has a fact.
        first: Facts of the first chain; None draws them too.
    """
    left, cities = iter(people), iter(draw.some(CITIES, len(people)))
    lengths: list[int] = [] if first is None else [first]
    while n := len(people) - sum(lengths):
        lengths.append(min(n, draw.one(LENGTHS)))
    chains = []
    for length in lengths:
        own = list(itertools.islice(left, length))
        follows = [Fact(one, draw.one(FOLLOW), other) for one, other in itertools.pairwise(own)]
        chains.append([*follows, Fact(own[-1], VISIT, next(cities))])
    return chains


def tour(draw: Draw, city: str, stops: int) -> str:
    """Some cities, the first one given, each with what takes one there."""
    others = [other for other in CITIES if other != city]
    legs = [f"{place} by {draw.one(VEHICLES)}" for place in (city, *draw.some(others, stops - 1))]
    return " and ".join(legs)


def fact_words() -> set[str]:
    """Return every word of a fact."""
    return split_all((*NAMES, *CITIES, *VEHICLES, *FOLLOW, VISIT, "by and ."))


@dataclass(frozen=True)
class Size:
    """How many facts a context tells, and which kinds are asked: a kind as often as it is named.

    Models are taught deep questions more often than they are asked them: what is rare in training, small models
    do not learn at all.
    """

    facts: int
    taught: tuple[Kind, ...]
    asked: tuple[Kind, ...]


_EASY: tuple[Kind, ...] = ("copy", "hop1", "hop1", "hop2")
_HARD: tuple[Kind, ...] = ("hop1", "hop2", "hop3", "hop3", "hop4", "hop4", "hop5", "hop5")
SIZES = {
    1: Size(4, _EASY, _EASY),
    2: Size(
        7,
        taught=("copy", "hop1", "hop1", "hop1", "hop2", "hop2", "hop3", "hop3", "hop4", "hop5"),
        asked=("copy", "hop1", "hop1", "hop1", "hop2", "hop2", "hop2", "hop2", "hop3", "hop4"),
    ),
    3: Size(10, _HARD, _HARD),
}
"""By level."""
LONG_ANSWERS = 0.3
STOPS = (2, 3)


def question(draw: Draw, level: int) -> Record:
    """Make one question with its context and answer, as the splits that measure have it."""
    return _question(draw, SIZES[level].facts, draw.one(SIZES[level].asked))


def exercise(draw: Draw, level: int) -> Record:
    """Make one question with its context and answer, as the splits that teach have it."""
    return _question(draw, SIZES[level].facts, draw.one(SIZES[level].taught))


def words() -> set[str]:
    """Return every word that a context, question or answer can hold."""
    return fact_words() | split_all(("where does end what the note say says ?",))


def _question(draw: Draw, n_facts: int, kind: Kind) -> Record:
    chains = draw_chains(draw, draw.some(NAMES, n_facts), 1 if kind == "copy" else int(kind[-1]))
    told = [_longer(draw, fact) for chain in chains for fact in chain]
    answering = told[len(chains[0]) - 1]
    asked = f"where does {chains[0][0].subject} end ?"
    if kind == "copy":
        answering, asked = Fact("the note", "says", tour(draw, draw.one(CITIES), 3)), "what does the note say ?"
        told[0] = answering
    told = draw.some(told, len(told))
    answer = _answer(answering, kind)
    context = " ".join(fact.text for fact in told)
    fields = {
        "title": chains[0][0].subject,
        "context": context,
        "question": asked,
        "answers": {"text": [text_of(answer)], "answer_start": [_start(told, answering)]},
    }
    return Record(fields, context, kinds_of(answer))


def _longer(draw: Draw, fact: Fact) -> Fact:
    """Make a longer journey of some visits."""
    if fact.verb != VISIT or not draw.chance(LONG_ANSWERS):
        return fact
    return replace(fact, object_=tour(draw, fact.object_, draw.one(STOPS)))


def _answer(fact: Fact, kind: Kind) -> Words:
    """The object of a fact: its first word takes the hops."""
    first, _, others = fact.object_.partition(" ")
    return of_kind(kind, first) + of_kind("copy", others)


def _start(told: Sequence[Fact], answering: Fact) -> int:
    """Return the character at which the answering fact's object begins in the context."""
    before = list(accumulate((len(fact.text) + 1 for fact in told), initial=0))
    return before[told.index(answering)] + len(f"{answering.subject} {answering.verb} ")
