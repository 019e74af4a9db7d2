"""Questions about where somebody ends, with a context of shuffled facts.

Answers are exactly extractive. The number of hops of a question is the number of facts that its answer
needs; a copied answer is found by its cue words alone, without binding a name to anything. Of a long
answer only the first word takes the hops: the others follow it in the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from exitbench.tasks.builtin import facts
from exitbench.tasks.builtin.draw import Draw
from exitbench.tasks.builtin.facts import CITIES, VISIT, Fact, draw_chains, tour
from exitbench.tasks.builtin.people import NAMES
from exitbench.tasks.builtin.words import Kind, Record, Words, kinds_of, of_kind, split_all, text_of


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
    return facts.words() | split_all(("where does end what the note say says ?",))


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
