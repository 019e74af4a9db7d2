"""Speed-ups from readings with stalls: the estimate is unchanged, and intervals have their nominal coverage.

A reading is the document's time with 5 % noise. With stalls, one reading in twenty takes 2 to 20 times as long.
`python tests/benchmarks/interval_coverage.py speed` prints the whole table.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from exitbench.results.statistics.speed import MIN_ROUNDS, median_times, speedup_interval

SIZES = (5, 10, 20, 50)
READINGS = 2 * MIN_ROUNDS
N_BOOT = 300
SAMPLES = 400
STALLED = 0.05

Rng = np.random.Generator
Times = tuple[np.ndarray, np.ndarray]


def various(rng: Rng, shape: tuple[int, ...]) -> Times:
    """Draw times of answers of very different lengths, decoded about twice as fast, some much more and some less."""
    length, faster = rng.lognormal(0, 0.5, shape), 2 * rng.lognormal(0, 0.3, shape)
    return 0.3 + length, 0.3 + length / faster


def similar(rng: Rng, shape: tuple[int, ...]) -> Times:
    """Draw times of answers of similar lengths, each decoded about one and a half times as fast."""
    length, faster = rng.lognormal(0, 0.3, shape), 1.5 * rng.lognormal(0, 0.1, shape)
    return 0.3 + length, 0.3 + length / faster


def twins(rng: Rng, shape: tuple[int, ...]) -> Times:
    """Draw times of full depth and of its repetition, whose true speed-up is 1."""
    length = 0.3 + rng.lognormal(0, 0.5, shape)
    return length, length


@dataclass(frozen=True)
class Simulated:
    """Simulated times of documents, and the true speed-up over all documents of the population."""

    times: Callable[[Rng, tuple[int, ...]], Times]
    truth: float


MEAN, SIMILAR = math.exp(0.5**2 / 2), math.exp(0.3**2 / 2)
SIMULATED = {
    "answers of various lengths": Simulated(various, (0.3 + MEAN) / (0.3 + MEAN * math.exp(0.3**2 / 2) / 2)),
    "answers of similar lengths": Simulated(similar, (0.3 + SIMILAR) / (0.3 + SIMILAR * math.exp(0.1**2 / 2) / 1.5)),
    "full depth against itself": Simulated(twins, 1.0),
}


@dataclass(frozen=True)
class Coverage:
    """Share of intervals that contain the truth, and bias of the estimates, for one number of documents."""

    coverage: float
    bias: float


def simulate(what: str, size: int, stalled: float, samples: int) -> Coverage:
    """Estimate a speed-up from many samples of `size` documents; `stalled` is the share of readings that stall."""
    rng, simulation = np.random.default_rng(size), SIMULATED[what]
    full, method = (readings(rng, times, stalled) for times in simulation.times(rng, (samples, size)))
    intervals = [speedup_interval(pairs(a), pairs(b), seed=0, n_boot=N_BOOT) for a, b in zip(full, method, strict=True)]
    coverage = np.mean([it.low is None or it.low <= simulation.truth <= it.high for it in intervals])
    bias = np.mean([it.value for it in intervals]) / simulation.truth - 1
    return Coverage(float(coverage), float(bias))


def readings(rng: Rng, times: np.ndarray, stalled: float) -> np.ndarray:
    """Return noisy readings of each document's time, [..., READINGS]."""
    noise = np.exp(rng.normal(0, 0.05, (*times.shape, READINGS)))
    stalls = np.where(rng.random(noise.shape) < stalled, rng.uniform(2, 20, noise.shape), 1)
    return times[..., None] * noise * stalls


def pairs(of_documents: np.ndarray) -> list[tuple[str, float]]:
    return [(str(number), ns) for number, document_ns in enumerate(of_documents.tolist()) for ns in document_ns]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stalled", [0, STALLED])
@pytest.mark.parametrize("what", SIMULATED)
def test_speedup_intervals_have_nominal_coverage_and_low_bias_despite_stalls(what: str, stalled: float) -> None:
    coverages = {size: simulate(what, size, stalled, SAMPLES) for size in SIZES}
    chance = 3 * math.sqrt(0.95 * 0.05 / SAMPLES)
    for size, coverage in coverages.items():
        assert 0.93 - chance <= coverage.coverage <= 0.97 + chance, size
        assert abs(coverage.bias) <= 0.02, size
    assert 0.93 <= np.mean([coverage.coverage for coverage in coverages.values()]) <= 0.97


def test_single_stall_does_not_change_the_speedup() -> None:
    """Twenty documents of 2.6 to 11 ms with a speed-up of 1.2, one of which is delayed by 64 ms in one reading."""
    full = [(str(n), 2.6 + 0.44 * n) for n in range(20) for _ in range(READINGS)]
    method = [(key, ms / 1.2 * (1 + 0.01 * (int(key) % 3))) for key, ms in full]
    calm = speedup_interval(full, method, seed=0)
    stalled = speedup_interval([(full[0][0], full[0][1] + 64), *full[1:]], method, seed=0)
    assert calm.value == stalled.value == pytest.approx(1.2, rel=0.02)
    assert stalled.low is not None and stalled.high is not None and stalled.high / stalled.low < 1.05


def test_a_speed_up_is_a_ratio_of_sums_of_medians() -> None:
    full = [("a", 100), ("a", 120), ("a", 9000), ("b", 900)]
    method = [("a", 50), ("b", 850), ("b", 870)]
    assert median_times(full) == {"a": 120, "b": 900}
    assert speedup_interval(full, method, seed=0).value == pytest.approx((120 + 900) / (50 + 860))
