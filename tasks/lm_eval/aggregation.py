"""lm-eval's aggregations as sums of a document's own numbers.

A metric of ours is a function of sums over documents, so that its interval, or its value without a document, is a sum
away. lm-eval's are functions of lists. These are the ones that are both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from exitbench.errors import UserError

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric as CorpusMetric

FloatArray = npt.NDArray[np.float64]
_LARGEST_LOG = 700.0
"""exp of more is no number."""


@dataclass(frozen=True)
class Aggregation:
    """An aggregation of lm-eval.

    Attributes:
        summands: Of what `process_results` returned for a document: the numbers that are summed, [S].
        value: Of the sums [..., S] and the number of documents [...]: the metric [...].
        bounds: Least and greatest value; None where there is no such.
    """

    summands: Callable[[Any], list[float]]
    value: Callable[[FloatArray, FloatArray], FloatArray]
    bounds: tuple[float, float] | None = None

    def of_one(self, item: Any) -> float:
        """Return the metric of a single document."""
        return float(self.value(np.asarray(self.summands(item), dtype=np.float64), np.asarray(1.0)))


def aggregation(function: Callable[..., Any] | None) -> Aggregation | None:
    """Return the sums of an aggregation of lm-eval; None where it is none."""
    if function is None:
        return None
    try:
        return _known().get(function) or _found_out(function)
    except TypeError:  # one that cannot be hashed
        return _found_out(function)


@cache
def _known() -> dict[Callable[..., Any], Aggregation]:
    from lm_eval.api import metrics
    from sacrebleu.metrics import BLEU, CHRF, TER

    percent = (0.0, 100.0)
    return {
        metrics.mean: MEAN,
        metrics.nanmean: Aggregation(_unless_nan, _ratio),
        metrics.perplexity: Aggregation(_number, lambda total, n: _exp(-total[..., 0] / n)),
        metrics.weighted_perplexity: Aggregation(_pair, lambda total, n: _exp(-_ratio(total, n))),
        metrics.bits_per_byte: Aggregation(_pair, lambda total, n: -_ratio(total, n) / np.log(2)),
        metrics.bleu: _corpus(BLEU(), percent),
        metrics.chrf: _corpus(CHRF(), percent),
        metrics.chrfpp: _corpus(CHRF(word_order=2), percent),
        metrics.ter: _corpus(TER(), None),
        metrics.f1_score: Aggregation(_confusion, _f1, (0.0, 1.0)),
        metrics.matthews_corrcoef: Aggregation(_confusion, _matthews, (-1.0, 1.0)),
        metrics.brier_score: Aggregation(_brier, lambda total, n: total[..., 0] / n, (0.0, 2.0)),
    }


def _found_out(function: Callable[..., Any]) -> Aggregation | None:
    """A task's own function that is a mean under another name."""
    single, nested = [0.25, 0.5, 1.0], [[True, False, True], [False]]
    if _gives(function, single, sum(single) / len(single)):
        return MEAN
    if _gives(function, nested, 0.5):
        return Aggregation(_sum_and_count, _ratio)
    return None


def _gives(function: Callable[..., Any], items: Sequence[Any], expected: float) -> bool:
    try:
        return bool(abs(float(function(list(items))) - expected) < 1e-12)
    except Exception:  # whatever a task's code raises where it is given other things than it makes
        return False


def _number(item: Any) -> list[float]:
    return [float(item)]


def _pair(item: Any) -> list[float]:
    return [float(item[0]), float(item[1])]


def _unless_nan(item: Any) -> list[float]:
    return [0.0, 0.0] if np.isnan(item) else [float(item), 1.0]


def _sum_and_count(item: Any) -> list[float]:
    return [float(sum(item)), float(len(item))]


def _ratio(total: FloatArray, n: FloatArray) -> FloatArray:
    value: FloatArray = total[..., 0] / total[..., 1]
    return value


def _exp(exponent: FloatArray) -> FloatArray:
    value: FloatArray = np.exp(np.minimum(exponent, _LARGEST_LOG))
    return value


def _confusion(item: Any) -> list[float]:
    """True positives, false positives, false negatives, true negatives."""
    gold, predicted = int(item[0]), int(item[1])
    if not {gold, predicted} <= {0, 1}:
        raise UserError(f"lm-eval: f1 and mcc are kept for two classes, 0 and 1, not for {gold} and {predicted}.")
    return [
        float(gold and predicted),
        float(predicted and not gold),
        float(gold and not predicted),
        float(not gold and not predicted),
    ]


def _f1(total: FloatArray, n: FloatArray) -> FloatArray:
    hits, false, missed = total[..., 0], total[..., 1], total[..., 2]
    return _divided(2 * hits, 2 * hits + false + missed)


def _matthews(total: FloatArray, n: FloatArray) -> FloatArray:
    tp, fp, fn, tn = (total[..., i] for i in range(4))
    return _divided(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


def _divided(above: FloatArray, below: FloatArray) -> FloatArray:
    score: FloatArray = np.zeros_like(np.asarray(above, dtype=np.float64))
    np.divide(above, below, out=score, where=below > 0)
    return score


def _brier(item: Any) -> list[float]:
    gold, predicted = item
    right = np.eye(len(predicted))[gold]
    return [float(np.sum((np.asarray(predicted) - right) ** 2))]


def _corpus(metric: "CorpusMetric", bounds: tuple[float, float] | None) -> Aggregation:
    """A corpus metric of sacrebleu, by the counts that its own significance tests add up."""

    def summands(item: Any) -> list[float]:
        references, output = item
        given = [references] if isinstance(references, str) else list(references)
        text = output if isinstance(output, str) else output[0]
        counts = metric._extract_corpus_statistics([text], [[reference] for reference in given])[0]
        return [float(count) for count in counts]

    def value(total: FloatArray, n: FloatArray) -> FloatArray:
        return np.apply_along_axis(lambda row: metric._compute_score_from_stats(row.tolist()).score, -1, total)

    return Aggregation(summands, value, bounds)


MEAN = Aggregation(_number, lambda total, n: total[..., 0] / n)
PER_BYTE = Aggregation(_pair, _ratio)
"""Log-likelihood over bytes, from what lm-eval aggregates to bits per byte."""
