"""Questions about a small world of people, told as a shuffled list of short facts.

Answers are exactly extractive. The number of hops of a question is the number of facts that its answer
needs; a copied answer is found by its cue words alone, without binding a name to anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from exitbench.tasks.builtin.draw import Draw
from exitbench.tasks.builtin.people import NAMES
from exitbench.tasks.builtin.words import Kind, Record, Words, kinds_of, of_kind, split_all, text_of

CITIES = ("Athens", "Berlin", "Dublin", "Geneva", "Lisbon", "Madrid", "Oslo", "Paris", "Prague", "Rome", "Vienna")
WORKPLACES = (
    "airport", "bakery", "bank", "factory", "farm", "hospital",
    "hotel", "library", "museum", "school", "station", "theatre",
)  # fmt: skip
COLOURS = ("blue", "golden", "green", "red", "silver", "yellow")
SIGNS = ("anchor", "candle", "crown", "lantern", "mirror", "star")

PEOPLE = 4
FACTS = 6
CHAIN = ("friend", "teacher")
QUESTION_KINDS: tuple[Kind, ...] = ("copy", "copy", "hop1", "hop1", "hop2", "hop3")


@dataclass(frozen=True)
class Fact:
    """A statement that ends in its object and a full stop; facts with one cue answer the same kind of question."""

    cue: str
    opening: str
    object_: str

    @property
    def text(self) -> str:
        """The statement."""
        return f"{self.opening} {self.object_} ."


@dataclass(frozen=True)
class World:
    """What is true of a few people: who is whose friend and teacher, where each lives and works."""

    people: Sequence[str]
    related: dict[tuple[str, str], str]
    home: dict[str, str]
    work: dict[str, str]

    def relation(self, relation: str, person: str) -> Fact:
        """Say who somebody's friend or teacher is."""
        return Fact(relation, f"the {relation} of {person} is", self.related[relation, person])

    def place(self, verb: str, person: str) -> Fact:
        """Say where somebody lives or works."""
        if verb == "live":
            return Fact(verb, f"{person} lives in", self.home[person])
        return Fact(verb, f"{person} works at", f"the {self.work[person]}")

    def facts(self) -> list[Fact]:
        """Say everything."""
        relations = [self.relation(relation, person) for relation in CHAIN for person in self.people]
        return relations + [self.place(verb, person) for verb in ("live", "work") for person in self.people]


def question(draw: Draw) -> Record:
    """Make one question with its context and answer."""
    world = _world(draw)
    kind = draw.one(QUESTION_KINDS)
    if kind == "copy":
        asked, needed = "what does the note say ?", [_note(draw)]
    else:
        asked, needed = _chain(draw, world, hops=int(kind[-1]))
    told = _told(draw, world, needed)
    answering = needed[-1]
    context = " ".join(fact.text for fact in told)
    answer = _answer(answering, kind)
    fields = {
        "title": world.people[0],
        "context": context,
        "question": asked,
        "answers": {"text": [text_of(answer)], "answer_start": [_start(told, answering)]},
    }
    return Record(fields, context, kinds_of(answer))


def words() -> set[str]:
    """Return every word that a context, question or answer can hold."""
    frame = "the of is lives in works at what does note say says where live work who ? ."
    return split_all((*NAMES, *CITIES, *WORKPLACES, *COLOURS, *SIGNS, *CHAIN, frame))


def _world(draw: Draw) -> World:
    """Draw people and what is true of them. Nobody is their own friend; no two share a place."""
    people = draw.some(NAMES, PEOPLE)
    homes, work = draw.some(CITIES, PEOPLE), draw.some(WORKPLACES, PEOPLE)
    related = {(r, p): draw.one([other for other in people if other != p]) for r in CHAIN for p in people}
    # The chain that questions follow from the first person leads to three different people.
    related |= {("friend", people[0]): people[1], ("teacher", people[1]): people[2]}
    return World(people, related, dict(zip(people, homes, strict=True)), dict(zip(people, work, strict=True)))


def _note(draw: Draw) -> Fact:
    return Fact("note", "the note says", f"{draw.one(COLOURS)} {draw.one(SIGNS)}")


def _chain(draw: Draw, world: World, hops: int) -> tuple[str, list[Fact]]:
    """Ask about somebody who is described by `hops - 1` relations; the needed facts, the answering one last.

    The last fact is a place, or, where a relation is left, a person.
    """
    person = world.people[0]
    described, needed = person, []
    for relation in CHAIN[: hops - 1]:
        needed.append(world.relation(relation, person))
        described, person = f"the {relation} of {described}", needed[-1].object_
    left = CHAIN[hops - 1 :]
    if left and draw.chance(1 / 3):
        return f"who is the {left[0]} of {described} ?", [*needed, world.relation(left[0], person)]
    verb = draw.one(("live", "work"))
    return f"where does {described} {verb} ?", [*needed, world.place(verb, person)]


def _told(draw: Draw, world: World, needed: list[Fact]) -> list[Fact]:
    """Hide the needed facts among others, `FACTS` in all, in random order.

    Each needed fact has a rival of the same cue about somebody else, so that no cue word alone gives an
    answer away. The note has none: whoever is asked for it copies.
    """
    told, others = list(needed), draw.some(world.facts(), PEOPLE * (len(CHAIN) + 2))
    for fact in needed:
        told += [other for other in others if other.cue == fact.cue and other not in told][:1]
    if len(told) < FACTS and all(fact.cue != "note" for fact in needed) and draw.chance(0.5):
        told.append(_note(draw))
    told += [other for other in others if other not in told][: FACTS - len(told)]
    return draw.some(told, FACTS)


def _answer(fact: Fact, kind: Kind) -> Words:
    """The object of a fact; its article is the same whatever the answer."""
    article, name = ("the", fact.object_[4:]) if fact.object_.startswith("the ") else ("", fact.object_)
    return of_kind("frame", article) + of_kind(kind, name)


def _start(told: list[Fact], answering: Fact) -> int:
    """Return the character at which the answering fact's object begins in the context."""
    before = list(accumulate((len(fact.text) + 1 for fact in told), initial=0))
    return before[told.index(answering)] + len(answering.opening) + 1
