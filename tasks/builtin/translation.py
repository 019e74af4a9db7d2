"""English sentences and their French translations: word order, near and distant agreement, lexical ambiguity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from exitbench.tasks.builtin.words import (
    NAMES,
    Draw,
    Kind,
    Record,
    Words,
    is_woman,
    kinds_of,
    of_kind,
    split_all,
    text_of,
)


@dataclass(frozen=True)
class Noun:
    """English noun with its French translation and gender; `living` selects the translation of some verbs."""

    en: str
    en_plural: str
    fr: str
    fr_plural: str
    feminine: bool
    living: bool = False


@dataclass(frozen=True)
class Inflected:
    """English adjective, participle or article, with its four French forms by gender and number."""

    en: str
    masculine: str
    feminine: str
    masculine_plural: str
    feminine_plural: str

    def fr(self, feminine: bool, plural: bool) -> str:
        """Return the French form with this gender and number."""
        singular, plurals = (self.masculine, self.feminine), (self.masculine_plural, self.feminine_plural)
        return (plurals if plural else singular)[feminine]

    @property
    def fr_forms(self) -> tuple[str, ...]:
        """All four French forms."""
        return (self.masculine, self.feminine, self.masculine_plural, self.feminine_plural)


@dataclass(frozen=True)
class Verb:
    """English verb with its French translations, each as (third person singular, third person plural).

    The translation may depend on whether the object is living.
    """

    en: tuple[str, str]
    fr_thing: tuple[str, str]
    fr_living: tuple[str, str]

    @property
    def ambiguous(self) -> bool:
        """True if the French translation depends on whether the object is living."""
        return self.fr_thing != self.fr_living


@dataclass(frozen=True)
class Part:
    """English noun for a part, whose French translation depends on the whole, such as the key of a piano or of a car.

    Attributes:
        en: The English noun.
        by_owner: French noun, and whether it is feminine, by the English noun of the whole.
    """

    en: str
    by_owner: Mapping[str, tuple[str, bool]]


def _regular(en: str, masculine: str) -> Inflected:
    """Return an adjective whose French forms end regularly in -e, -s and -es."""
    return Inflected(en, masculine, f"{masculine}e", f"{masculine}s", f"{masculine}es")


ANIMALS = (
    Noun("cat", "cats", "chat", "chats", False, living=True),
    Noun("dog", "dogs", "chien", "chiens", False, living=True),
    Noun("duck", "ducks", "canard", "canards", False, living=True),
    Noun("cow", "cows", "vache", "vaches", True, living=True),
    Noun("mouse", "mice", "souris", "souris", True, living=True),
    Noun("goat", "goats", "chèvre", "chèvres", True, living=True),
)
THINGS = (
    Noun("house", "houses", "maison", "maisons", True),
    Noun("car", "cars", "voiture", "voitures", True),
    Noun("door", "doors", "porte", "portes", True),
    Noun("chair", "chairs", "chaise", "chaises", True),
    Noun("apple", "apples", "pomme", "pommes", True),
    Noun("book", "books", "livre", "livres", False),
    Noun("bag", "bags", "sac", "sacs", False),
    Noun("boat", "boats", "bateau", "bateaux", False),
    Noun("garden", "gardens", "jardin", "jardins", False),
    Noun("lemon", "lemons", "citron", "citrons", False),
    Noun("piano", "pianos", "piano", "pianos", False),
    Noun("shop", "shops", "magasin", "magasins", False),
)
NOUNS = ANIMALS + THINGS
NOUN_BY_EN = {noun.en: noun for noun in NOUNS}

ADJECTIVES_BEFORE = (
    _regular("small", "petit"),
    _regular("big", "grand"),
    Inflected("old", "vieux", "vieille", "vieux", "vieilles"),
)
ADJECTIVES_AFTER = (
    Inflected("red", "rouge", "rouge", "rouges", "rouges"),
    _regular("green", "vert"),
    _regular("black", "noir"),
    Inflected("white", "blanc", "blanche", "blancs", "blanches"),
)
STATES = (
    _regular("lost", "perdu"),
    _regular("sold", "vendu"),
    _regular("found", "trouvé"),
    _regular("washed", "lavé"),
)
MOODS = (
    Inflected("happy", "heureux", "heureuse", "heureux", "heureuses"),
    _regular("tired", "fatigué"),
    _regular("sick", "souffrant"),
)

PLAIN_VERBS = (
    Verb(("sees", "see"), ("voit", "voient"), ("voit", "voient")),
    Verb(("likes", "like"), ("aime", "aiment"), ("aime", "aiment")),
    Verb(("hides", "hide"), ("cache", "cachent"), ("cache", "cachent")),
)
AMBIGUOUS_VERBS = (
    Verb(("takes", "take"), ("prend", "prennent"), ("emmène", "emmènent")),
    Verb(("leaves", "leave"), ("laisse", "laissent"), ("quitte", "quittent")),
    Verb(("misses", "miss"), ("rate", "ratent"), ("regrette", "regrettent")),
)
VERBS = PLAIN_VERBS + AMBIGUOUS_VERBS

PARTS = (
    Part("key", {"piano": ("touche", True)} | dict.fromkeys(("house", "car", "door", "shop"), ("clé", True))),
    Part("foot", {"chair": ("pied", False)} | dict.fromkeys(("cat", "dog", "mouse"), ("patte", True))),
    Part("skin", dict.fromkeys(("apple", "lemon"), ("pelure", True)) | dict.fromkeys(("cow", "goat"), ("cuir", False))),
    Part("bill", {"duck": ("bec", False)} | dict.fromkeys(("shop", "garden", "boat"), ("facture", True))),
)


# English to French by (feminine, plural); "de" merges with the following article.
ARTICLES = (Inflected("the", "le", "la", "les", "les"), Inflected("a", "un", "une", "des", "des"))
OF_THE = Inflected("of the", "du", "de la", "des", "des")
VOWELS = "aeiou"
PLURAL_EN = {"the": "the", "a": "some"}


CONJUNCTIONS = (("but", "mais"), ("and", "et"), ("so", "donc"))
CLAUSES = {1: (1,), 2: (1, 2), 3: (2, 3)}
"""Possible numbers of clauses in a sentence, per level."""
RELATIVES = {1: 0.0, 2: 0.4, 3: 0.7}
"""Probability that the subject of a state has a relative clause, per level."""


@dataclass(frozen=True)
class Phrase:
    """Noun phrase in both languages, with the features (gender, number, ...) that other words must agree with.

    `near` is the kind of French words that agree with the phrase: `agreement`, or `distance` if another noun stands
    between.
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
    """Clause in English and French, and its subject."""

    en: str
    fr: Words
    subject: Phrase


def translation(draw: Draw, level: int) -> Record:
    """Generate one English sentence and its French translation, at a difficulty level (1 to 3)."""
    kind = draw.choose(("action", "action", "state", "state", "part", "mood"))
    make = {"action": _action, "state": _state, "part": _part, "mood": _mood}[kind]
    clause = make(draw, level)
    en, fr = clause.en, clause.fr
    for _ in range(draw.choose(CLAUSES[level]) - 1):
        more = _pronoun_clause(draw, clause.subject)
        conjunction, fr_conjunction = draw.choose(CONJUNCTIONS)
        en, fr = f"{en} , {conjunction} {more.en}", (*fr, (",", "frame"), (fr_conjunction, "copy"), *more.fr)
    en, fr = f"{en} .", (*fr, (".", "end"))
    return Record({"en": en, "fr": text_of(fr)}, en, kinds_of(fr))


def words() -> set[str]:
    """Return every word that a sentence pair can contain."""
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
    """Return a clause with subject, verb and object, sometimes followed by a companion (`with Anna`)."""
    subject = _person(draw) if draw.chance(0.4) else _noun_phrase(draw, draw.choose(ANIMALS))
    clause = _transitive_clause(draw, subject)
    if draw.chance(0.3):
        company = _person(draw)
        return Clause(f"{clause.en} with {company.en}", (*clause.fr, ("avec", "frame"), *company.fr), subject)
    return clause


def _transitive_clause(draw: Draw, subject: Phrase) -> Clause:
    """Return a clause with the given subject, and a random verb and object."""
    object_ = _person(draw) if draw.chance(0.2) else _noun_phrase(draw, draw.choose(NOUNS))
    verb = draw.choose(VERBS)
    fr_verb = (verb.fr_living if object_.living else verb.fr_thing)[subject.plural]
    kind: Kind = "lexical" if verb.ambiguous else "copy"
    return Clause(
        f"{subject.en} {verb.en[subject.plural]} {object_.en}", (*subject.fr, (fr_verb, kind), *object_.fr), subject
    )


def _state(draw: Draw, level: int) -> Clause:
    """Return a clause that says that a thing or an animal is in a state, such as `the cat is lost`.

    The French participle agrees with the noun.
    """
    subject = _noun_phrase(draw, draw.choose(NOUNS))
    if draw.chance(RELATIVES[level]):
        subject = _with_relative(draw, subject)
    return _predicate(subject, draw.choose(STATES))


def _pronoun_clause(draw: Draw, subject: Phrase) -> Clause:
    """Return another clause about the subject of the previous one, replaced by a pronoun.

    The French pronoun depends on gender and number, the English one on number and animacy.
    """
    if subject.named and not subject.plural:
        en = "she" if subject.feminine else "he"
    else:
        en = "they" if subject.plural else "it"
    fr = ("elle" if subject.feminine else "il") + ("s" if subject.plural else "")
    kind: Kind = "copy" if en in ("he", "she") else "distance"
    pronoun = Phrase(en, ((fr, kind),), subject.feminine, subject.plural, subject.living, subject.named, "distance")
    return (
        _transitive_clause(draw, pronoun)
        if subject.living and draw.chance(0.5)
        else _predicate(pronoun, draw.choose(STATES))
    )


def _with_relative(draw: Draw, phrase: Phrase) -> Phrase:
    """Return a phrase with a relative clause, whose noun separates the phrase from the words that agree with it."""
    by, verb = _noun_phrase(draw, draw.choose(ANIMALS), ARTICLES[:1]), draw.choose(VERBS)  # "que un" would need elision
    fr_verb = (verb.fr_living if phrase.living else verb.fr_thing)[by.plural]
    kind: Kind = "lexical" if verb.ambiguous else "copy"
    en = f"{phrase.en} that {by.en} {verb.en[by.plural]}"
    return replace(phrase, en=en, fr=(*phrase.fr, ("que", "copy"), *by.fr, (fr_verb, kind)), near="distance")


def _part(draw: Draw, level: int) -> Clause:
    """Return a clause about the state of a part, such as `the key of the piano is lost`.

    The French noun of the part depends on the whole, and the participle agrees with that noun.
    """
    part = draw.choose(PARTS)
    owner = NOUN_BY_EN[draw.choose(tuple(part.by_owner))]
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
    return _predicate(phrase, draw.choose(STATES))


def _mood(draw: Draw, level: int) -> Clause:
    """Return a clause about the mood of one or two people.

    The French adjective is feminine plural for two women only.
    """
    first, second = draw.sample(NAMES, 2)
    if draw.chance(0.4):
        return _predicate(_named(first), draw.choose(MOODS))
    both = Phrase(
        f"{first} and {second}",
        ((first, "copy"), ("et", "frame"), (second, "copy")),
        feminine=is_woman(first) and is_woman(second),
        plural=True,
        living=True,
        named=True,
    )
    return _predicate(both, draw.choose(MOODS))


def _predicate(subject: Phrase, state: Inflected) -> Clause:
    """Return a clause that says that the subject is in a state, such as `the cat is lost`."""
    ending = state.fr(subject.feminine, subject.plural)
    fr: Words = (*subject.fr, ("sont" if subject.plural else "est", "copy"), (ending, subject.near))
    return Clause(f"{subject.en} {'are' if subject.plural else 'is'} {state.en}", fr, subject)


def _person(draw: Draw) -> Phrase:
    return _named(draw.choose(NAMES))


def _named(name: str) -> Phrase:
    return Phrase(name, ((name, "copy"),), is_woman(name), plural=False, living=True, named=True)


def _noun_phrase(draw: Draw, noun: Noun, articles: Sequence[Inflected] = ARTICLES) -> Phrase:
    """Return a phrase of a random article, the noun, and sometimes an adjective."""
    plural = draw.chance(0.4)
    article = draw.choose(articles)
    core = _core(draw, noun, plural)
    article_en = "an" if article.en == "a" and core.en[0] in VOWELS else article.en
    return Phrase(
        f"{PLURAL_EN[article.en] if plural else article_en} {core.en}",
        ((article.fr(noun.feminine, plural), "agreement"), *core.fr),
        noun.feminine,
        plural,
        noun.living,
    )


def _core(draw: Draw, noun: Noun, plural: bool) -> Phrase:
    """Return the noun without an article, sometimes with an adjective, before or after the noun as French requires."""
    en = noun.en_plural if plural else noun.en
    fr: Words = ((noun.fr_plural if plural else noun.fr, "copy"),)
    if draw.chance(0.5):
        adjective = draw.choose(ADJECTIVES_BEFORE + ADJECTIVES_AFTER)
        ending: Words = ((adjective.fr(noun.feminine, plural), "agreement"),)
        en, fr = f"{adjective.en} {en}", (ending + fr if adjective in ADJECTIVES_BEFORE else fr + ending)
    return Phrase(en, fr, noun.feminine, plural, noun.living)
