"""Questions about where a person ends up, with a context of shuffled facts.

The facts describe a small world of people who follow each other to places. Every person has one fact: they visit a
place, or they follow another person and end up where that person does. The number of facts needed to answer is the
number of people on the way.

Answers are exactly extractive. The number of hops of a question is the number of facts that its answer needs. An answer
of kind `copy` needs none: it follows the words `the note says`. Only the first word of a long answer needs the hops;
the other words follow it in the context.
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
"""Number of facts in a chain, drawn with equal probability; repeated numbers are drawn more often."""
HOPS: tuple[Kind, ...] = ("hop1", "hop2", "hop3", "hop4", "hop5")


@dataclass(frozen=True)
class Fact:
    """Fact of a context, such as `Anna visits Rome .` or `Ben follows Anna .`: subject, verb, and object."""

    subject: str
    verb: str
    object_: str

    @property
    def text(self) -> str:
        """The fact as a sentence of words separated by spaces."""
        return f"{self.subject} {self.verb} {self.object_} ."


def draw_chains(draw: Draw, people: Sequence[str], first: int | None = None) -> list[list[Fact]]:
    """Draw chains of facts, one fact per person; each chain leads from person to person and ends at a place.

    Args:
        draw: Source of random choices.
        people: Names of the people, each the subject of one fact.
        first: Number of facts of the first chain; None: drawn at random.
    """
    remaining, cities = iter(people), iter(draw.sample(CITIES, len(people)))
    lengths: list[int] = [] if first is None else [first]
    while n := len(people) - sum(lengths):
        lengths.append(min(n, draw.choose(LENGTHS)))
    chains = []
    for length in lengths:
        members = list(itertools.islice(remaining, length))
        follows = [Fact(name, draw.choose(FOLLOW), other) for name, other in itertools.pairwise(members)]
        chains.append([*follows, Fact(members[-1], VISIT, next(cities))])
    return chains


def tour(draw: Draw, city: str, stops: int) -> str:
    """Return a text that lists `stops` cities, `city` first, each with a vehicle: ``Rome by car and Oslo by bus``."""
    other_cities = [other for other in CITIES if other != city]
    legs = [f"{place} by {draw.choose(VEHICLES)}" for place in (city, *draw.sample(other_cities, stops - 1))]
    return " and ".join(legs)


def fact_words() -> set[str]:
    """Return every word that a fact can contain."""
    return split_all((*NAMES, *CITIES, *VEHICLES, *FOLLOW, VISIT, "by and ."))


@dataclass(frozen=True)
class Size:
    """Size of a context, in facts, and the kinds of questions to draw from, at one difficulty level.

    A kind that is repeated is drawn more often. Deep questions are more frequent in training data than in evaluation
    data: small models do not learn what is rare in training.
    """

    facts: int
    training_kinds: tuple[Kind, ...]
    evaluation_kinds: tuple[Kind, ...]


_EASY: tuple[Kind, ...] = ("copy", "hop1", "hop1", "hop2")
_HARD: tuple[Kind, ...] = ("hop1", "hop2", "hop3", "hop3", "hop4", "hop4", "hop5", "hop5")
SIZES = {
    1: Size(4, _EASY, _EASY),
    2: Size(
        7,
        training_kinds=("copy", "hop1", "hop1", "hop1", "hop2", "hop2", "hop3", "hop3", "hop4", "hop5"),
        evaluation_kinds=("copy", "hop1", "hop1", "hop1", "hop2", "hop2", "hop2", "hop2", "hop3", "hop4"),
    ),
    3: Size(10, _HARD, _HARD),
}
"""Sizes per level."""
LONG_ANSWERS = 0.3
STOPS = (2, 3)


def question(draw: Draw, level: int) -> Record:
    """Generate one question with its context and answer, of a kind drawn with the frequencies of evaluation data.

    The kind says what the answer needs, such as `hop2`: two facts. `level` is the difficulty, 1 to 3.
    """
    return _question(draw, SIZES[level].facts, draw.choose(SIZES[level].evaluation_kinds))


def exercise(draw: Draw, level: int) -> Record:
    """Generate one question with its context and answer, of a kind drawn with the frequencies of training data.

    The kind says what the answer needs, such as `hop2`: two facts. `level` is the difficulty, 1 to 3.
    """
    return _question(draw, SIZES[level].facts, draw.choose(SIZES[level].training_kinds))


def words() -> set[str]:
    """Return every word that a context, question or answer can contain."""
    return fact_words() | split_all(("where does end what the note say says ?",))


def _question(draw: Draw, n_facts: int, kind: Kind) -> Record:
    chains = draw_chains(draw, draw.sample(NAMES, n_facts), 1 if kind == "copy" else int(kind[-1]))
    facts = [_maybe_with_tour(draw, fact) for chain in chains for fact in chain]
    answering = facts[len(chains[0]) - 1]
    question = f"where does {chains[0][0].subject} end ?"
    if kind == "copy":
        answering, question = Fact("the note", "says", tour(draw, draw.choose(CITIES), 3)), "what does the note say ?"
        facts[0] = answering
    facts = draw.sample(facts, len(facts))
    answer = _answer(answering, kind)
    context = " ".join(fact.text for fact in facts)
    fields = {
        "title": chains[0][0].subject,
        "context": context,
        "question": question,
        "answers": {"text": [text_of(answer)], "answer_start": [_start(facts, answering)]},
    }
    return Record(fields, context, kinds_of(answer))


def _maybe_with_tour(draw: Draw, fact: Fact) -> Fact:
    """Return the fact; sometimes, if it is a visit, with its place replaced by a tour of several cities."""
    if fact.verb != VISIT or not draw.chance(LONG_ANSWERS):
        return fact
    return replace(fact, object_=tour(draw, fact.object_, draw.choose(STOPS)))


def _answer(fact: Fact, kind: Kind) -> Words:
    """Return the object of a fact as words with kinds: `kind` for the first word, `copy` for the others."""
    first, _, remaining_words = fact.object_.partition(" ")
    return of_kind(kind, first) + of_kind("copy", remaining_words)


def _start(facts: Sequence[Fact], answering: Fact) -> int:
    """Return the character offset of the answering fact's object in the context."""
    before = list(accumulate((len(fact.text) + 1 for fact in facts), initial=0))
    return before[facts.index(answering)] + len(f"{answering.subject} {answering.verb} ")
