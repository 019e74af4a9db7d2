"""Translation of sentences, in any pair of languages and either direction."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.bleu import BLEUScore

from exitbench.errors import UserError
from exitbench.tasks.base import FloatArray, Task
from exitbench.tasks.document import Document, DocumentScore
from exitbench.tasks.sources import read_hub, read_parallel, read_tab_separated
from exitbench.tasks.styles import StyleTexts

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
"""Languages of WMT's news tests and of IWSLT."""

TOKENIZERS: Final = {"zh": "zh", "ja": "char", "ko": "char", "km": "char"}
"""sacrebleu's tokenizers for languages without spaces between words; all others use its default, 13a."""

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
_NAME: Final = re.compile(r"(?P<data_set>[a-z]+\d*)-(?P<source>[a-z]{2,3})-(?P<target>[a-z]{2,3})")


class LanguagePair(NamedTuple):
    """Data set and languages that the name of a translation task stands for.

    Attributes:
        data_set: Name of the data set, such as `wmt16`.
        source: Code of the source language, such as `ro`.
        target: Code of the target language.
        hub: Name of the data set on the hub; None if it is not there.
    """

    data_set: str
    source: str
    target: str
    hub: str | None


def is_pair(name: str) -> bool:
    """Return whether a name has the form of a translation task's name, such as `wmt16-ro-en`."""
    match = _NAME.fullmatch(name)
    return match is not None and match["data_set"] in (*_HUB, *_LOCAL_ONLY)


def parse_pair(name: str) -> LanguagePair:
    """Parse the name of a translation task into its data set and languages.

    Raises:
        UserError: The name contains an unknown language, or the same language twice.
    """
    match = _NAME.fullmatch(name)
    assert match is not None, "`is_pair` was checked before"
    data_set, source, target = match.group("data_set", "source", "target")
    for language in (source, target):
        if language not in LANGUAGES:
            close = get_close_matches(language, LANGUAGES, n=1)
            hint = f" Did you mean {name.replace(language, close[0])!r}?" if close else ""
            raise UserError(f"unknown task {name!r}.{hint} Languages: {', '.join(LANGUAGES)}.")
    if source == target:
        raise UserError(f"unknown task {name!r}: it translates from {source} to itself.")
    return LanguagePair(data_set, source, target, _HUB.get(data_set))


_CHRF = CHRF()
_ORDER = BLEU().max_ngram_order
_KEPT: Final = 16
"""Size of the cache of sacrebleu's results: a document's statistics and score come from the same result."""


class Bleu:
    """BLEU with one of sacrebleu's tokenizers."""

    def __init__(self, tokenizer: str = "13a") -> None:
        self.corpus = BLEU(tokenize=tokenizer)
        # For single sentences, sacrebleu omits n-gram orders that are longer than the sentence.
        self._sentence = BLEU(tokenize=tokenizer, effective_order=True)

    def statistics(self, output: str, reference: str) -> list[float]:
        """Return the ten counts of a sentence from which BLEU of a corpus is computed.

        In order: tokens of the output, tokens of the reference, n-grams of the output that match the reference for
        n = 1..4, and all n-grams of the output for n = 1..4.
        """
        score = _sentence_bleu(self._sentence, output, reference)
        return [float(count) for count in (score.sys_len, score.ref_len, *score.counts, *score.totals)]

    def sentence_score(self, output: str, reference: str) -> float:
        """Return sacrebleu's sentence BLEU of an output, 0..100."""
        return float(_sentence_bleu(self._sentence, output, reference).score)


@functools.lru_cache(_KEPT)
def _sentence_bleu(metric: BLEU, output: str, reference: str) -> BLEUScore:
    return metric.sentence_score(output, [reference])


bleu_by = functools.cache(Bleu)
"""Cached constructor: one `Bleu` object per tokenizer."""


@functools.cache
def signature(bleu: Bleu) -> str:
    """Return sacrebleu's signatures of BLEU and chrF, which contain all their settings and sacrebleu's version."""
    for metric in (bleu.corpus, _CHRF):
        metric.corpus_score(["a"], [["a"]])  # sets the number of references in the signature
    return f"bleu[{bleu.corpus.get_signature()}] chrf[{_CHRF.get_signature()}]"


def sentence_chrf(output: str, reference: str) -> float:
    """Return sacrebleu's sentence chrF of an output, 0..100."""
    return float(_CHRF._aggregate_and_compute([_chrf_counts(output, reference)]).score)


def chrf_statistics(output: str, reference: str) -> list[float]:
    """Return the character n-gram counts (output, reference, matching) for each n from 1 to 6, [18]."""
    return [float(count) for count in _chrf_counts(output, reference)]


@functools.lru_cache(_KEPT)
def _chrf_counts(output: str, reference: str) -> Sequence[int]:
    # sacrebleu has no other per-segment counts; its own significance tests use the same method
    counts: Sequence[int] = _CHRF._extract_corpus_statistics([output], [[reference]])[0]
    return counts


def corpus_bleu(total: FloatArray) -> FloatArray:
    """Return corpus BLEU (exponential smoothing), 0..100.

    Args:
        total: [..., 10] sums over documents of `Bleu.statistics`.
    """
    system_length, reference_length = total[..., 0], total[..., 1]
    correct, count = total[..., 2 : 2 + _ORDER], total[..., 2 + _ORDER :]
    # The k-th order without a match gets 1 / 2^k matches (mteval-v13a's smoothing).
    missed = np.cumsum(correct == 0, axis=-1)
    smoothed = np.where(correct == 0, 0.5**missed, correct)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_precision = np.log(smoothed / count).mean(axis=-1)
        brevity = np.minimum(1.0, np.exp(1 - reference_length / system_length))
        score = 100 * brevity * np.exp(log_precision)
    return np.where(correct.any(axis=-1) & count.all(axis=-1), score, 0.0)


def corpus_chrf(total: FloatArray) -> FloatArray:
    """Return corpus chrF, 0..100.

    Args:
        total: [..., 18] sums over documents of `chrf_statistics`.
    """
    counts = total.reshape(*total.shape[:-1], -1, 3)
    hypothesis, reference, match = counts[..., 0], counts[..., 1], counts[..., 2]
    # Orders that either side is too short for are excluded from both means. sacrebleu counts the hypothesis only if the
    # reference has n-grams of that order, so its count covers both sides.
    used = hypothesis > 0
    orders = np.maximum(used.sum(axis=-1), 1)
    precision = np.divide(match, hypothesis, out=np.zeros_like(match), where=used).sum(axis=-1) / orders
    recall = np.divide(match, reference, out=np.zeros_like(match), where=used).sum(axis=-1) / orders
    weight = _CHRF.beta**2
    both = np.asarray(weight * precision + recall)
    score: FloatArray = np.zeros_like(both)
    np.divide(100 * (1 + weight) * precision * recall, both, out=score, where=both > 0)
    return score


class Translation(Task):
    """Translation of sentences from one language to another: WMT, IWSLT, and any other sentence pairs.

    Metrics: `bleu` and `chrf`, 0..100, corpus scores equal to sacrebleu's; a document's value is the sentence score.

    Local files: one per language, aligned line by line, with the languages' codes as roles (`en` and `fr`). Or one
    tab-separated file with the role `pairs`, whose first column is English.

    Args:
        name: Data set and languages, such as `wmt-en-fr`, `wmt16-ro-en`, `iwslt14-de-en`. The data set matters for the
            hub source only; `wmt` is WMT14.

    Raises:
        UserError: The name contains an unknown language, or the same language twice.
    """

    metrics = ("bleu", "chrf")
    consistency_metric = "chrf"
    default_max_new_tokens = 128

    def __init__(self, name: str) -> None:
        self.name, self.pair = name, parse_pair(name)
        self._bleu = bleu_by(TOKENIZERS.get(self.pair.target, "13a"))
        self.metric_version = signature(self._bleu)
        self.local_roles = (frozenset({self.pair.source, self.pair.target}), frozenset({"pairs"}))
        source, target = LANGUAGES[self.pair.source], LANGUAGES[self.pair.target]
        self.style_texts = StyleTexts(
            instruction=f"Translate the sentence from {source} to {target}.",
            chat_instruction="Write only the translation.",
            question=f"{source}: {{{self.pair.source}}}",
            cue=f"{target}:",
            stop="\n",
            fields=("id", self.pair.source),
            hub_split="validation",
        )

    def prompt(self, doc: Document) -> str:
        """Return the prompt in T5's format: the sentence after, for example, `translate English to French:`."""
        source, target = LANGUAGES[self.pair.source], LANGUAGES[self.pair.target]
        return f"translate {source} to {target}: {doc.fields[self.pair.source]}"

    def target(self, doc: Document) -> str:
        """Return the document's reference translation."""
        return str(doc.fields[self.pair.target])

    def with_reference(self, doc: Document, text: str) -> Document:
        """Return a copy of the document with `text` as its only reference."""
        return Document(doc.key, {**doc.fields, self.pair.target: text})

    def score(self, doc: Document, output: str) -> DocumentScore:
        """Return BLEU and chrF of a translation against the reference."""
        reference = self.target(doc)
        statistics = {
            "bleu": self._bleu.statistics(output, reference),
            "chrf": chrf_statistics(output, reference),
        }
        values = {
            "bleu": self._bleu.sentence_score(output, reference),
            "chrf": sentence_chrf(output, reference),
        }
        return DocumentScore(values, statistics)

    def aggregate(self, metric: str, total: FloatArray, n: FloatArray) -> FloatArray:
        """Compute a corpus score (``bleu`` or ``chrf``) from statistics summed over documents (`Task.aggregate`)."""
        return {"bleu": corpus_bleu, "chrf": corpus_chrf}[metric](total)

    def _read_local(self, files: Mapping[str, Path]) -> list[dict[str, Any]]:
        if "pairs" in files:
            pairs: Iterable[tuple[str, str]] = read_tab_separated(files["pairs"])
            if self.pair.target == "en":
                pairs = [(foreign, english) for english, foreign in pairs]
            return self._numbered(pairs)
        return self._numbered(read_parallel(files[self.pair.source], files[self.pair.target]))

    def _read_hub(self, split: str) -> list[dict[str, Any]]:
        if self.pair.hub is None:
            raise UserError(f'{self.name}: the hub has no data set of {self.pair.data_set}. Allowed: source = "local".')
        languages = (self.pair.source, self.pair.target)
        # The hub names a pair with the other language first, whatever the direction.
        other = next((language for language in languages if language != "en"), languages[0])
        rows = read_hub(self.pair.hub, f"{other}-{'en' if 'en' in languages else languages[1]}", split)
        return self._numbered((row["translation"][languages[0]], row["translation"][languages[1]]) for row in rows)

    def _numbered(self, pairs: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
        """Return records of sentence pairs, with the line number as id, since corpora repeat sentence pairs."""
        source, target = self.pair.source, self.pair.target
        return [{"id": str(number), source: text, target: other} for number, (text, other) in enumerate(pairs, start=1)]
