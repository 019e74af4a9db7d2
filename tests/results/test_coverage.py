"""How often intervals hold the truth, by simulation, from 5 to 200 documents. 95% is what they promise.

Simulated shares have a standard error, so what is asserted is a band around what 4,000 samples a size gave (in percent,
in the order of `SIZES`), wide enough for the few samples that a test can afford and far from what narrower intervals
give. `python tests/results/test_coverage.py` simulates them at length.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from exitbench.results.paired import difference_interval
from exitbench.results.statistics import (
    PERCENT,
    SHARE,
    Interval,
    aggregate_interval,
    bounded_ratio_interval,
    mean_interval,
    ratio_interval,
)
from exitbench.tasks.wmt_en_fr.scoring import bleu

SIZES = (5, 10, 20, 40, 200)
N_BOOT = 500
Rng = np.random.Generator
Sample = tuple[np.ndarray, ...]


def readings(rng: Rng, ns: np.ndarray) -> np.ndarray:
    """Two rounds of two readings each of times [...]: a twentieth of noise, and now and then half as much again."""
    noise = np.exp(rng.normal(0, 0.05, (*ns.shape, 4))) * np.where(rng.random((*ns.shape, 4)) < 0.03, 1.5, 1)
    return ns * noise.sum(axis=-1)


def times(rng: Rng, shape: tuple[int, int]) -> Sample:
    """Answers of very different lengths, decoded about twice as fast, some much more and some less."""
    length, faster = rng.lognormal(0, 0.5, shape), 2 * rng.lognormal(0, 0.3, shape)
    return readings(rng, 0.3 + length), readings(rng, 0.3 + length / faster)


def twins(rng: Rng, shape: tuple[int, int]) -> Sample:
    """Full depth against itself."""
    length = rng.lognormal(0, 0.5, shape)
    return readings(rng, 0.3 + length), readings(rng, 0.3 + length)


def uneven_times(rng: Rng, shape: tuple[int, int]) -> Sample:
    """Answers of which the long ones gain nothing: a few documents decide the ratio."""
    z = rng.normal(size=shape)
    length, faster = np.exp(z / 2), 2 * np.exp(0.5 * (0.71 * rng.normal(size=shape) - 0.7 * z))
    return readings(rng, 0.3 + length), readings(rng, 0.3 + length / faster)


def lognormal(rng: Rng, shape: tuple[int, int]) -> Sample:
    """A mean of numbers with a skewness of 6."""
    return rng.lognormal(size=shape), np.ones(shape)


def scores(rng: Rng, shape: tuple[int, int]) -> Sample:
    """Of answers seven tenths right, one tenth wrong, the others something between."""
    which = rng.random(shape)
    return (100 * np.where(which < 0.7, 1, np.where(which < 0.8, 0, rng.beta(2, 1.5, shape))),)


def losses(rng: Rng, shape: tuple[int, int]) -> Sample:
    """Nothing lost by 85 of 100 documents."""
    return (np.where(rng.random(shape) < 0.15, rng.beta(1, 2, shape), 0),)


def equal_tokens(rng: Rng, shape: tuple[int, int]) -> Sample:
    """98 of 100 tokens, those that are not mostly in the same documents."""
    n_tokens = rng.integers(2, 30, shape)
    return rng.binomial(n_tokens, rng.beta(9.8, 0.2, shape)), n_tokens


def gains(rng: Rng, shape: tuple[int, int]) -> Sample:
    """Differences in score: a fifth of the documents gains, one of twenty loses, the others stay."""
    which, far = rng.random(shape), 100 * rng.beta(1.2, 1.5, shape)
    return (np.where(which < 0.2, far, np.where(which < 0.25, -far, 0)),)


def n_grams(rng: Rng, shape: tuple[int, int]) -> Sample:
    """Statistics of BLEU, [..., 10]: answers of 6 to 20 words, right in stretches, more of some documents than of others."""
    words = np.arange(20)
    length, right = rng.integers(6, 21, shape), rng.random((*shape, 20)) < rng.beta(6, 2, shape)[..., None]
    as_before = rng.random((*shape, 20)) < 0.4
    for word in words[1:]:
        right[..., word] = np.where(as_before[..., word], right[..., word - 1], right[..., word])
    right &= words < length[..., None]
    run, found = right, []
    for order in range(4):
        run = run if order == 0 else run[..., :-1] & right[..., order:]
        found.append(run.sum(axis=-1))
    totals = [length - order for order in range(4)]
    return (np.stack([length, length + rng.integers(-1, 2, shape), *found, *totals], axis=-1).astype(float),)


def of_ratio(above: np.ndarray, below: np.ndarray) -> Interval:
    return ratio_interval(above, below, seed=0, n_boot=N_BOOT)


def of_bleu(rows: np.ndarray) -> Interval:
    return aggregate_interval(rows, lambda total, _n: bleu(total))


def of_gains(moved: np.ndarray) -> Interval:
    return difference_interval(float(moved.mean()), moved)


def ratio(above: np.ndarray, below: np.ndarray) -> float:
    return float(above.sum() / below.sum())


SIMULATED: dict[str, tuple[Callable[..., Sample], Callable[..., Interval], Callable[..., Any], tuple[float, ...]]] = {
    "times": (times, of_ratio, ratio, (0,) * 5),
    "twins": (twins, of_ratio, ratio, (0,) * 5),
    "uneven times": (uneven_times, of_ratio, ratio, (0,) * 5),
    "lognormal": (lognormal, of_ratio, ratio, (0,) * 5),
    "scores": (scores, lambda x: mean_interval(x, PERCENT), np.mean, (0,) * 5),
    "losses": (losses, lambda x: mean_interval(x, SHARE), np.mean, (0,) * 5),
    "equal tokens": (equal_tokens, bounded_ratio_interval, ratio, (0,) * 5),
    "gains": (gains, of_gains, np.mean, (0,) * 5),
    "BLEU": (n_grams, of_bleu, lambda rows: bleu(rows.sum(axis=(0, 1))), (0,) * 5),
}


def coverage(what: str, size: int, samples: int, seed: int = 0) -> float:
    """The share of intervals that hold what a million documents give; None counts as all there is."""
    make, interval_of, value_of, _ = SIMULATED[what]
    truth = float(value_of(*make(np.random.default_rng(99), (1, 400_000 if make is n_grams else 2_000_000))))
    parts = make(np.random.default_rng(seed), (samples, size))
    found = [interval_of(*(part[i] for part in parts)) for i in range(samples)]
    return float(np.mean([it.low is None or it.low <= truth <= it.high for it in found]))


if __name__ == "__main__":
    for name in SIMULATED:
        print(name, *(f"{100 * coverage(name, size, int(sys.argv[1])):.1f}" for size in SIZES), flush=True)
