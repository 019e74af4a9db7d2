"""English sentences and their French: word order, agreement near and far, and words that depend on other words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from exitbench.tasks.builtin.draw import Draw
from exitbench.tasks.builtin.lexicon import (
    ADJECTIVES_AFTER,
    ADJECTIVES_BEFORE,
    ANIMALS,
    MOODS,
    NOUN_BY_EN,
    NOUNS,
    PARTS,
    STATES,
    VERBS,
    Inflected,
    Noun,
)
from exitbench.tasks.builtin.people import NAMES, is_woman
from exitbench.tasks.builtin.words import Kind, Record, Words, kinds_of, of_kind, split_all, text_of

# English to French by (feminine, plural); "de" swallows the article that follows it.
ARTICLES = (Inflected("the", "le", "la", "les", "les"), Inflected("a", "un", "une", "des", "des"))
OF_THE = Inflected("of the", "du", "de la", "des", "des")
VOWELS = "aeiou"
PLURAL_EN = {"the": "the", "a": "some"}


CONJUNCTIONS = (("but", "mais"), ("and", "et"), ("so", "donc"))
CLAUSES = {1: (1,), 2: (1, 2), 3: (2, 3)}
"""How many a sentence has, by level."""
RELATIVES = {1: 0.0, 2: 0.4, 3: 0.7}
"""How often a subject that something is said of has a relative clause, by level."""


@dataclass(frozen=True)
class Phrase:
    """A noun phrase in both languages, with what other words must agree with.

    `near` is the kind of what agrees with it: of its own phrase, or past another noun.
    """

    en: str
    fr: Words
    feminine: bool
    plural: bool
    living: bool
    named: bool = False
    near: Kind = "agreement"


@dataclass(frozen=True)
class Clause:
    """What is said, in both languages, and of whom."""

    en: str
    fr: Words
    subject: Phrase


def translation(draw: Draw, level: int) -> Record:
    """Make one sentence pair."""
    kind = draw.one(("action", "action", "state", "state", "part", "mood"))
    make = {"action": _action, "state": _state, "part": _part, "mood": _mood}[kind]
    clause = make(draw, level)
    en, fr = clause.en, clause.fr
    for _ in range(draw.one(CLAUSES[level]) - 1):
        more = _more(draw, clause.subject)
        conjunction, fr_conjunction = draw.one(CONJUNCTIONS)
        en, fr = f"{en} , {conjunction} {more.en}", (*fr, (",", "frame"), (fr_conjunction, "copy"), *more.fr)
    en, fr = f"{en} .", (*fr, (".", "end"))
    return Record({"en": en, "fr": text_of(fr)}, en, kinds_of(fr))


def words() -> set[str]:
    """Return every word that a sentence pair can hold."""
    inflected = (*ADJECTIVES_BEFORE, *ADJECTIVES_AFTER, *STATES, *MOODS, *ARTICLES, OF_THE)
    return (
        split_all(text for noun in NOUNS for text in (noun.en, noun.en_plural, noun.fr, noun.fr_plural))
        | split_all(text for word in inflected for text in (word.en, *word.fr_forms))
        | split_all(text for verb in VERBS for text in (*verb.en, *verb.fr_thing, *verb.fr_living))
        | split_all(text for part in PARTS for text in (part.en, *(fr for fr, _ in part.by_owner.values())))
        | split_all((*NAMES, *PLURAL_EN.values(), *(word for pair in CONJUNCTIONS for word in pair)))
        | split_all(("an with avec and et is est are sont that que he she it they il elle ils elles , .",))
    )


def _action(draw: Draw, level: int) -> Clause:
    """Somebody does something to somebody or something, perhaps with somebody."""
    subject = _person(draw) if draw.chance(0.4) else _noun_phrase(draw, draw.one(ANIMALS))
    clause = _does(draw, subject)
    if draw.chance(0.3):
        company = _person(draw)
        return Clause(f"{clause.en} with {company.en}", (*clause.fr, ("avec", "frame"), *company.fr), subject)
    return clause


def _does(draw: Draw, subject: Phrase) -> Clause:
    """A subject does something to somebody or something."""
    object_ = _person(draw) if draw.chance(0.2) else _noun_phrase(draw, draw.one(NOUNS))
    verb = draw.one(VERBS)
    fr_verb = (verb.fr_living if object_.living else verb.fr_thing)[subject.plural]
    kind: Kind = "lexical" if verb.ambiguous else "copy"
    return Clause(
        f"{subject.en} {verb.en[subject.plural]} {object_.en}", (*subject.fr, (fr_verb, kind), *object_.fr), subject
    )


def _state(draw: Draw, level: int) -> Clause:
    """Something is in a state, which agrees with it."""
    subject = _noun_phrase(draw, draw.one(NOUNS))
    if draw.chance(RELATIVES[level]):
        subject = _with_relative(draw, subject)
    return _predicate(subject, draw.one(STATES))


def _more(draw: Draw, subject: Phrase) -> Clause:
    """Something else is said of a subject, by its pronoun: its gender in French, its number and life in English."""
    if subject.named and not subject.plural:
        en = "she" if subject.feminine else "he"
    else:
        en = "they" if subject.plural else "it"
    fr = ("elle" if subject.feminine else "il") + ("s" if subject.plural else "")
    kind: Kind = "copy" if en in ("he", "she") else "distance"
    pronoun = Phrase(en, ((fr, kind),), subject.feminine, subject.plural, subject.living, subject.named, "distance")
    return _does(draw, pronoun) if subject.living and draw.chance(0.5) else _predicate(pronoun, draw.one(STATES))


def _with_relative(draw: Draw, phrase: Phrase) -> Phrase:
    """Put a clause with another noun between a phrase and what agrees with it."""
    by, verb = _noun_phrase(draw, draw.one(ANIMALS), ARTICLES[:1]), draw.one(VERBS)  # "que un" would need elision
    fr_verb = (verb.fr_living if phrase.living else verb.fr_thing)[by.plural]
    kind: Kind = "lexical" if verb.ambiguous else "copy"
    en = f"{phrase.en} that {by.en} {verb.en[by.plural]}"
    return replace(phrase, en=en, fr=(*phrase.fr, ("que", "copy"), *by.fr, (fr_verb, kind)), near="distance")


def _part(draw: Draw, level: int) -> Clause:
    """A part, whose translation depends on the whole, is in a state, which agrees with the translation."""
    part = draw.one(PARTS)
    owner = NOUN_BY_EN[draw.one(tuple(part.by_owner))]
    fr, feminine = part.by_owner[owner.en]
    plural = draw.chance(0.3)
    core = _core(draw, owner, plural)
    phrase = Phrase(
        f"the {part.en} of the {core.en}",
        (
            (ARTICLES[0].fr(feminine, plural=False), "agreement"),
            (fr, "lexical"),
            *of_kind("agreement", OF_THE.fr(owner.feminine, plural)),
            *core.fr,
        ),
        feminine,
        plural=False,
        living=False,
    )
    return _predicate(phrase, draw.one(STATES))


def _mood(draw: Draw, level: int) -> Clause:
    """One person, or two, and how they feel; the feminine plural is for women only."""
    first, second = draw.some(NAMES, 2)
    if draw.chance(0.4):
        return _predicate(_named(first), draw.one(MOODS))
    both = Phrase(
        f"{first} and {second}",
        ((first, "copy"), ("et", "frame"), (second, "copy")),
        feminine=is_woman(first) and is_woman(second),
        plural=True,
        living=True,
        named=True,
    )
    return _predicate(both, draw.one(MOODS))


def _predicate(subject: Phrase, state: Inflected) -> Clause:
    """Say that the subject is something."""
    ending = state.fr(subject.feminine, subject.plural)
    fr: Words = (*subject.fr, ("sont" if subject.plural else "est", "copy"), (ending, subject.near))
    return Clause(f"{subject.en} {'are' if subject.plural else 'is'} {state.en}", fr, subject)


def _person(draw: Draw) -> Phrase:
    return _named(draw.one(NAMES))


def _named(name: str) -> Phrase:
    return Phrase(name, ((name, "copy"),), is_woman(name), plural=False, living=True, named=True)


def _noun_phrase(draw: Draw, noun: Noun, articles: Sequence[Inflected] = ARTICLES) -> Phrase:
    """An article, a noun, and perhaps an adjective."""
    plural = draw.chance(0.4)
    article = draw.one(articles)
    core = _core(draw, noun, plural)
    one = "an" if article.en == "a" and core.en[0] in VOWELS else article.en
    return Phrase(
        f"{PLURAL_EN[article.en] if plural else one} {core.en}",
        ((article.fr(noun.feminine, plural), "agreement"), *core.fr),
        noun.feminine,
        plural,
        noun.living,
    )


def _core(draw: Draw, noun: Noun, plural: bool) -> Phrase:
    """A noun with or without an adjective, which in French stands before or after it, as the adjective wants."""
    en = noun.en_plural if plural else noun.en
    fr: Words = ((noun.fr_plural if plural else noun.fr, "copy"),)
    if draw.chance(0.5):
        adjective = draw.one(ADJECTIVES_BEFORE + ADJECTIVES_AFTER)
        ending: Words = ((adjective.fr(noun.feminine, plural), "agreement"),)
        en, fr = f"{adjective.en} {en}", (ending + fr if adjective in ADJECTIVES_BEFORE else fr + ending)
    return Phrase(en, fr, noun.feminine, plural, noun.living)
