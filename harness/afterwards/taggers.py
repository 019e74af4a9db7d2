"""Part-of-speech taggers: spaCy and Stanza, if one of them is installed with a model.

Neither library is a dependency: their models are not on the Python Package Index, and each model is for one language.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Protocol

from exitbench.errors import UserError, suggestion

NO_WORD: Final = ("", "SPACE")
"""Tags that are not universal parts of speech."""


@dataclass(frozen=True)
class Word:
    """A word of a text with its universal part-of-speech tag.

    Attributes:
        start: Offset of the first character of the word in the text.
        end: Offset after the last character of the word.
        upos: Universal part-of-speech tag.
    """

    start: int
    end: int
    upos: str


class Tagger(Protocol):
    """Protocol of a loaded model for part-of-speech tags.

    Attributes:
        name: Names and versions of library and model; stored with the tags.
    """

    name: str

    def words(self, text: str) -> Sequence[Word]:
        """Return the words of a text with their tags, in order."""
        ...


class SpacyTagger:
    """Part-of-speech tagger that wraps a spaCy pipeline."""

    def __init__(self, model: str) -> None:
        spacy = import_module("spacy")
        try:
            self._pipeline: Any = spacy.load(model, exclude=["ner", "lemmatizer"])
        except OSError as error:
            raise UserError(
                f"spaCy has no model {model!r}. `python -m spacy download {model}` installs it; --model names another, "
                "or a folder."
            ) from error
        meta = self._pipeline.meta
        self.name = f"spacy {spacy.__version__} {meta['lang']}_{meta['name']} {meta['version']}"
        if not self._pipeline("word").has_annotation("POS"):
            raise UserError(
                f"spaCy's {model!r} sets no parts of speech; its components are "
                f"{', '.join(self._pipeline.pipe_names) or 'none'}. --model names another."
            )

    def words(self, text: str) -> Sequence[Word]:
        """Return the words of a text with their tags, in order."""
        return [Word(word.idx, word.idx + len(word), word.pos_) for word in self._pipeline(text)]


class StanzaTagger:
    """Part-of-speech tagger that wraps a Stanza pipeline for one language."""

    def __init__(self, model: str) -> None:
        stanza = import_module("stanza")
        try:
            # No download here: models that results depend on must be installed explicitly.
            self._pipeline: Any = stanza.Pipeline(
                model, processors="tokenize,mwt,pos", download_method=None, verbose=False
            )
        except Exception as error:  # Stanza's errors have no common base class
            raise UserError(
                f"Stanza has no model {model!r}: {error} `python -c \"import stanza; stanza.download('{model}')\"` "
                "installs it; --model names another language."
            ) from error
        self.name = f"stanza {stanza.__version__} {model}"

    def words(self, text: str) -> Sequence[Word]:
        """Return the words of a text with their tags, in order; a multi-word token has the tag of its first word."""
        tokens = (token for sentence in self._pipeline(text).sentences for token in sentence.tokens)
        return [Word(token.start_char, token.end_char, token.words[0].upos) for token in tokens]


@dataclass(frozen=True)
class _Kind:
    module: str
    default_model: str
    load: Callable[[str], Tagger]


TAGGERS: Final[Mapping[str, _Kind]] = {
    "spacy": _Kind("spacy", "en_core_web_sm", SpacyTagger),
    "stanza": _Kind("stanza", "en", StanzaTagger),
}
"""Taggers by command-line name; the first tagger that is installed is the default."""


def load_tagger(name: str | None, model: str | None) -> Tagger:
    """Load a part-of-speech tagger.

    Args:
        name: Library: a key of `TAGGERS`; None for the first library that is installed.
        model: Name of a model of that library; None for an English model.

    Raises:
        UserError: The library or the model is not installed, or the model gives no tags; the message suggests a fix.
    """
    if name is not None and name not in TAGGERS:
        raise UserError(f"no tagger {name!r}.{suggestion(name, TAGGERS)}")
    names = TAGGERS if name is None else [name]
    kind = next((TAGGERS[each] for each in names if find_spec(TAGGERS[each].module)), None)
    if kind is None:
        raise UserError(
            f"{' or '.join(names)} must be installed to tag words, with a model: for English, "
            "`pip install spacy && python -m spacy download en_core_web_sm`, or "
            "`pip install stanza && python -c \"import stanza; stanza.download('en')\"`."
        )
    return kind.load(model or kind.default_model)


def tags_of(pieces: Sequence[str], words: Sequence[Word]) -> Iterator[str | None]:
    """Yield, for each token of a text, the tag of the word to which the token belongs; None if it belongs to no word.

    Args:
        pieces: Token texts whose concatenation is the text.
        words: Tagged words of the text, in order.
    """
    start = 0
    for piece in pieces:
        end = start + len(piece)
        overlaps = [(min(end, word.end) - max(start, word.start), word.upos) for word in words]
        # A piece that overlaps several words belongs to the one with the largest overlap; ties go to the first.
        most, upos = max(overlaps, key=lambda pair: pair[0], default=(0, ""))
        yield upos if most > 0 and upos not in NO_WORD else None
        start = end
