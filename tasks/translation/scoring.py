"""BLEU and chrF as sacrebleu defines them, from sufficient statistics that add up over documents.

sacrebleu tokenises, counts and names the settings (its signatures). Only the last step, from summed
counts to the score, is written here, over whole arrays, so that ten thousand bootstrap resamples are
one pass; the tests hold it to sacrebleu's own corpus scores. What sacrebleu says of a pair of texts is kept
for a moment: a document is tokenised once for its statistics and its score.
"""

import functools
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.bleu import BLEUScore

FloatArray = npt.NDArray[np.float64]

_CHRF = CHRF()
_ORDER = BLEU().max_ngram_order
_KEPT: Final = 16
"""Pairs of texts of which is kept what sacrebleu says: of a document both statistics and score are asked."""


class Bleu:
    """BLEU with one of sacrebleu's ways to cut a text into words."""

    def __init__(self, tokenizer: str = "13a") -> None:
        self.corpus = BLEU(tokenize=tokenizer)
        # For single sentences sacrebleu leaves out n-gram orders that are longer than the sentence.
        self._sentence = BLEU(tokenize=tokenizer, effective_order=True)

    def statistics(self, output: str, reference: str) -> list[float]:
        """Return system length, reference length, 4 correct and 4 total n-gram counts, [10]."""
        score = _sentence_bleu(self._sentence, output, reference)
        return [float(count) for count in (score.sys_len, score.ref_len, *score.counts, *score.totals)]

    def of_sentence(self, output: str, reference: str) -> float:
        """Return sacrebleu's sentence BLEU, 0..100."""
        return float(_sentence_bleu(self._sentence, output, reference).score)


@functools.lru_cache(_KEPT)
def _sentence_bleu(metric: BLEU, output: str, reference: str) -> BLEUScore:
    return metric.sentence_score(output, [reference])


bleu_by = functools.cache(Bleu)
"""BLEU with a way to cut a text into words; the same object for all who ask."""


@functools.cache
def signature(bleu: Bleu) -> str:
    """Return sacrebleu's signatures of both metrics, which name every setting and the version."""
    for metric in (bleu.corpus, _CHRF):
        metric.corpus_score(["a"], [["a"]])  # the signature's number of references is known after a score
    return f"bleu[{bleu.corpus.get_signature()}] chrf[{_CHRF.get_signature()}]"


def sentence_chrf(output: str, reference: str) -> float:
    """Return sacrebleu's sentence chrF, 0..100."""
    return float(_CHRF._aggregate_and_compute([_chrf_counts(output, reference)]).score)


def chrf_statistics(output: str, reference: str) -> list[float]:
    """Return hypothesis, reference and matching n-gram counts for each of 6 character orders, [18]."""
    return [float(count) for count in _chrf_counts(output, reference)]


@functools.lru_cache(_KEPT)
def _chrf_counts(output: str, reference: str) -> Sequence[int]:
    # The only per-segment counts sacrebleu has; its own significance tests are built on the same method.
    counts: Sequence[int] = _CHRF._extract_corpus_statistics([output], [[reference]])[0]
    return counts


def bleu(total: FloatArray) -> FloatArray:
    """Return corpus BLEU (exponential smoothing), 0..100.

    Args:
        total: [..., 10] sums of `Bleu.statistics`.
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


def chrf(total: FloatArray) -> FloatArray:
    """Return corpus chrF, 0..100.

    Args:
        total: [..., 18] sums of `chrf_statistics`.
    """
    counts = total.reshape(*total.shape[:-1], -1, 3)
    hypothesis, reference, match = counts[..., 0], counts[..., 1], counts[..., 2]
    # Orders that either side is too short for are left out of both means. sacrebleu counts the
    # hypothesis only where the reference has n-grams of that order, so its count tells for both.
    used = hypothesis > 0
    orders = np.maximum(used.sum(axis=-1), 1)
    precision = np.divide(match, hypothesis, out=np.zeros_like(match), where=used).sum(axis=-1) / orders
    recall = np.divide(match, reference, out=np.zeros_like(match), where=used).sum(axis=-1) / orders
    weight = _CHRF.beta**2
    both = np.asarray(weight * precision + recall)
    score: FloatArray = np.zeros_like(both)
    np.divide(100 * (1 + weight) * precision * recall, both, out=score, where=both > 0)
    return score
