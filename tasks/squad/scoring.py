"""Exact match and token F1 by the rules of the official SQuAD v1.1 evaluation (Rajpurkar et al. 2016)."""

import re
import string
from collections import Counter
from collections.abc import Iterable

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower the case, drop ASCII punctuation, then English articles, then surplus white space.

    The order matters: "a-b" becomes "ab" before articles are looked for, so its "a" stays.
    """
    without_punctuation = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", without_punctuation).split())


def exact_match(output: str, answers: Iterable[str]) -> float:
    """Return 1.0 if the output equals any answer after normalisation, else 0.0."""
    normalised = normalise(output)
    return float(any(normalised == normalise(answer) for answer in answers))


def token_f1(output: str, answers: Iterable[str]) -> float:
    """Return the highest bag-of-tokens F1 over the answers, 0..1.

    As in the official v1.1 script, two texts that are both empty after normalisation share no token: 0.
    """
    return max(_f1(normalise(output).split(), normalise(answer).split()) for answer in answers)


def _f1(output: list[str], answer: list[str]) -> float:
    shared = sum((Counter(output) & Counter(answer)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(output), shared / len(answer)
    return 2 * precision * recall / (precision + recall)
