"""A small world of people who follow each other to the places that some of them visit, told in short facts.

Everybody has one fact; whoever follows somebody ends where that person does. So where somebody ends takes as many
facts as there are people on the way.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from exitbench.tasks.builtin.draw import Draw
from exitbench.tasks.builtin.people import NAMES
from exitbench.tasks.builtin.words import Kind, split_all

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


def words() -> set[str]:
    """Return every word of a fact."""
    return split_all((*NAMES, *CITIES, *VEHICLES, *FOLLOW, VISIT, "by and ."))
