"""The English and French of the built-in translation task.

No French noun begins with a vowel, so that there is no elision to get right.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Noun:
    """A noun in both numbers, with its French gender; `living` decides between translations of some verbs."""

    en: str
    en_plural: str
    fr: str
    fr_plural: str
    feminine: bool
    living: bool = False


@dataclass(frozen=True)
class Inflected:
    """An adjective or participle: English, and French by (feminine, plural)."""

    en: str
    masculine: str
    feminine: str
    masculine_plural: str
    feminine_plural: str

    def fr(self, feminine: bool, plural: bool) -> str:
        """Return the French form."""
        singular, plurals = (self.masculine, self.feminine), (self.masculine_plural, self.feminine_plural)
        return (plurals if plural else singular)[feminine]

    @property
    def fr_forms(self) -> tuple[str, ...]:
        """All French forms."""
        return (self.masculine, self.feminine, self.masculine_plural, self.feminine_plural)


@dataclass(frozen=True)
class Verb:
    """Third person singular and plural; the French pair may depend on whether the object lives."""

    en: tuple[str, str]
    fr_thing: tuple[str, str]
    fr_living: tuple[str, str]

    @property
    def ambiguous(self) -> bool:
        """Whether the object decides the translation."""
        return self.fr_thing != self.fr_living


@dataclass(frozen=True)
class Part:
    """A noun whose translation depends on what it is a part of: owner (English) to (French, feminine)."""

    en: str
    by_owner: Mapping[str, tuple[str, bool]]


def _regular(en: str, masculine: str) -> Inflected:
    """An adjective with the regular endings -e, -s, -es."""
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
