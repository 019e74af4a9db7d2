"""Languages of translation tasks: how prompts name them, and how sacrebleu cuts them into words."""

import re
from difflib import get_close_matches
from typing import Final, NamedTuple

from exitbench.errors import UserError

LANGUAGES: Final = {
    "bn": "Bengali",
    "cs": "Czech",
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "et": "Estonian",
    "fi": "Finnish",
    "fr": "French",
    "gu": "Gujarati",
    "ha": "Hausa",
    "hi": "Hindi",
    "hr": "Croatian",
    "hu": "Hungarian",
    "is": "Icelandic",
    "it": "Italian",
    "iu": "Inuktitut",
    "ja": "Japanese",
    "kk": "Kazakh",
    "km": "Khmer",
    "ko": "Korean",
    "liv": "Livonian",
    "lt": "Lithuanian",
    "lv": "Latvian",
    "nl": "Dutch",
    "pl": "Polish",
    "ps": "Pashto",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sah": "Yakut",
    "ta": "Tamil",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "xh": "Xhosa",
    "zh": "Chinese",
    "zu": "Zulu",
}
"""Those of the news tests of WMT, and of IWSLT."""

TOKENIZERS: Final = {"zh": "zh", "ja": "char", "ko": "char", "km": "char"}
"""sacrebleu's, of languages without spaces between words; for all others its default, 13a."""

_HUB: Final = {
    "wmt": "wmt/wmt14",
    "wmt14": "wmt/wmt14",
    "wmt15": "wmt/wmt15",
    "wmt16": "wmt/wmt16",
    "wmt17": "wmt/wmt17",
    "wmt18": "wmt/wmt18",
    "wmt19": "wmt/wmt19",
}
_LOCAL_ONLY: Final = ("wmt20", "wmt21", "wmt22", "wmt23", "iwslt14", "iwslt17")
_NAME: Final = re.compile(r"(?P<of>[a-z]+\d*)-(?P<source>[a-z]{2,3})-(?P<target>[a-z]{2,3})")


class Pair(NamedTuple):
    """A data set, and from which language to which.

    Attributes:
        hub: Name of the data set on the hub; None where it has none.
    """

    of: str
    source: str
    target: str
    hub: str | None


def is_pair(name: str) -> bool:
    """Whether a name has the form of a translation task's, such as `wmt16-ro-en`."""
    found = _NAME.fullmatch(name)
    return found is not None and found["of"] in (*_HUB, *_LOCAL_ONLY)


def pair_of(name: str) -> Pair:
    """Return the pair of a translation task, by its name.

    Raises:
        UserError: It names a language that is not known, or one twice.
    """
    found = _NAME.fullmatch(name)
    assert found is not None, "is_pair has been asked"
    of, source, target = found.group("of", "source", "target")
    for language in (source, target):
        if language not in LANGUAGES:
            close = get_close_matches(language, LANGUAGES, n=1)
            hint = f" Did you mean {name.replace(language, close[0])!r}?" if close else ""
            raise UserError(f"unknown task {name!r}.{hint} Languages: {', '.join(LANGUAGES)}.")
    if source == target:
        raise UserError(f"unknown task {name!r}: it translates from {source} to itself.")
    return Pair(of, source, target, _HUB.get(of))
