"""Coverage of the nominal 95 % intervals by simulation, from 5 to 200 documents.

The tests assert a band of three standard errors around the coverage from 4,000 samples per size, in percent, in the
order of `SIZES`. Most values are 93 to 97.

Coverage is higher for full depth against itself, for scores, losses and equal tokens of 5 documents, and for equal
tokens of 10. It is also higher for exact intervals of binary outcomes, which cover at least 95 % by construction.

Coverage is lower for times dominated by a few long documents: 88 to 91 up to 20 documents (bootstrap percentiles: 67 to
82). It is 91 and 92 for means of numbers with a skewness of 6, up to 10 documents. It is 92 for losses that are mostly
zero, at 20 documents (percentiles: 82). No other tested interval did better at the same width.

`python tests/results/statistics/test_coverage.py 4000` prints the numbers again.
"""

import math
import sys
from collections.abc import Callable

import numpy as np
import pytest

from exitbench.results.statistics.intervals import (
    PERCENT,
    SHARE,
    Interval,
    aggregate_interval,
    bounded_ratio_interval,
    mean_interval,
    ratio_interval,
)
from exitbench.results.statistics.paired import difference_interval
from exitbench.results.statistics.pooled import contributions, largest_contribution
from exitbench.tasks.glue import confusion
from exitbench.tasks.translation import corpus_bleu

SIZES = (5, 10, 20, 40, 200)
N_BOOT = 300
Rng = np.random.Generator
Sample = tuple[np.ndarray, ...]


def readings(rng: Rng, ns: np.ndarray) -> np.ndarray:
    """Return the sum of four noisy readings of each time: 5 % noise, and 3 % of the readings take 1.5 times as long."""
    noise = np.exp(rng.normal(0, 0.05, (*ns.shape, 4))) * np.where(rng.random((*ns.shape, 4)) < 0.03, 1.5, 1)
    return ns * noise.sum(axis=-1)


def times(rng: Rng, shape: tuple[int, int]) -> Sample:
    """Draw times of answers of very different lengths, decoded about twice as fast, some much more and some less."""
    length, faster = rng.lognormal(0, 0.5, shape), 2 * rng.lognormal(0, 0.3, shape)
    return readings(rng, 0.3 + length), readings(rng, 0.3 + length / faster)


def twins(rng: Rng, shape: tuple[int, int]) -> Sample:
    """Draw two timings of full depth, whose true ratio is 1."""
    length = rng.lognormal(0, 0.5, shape)
    return readings(rng, 0.3 + length), readings(rng, 0.3 + length)


def uneven_times(rng: Rng, shape: tuple[int, int]) -> Sample:
    """Draw times of answers whose long ones gain nothing, so that a few documents decide the ratio."""
    z = rng.normal(size=shape)
    length, faster = np.exp(z / 2), 2 * np.exp(0.5 * (0.71 * rng.normal(size=shape) - 0.7 * z))
    return readings(rng, 0.3 + length), readings(rng, 0.3 + length / faster)


def lognormal(rng: Rng, shape: tuple[int, int]) -> Sample:
    """Draw numbers with a skewness of 6, whose mean is estimated."""
    return rng.lognormal(size=shape), np.ones(shape)


def scores(rng: Rng, shape: tuple[int, int]) -> Sample:
    """Draw scores: 70 % are 1, 10 % are 0, and the others are between."""
    which = rng.random(shape)
    return (100 * np.where(which < 0.7, 1, np.where(which < 0.8, 0, rng.beta(2, 1.5, shape))),)


def losses(rng: Rng, shape: tuple[int, int]) -> Sample:
    """Draw losses: 85 of 100 documents lose nothing."""
    return (np.where(rng.random(shape) < 0.15, rng.beta(1, 2, shape), 0),)


def equal_tokens(rng: Rng, shape: tuple[int, int]) -> Sample:
    """Draw agreements of 98 of 100 tokens; the different tokens are mostly in the same documents."""
    n_tokens = rng.integers(2, 30, shape)
    return rng.binomial(n_tokens, rng.beta(9.8, 0.2, shape)), n_tokens


def gains(rng: Rng, shape: tuple[int, int]) -> Sample:
    """Draw differences in score: a fifth of the documents gains, a twentieth loses, and the others do not change."""
    which, far = rng.random(shape), 100 * rng.beta(1.2, 1.5, shape)
    return (np.where(which < 0.2, far, np.where(which < 0.25, -far, 0)),)


def n_grams(rng: Rng, shape: tuple[int, int]) -> Sample:
    """Draw statistics of BLEU, [..., 10], for answers of 6 to 20 words with correct stretches that vary by document."""
    words = np.arange(20)
    length, right = rng.integers(6, 21, shape), rng.random((*shape, 20)) < rng.beta(6, 2, shape)[..., None]
    as_before = rng.random((*shape, 20)) < 0.4
    for word in words[1:]:
        right[..., word] = np.where(as_before[..., word], right[..., word - 1], right[..., word])
    right &= words < length[..., None]
    run, intervals = right, []
    for order in range(4):
        run = run if order == 0 else run[..., :-1] & right[..., order:]
        intervals.append(run.sum(axis=-1))
    totals = [length - order for order in range(4)]
    return (np.stack([length, length + rng.integers(-1, 2, shape), *intervals, *totals], axis=-1).astype(float),)


def of_ratio(numerator: np.ndarray, denominator: np.ndarray) -> Interval:
    return ratio_interval(numerator, denominator, seed=0, n_boot=N_BOOT)


def of_bleu(rows: np.ndarray) -> Interval:
    return aggregate_interval(rows, lambda total, _n: corpus_bleu(total))


def of_gains(moved: np.ndarray) -> Interval:
    return difference_interval(float(moved.mean()), moved)


MEAN = math.exp(0.5**2 / 2)
UNEVEN_MEAN = math.exp((0.85**2 + 0.355**2) / 2) / 2
SIMULATED: dict[str, tuple[Callable[..., Sample], Callable[..., Interval], float, tuple[float, ...]]] = {
    "times": (times, of_ratio, (0.3 + MEAN) / (0.3 + MEAN * math.exp(0.3**2 / 2) / 2), (95.6, 95.7, 95.5, 94.4, 95.4)),
    "twins": (twins, of_ratio, 1.0, (97.3, 95.4, 95.6, 95.2, 94.9)),
    "uneven times": (uneven_times, of_ratio, (0.3 + MEAN) / (0.3 + UNEVEN_MEAN), (88.0, 88.5, 91.3, 92.7, 94.5)),
    "lognormal": (lognormal, of_ratio, math.exp(0.5), (92.2, 91.3, 93.0, 93.5, 95.4)),
    "scores": (scores, lambda x: mean_interval(x, PERCENT), 70 + 20 * 2 / 3.5, (97.9, 95.8, 96.4, 97.0, 96.0)),
    "losses": (losses, lambda x: mean_interval(x, SHARE), 0.15 / 3, (97.5, 93.8, 92.5, 94.5, 96.0)),
    "equal tokens": (equal_tokens, bounded_ratio_interval, 0.98, (99.7, 99.3, 96.1, 94.2, 95.2)),
    "gains": (gains, of_gains, 15 * 1.2 / 2.7, (100.0, 100.0, 100.0, 99.8, 98.4)),
    "BLEU": (n_grams, of_bleu, 61.02, (96.5, 96.7, 96.2, 96.0, 95.1)),
}


def coverage(what: str, size: int, samples: int) -> float:
    """Return the share of intervals that contain the truth; a missing interval counts as one that does."""
    make, interval_of, truth, _ = SIMULATED[what]
    parts = make(np.random.default_rng(size), (samples, size))
    intervals = [interval_of(*(part[i] for part in parts)) for i in range(samples)]
    return float(np.mean([it.low is None or it.low <= truth <= it.high for it in intervals]))


REPEATED = {"twins", "uneven times", "lognormal", "scores"}
"""Further samples of an interval that another sample tests too."""


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.exhaustive if what in REPEATED else ()) for what in SIMULATED]
)
def test_interval_coverage_matches_the_documented_values(what: str) -> None:
    for size, expected in zip(SIZES, SIMULATED[what][-1], strict=True):
        samples = 60 if size == 200 else 200
        error = math.sqrt(expected * (100 - expected) / samples)
        assert 100 * coverage(what, size, samples) == pytest.approx(expected, abs=3 * error + 0.5), size


@pytest.mark.parametrize("right", [0.5, 0.9, 0.95])
@pytest.mark.parametrize("size", SIZES)
def test_exact_intervals_cover_binary_outcomes_at_least_95_percent(right: float, size: int) -> None:
    covered = 0.0
    for hits in range(size + 1):
        interval = mean_interval([100.0] * hits + [0.0] * (size - hits), PERCENT)
        covered += (
            math.comb(size, hits)
            * right**hits
            * (1 - right) ** (size - hits)
            * (interval.low <= 100 * right <= interval.high)
        )
    assert 0.95 <= covered <= (1 if size < 40 else 0.99)


def labels(rng: Rng, n: int, positives: float) -> Sample:
    """Draw labels of two runs, as confusion counts: full depth errs in 1 %, and the other run misses more positives."""
    gold = rng.random(n) < positives
    full = np.where(rng.random(n) < 0.01, ~gold, gold)
    early = full & ~(gold & (rng.random(n) < 0.15))
    return tuple(np.array([confusion(*pair) for pair in zip(gold, run, strict=True)]) for run in (full, early))


def translations(rng: Rng, n: int) -> Sample:
    """Draw statistics of BLEU of two runs: the longer an answer, the likelier the other run damages it."""
    length = np.maximum(4, np.round(rng.lognormal(math.log(20), 0.8, n)))
    right = np.clip(rng.normal(0.8, 0.1, n), 0.3, 1)
    damaged = np.where(rng.random(n) < np.minimum(1, 0.03 * length / 20), 0.15, right)
    grams = np.maximum(length[:, None] - np.arange(4), 0)
    return tuple(
        np.column_stack([length, length, np.floor(grams * share[:, None] ** np.arange(1, 5)), grams])
        for share in (right, damaged)
    )


def ratings(rng: Rng, n: int) -> Sample:
    """Draw statistics of correlations of two runs: 3 % of the other run's predictions are the opposite."""
    gold = rng.uniform(0, 5, n)
    full = gold + rng.normal(0, 0.7, n)
    early = np.where(rng.random(n) < 0.03, 5 - full, full)
    return tuple(np.stack([gold, run, gold**2, run**2, gold * run], axis=1) for run in (full, early))


CORPUS: dict[str, tuple[str, Callable[[Rng, int], Sample], float, float]] = {
    "F1, 10 % positives": ("f1", lambda rng, n: labels(rng, n, 0.1), 100, -8.0),
    "MCC, 3 % positives": ("mcc", lambda rng, n: labels(rng, n, 0.03), 200, -8.6),
    "BLEU, long answers": ("bleu", translations, 100, -4.5),
    "Pearson, opposite ratings": ("pearson", ratings, 200, -5.5),
}
"""Metric, samples, size of the scale, and the true difference from a million documents."""


def corpus_difference(metric: str, full: np.ndarray, early: np.ndarray, scale: float) -> Interval:
    """Return the difference in a corpus metric with its interval, as ingest computes it."""
    moved = 100 * (contributions(metric, early) - contributions(metric, full))
    largest = 100 * max(largest_contribution(metric, rows) for rows in (full, early))
    return difference_interval(float(moved.mean()), moved, scale, largest)


@pytest.mark.parametrize("what", CORPUS)
@pytest.mark.parametrize("n", [40, 400])
def test_differences_in_corpus_metrics_cover_the_truth_in_spite_of_rare_large_contributions(what: str, n: int) -> None:
    metric, make, scale, truth = CORPUS[what]
    rng, samples = np.random.default_rng(n), 100
    intervals = [corpus_difference(metric, *make(rng, n), scale) for _ in range(samples)]
    missed = sum(not interval.low <= truth <= interval.high for interval in intervals)
    assert missed <= 100 * 0.05 + 3 * math.sqrt(samples * 0.05 * 0.95)


if __name__ == "__main__":
    for name in SIMULATED:
        print(name, *(f"{100 * coverage(name, size, int(sys.argv[1])):.1f}" for size in SIZES), flush=True)
