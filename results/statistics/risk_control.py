"""Learn then Test: choose a level (exit threshold) such that P(risk at the chosen level <= delta) >= 1 - epsilon.

A level is a threshold, or any other quantity that orders a method's settings from conservative to eager. Its loss on a
document lies in [0, 1], for example the distance of the early output from the full model's. Levels and their order are
fixed before any loss is seen; the documents have the same distribution as the test documents and were used for nothing
else. The levels are tested in order for H: E[loss] > delta, up to the first H that is not rejected: tests in a fixed
order need no correction for their number (Angelopoulos et al. 2021, Learn then Test, arXiv:2110.01052; for exits
Schuster et al. 2022, CALM, arXiv:2207.07061). Losses may rise and fall along the levels; that costs power, never
validity.

Papers use different letters. Here delta is the tolerated risk, epsilon the probability of exceeding it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
LossesAt = Callable[[float], ArrayLike]

Rule = Literal["hoeffding-bentkus", "hoeffding", "binomial", "wsr", "crc", "naive"]
RULES: Final[tuple[Rule, ...]] = get_args(Rule)

# A sum this little above an integer counts as that integer: rounding must not change a ceiling. If a sum truly lies
# there, the guarantee is for a delta larger by this over n.
_SUM_SLACK: Final = 1e-9

_MOST_TRIED: Final = 1_000_000
"""Largest number of documents that is searched exactly; beyond it, Hoeffding's part alone gives a sufficient number."""


@dataclass(frozen=True)
class LevelTest:
    """Test result of one level, such as a threshold, in a calibration.

    Attributes:
        level: The level.
        mean_loss: Mean loss over the calibration documents at this level.
        p_value: p-value of the hypothesis E[loss] > delta; None for a rule without a test (`crc`, `naive`).
        passed: True if the level passed, so that the next one was tested.
    """

    level: float
    mean_loss: float
    p_value: float | None
    passed: bool


@dataclass(frozen=True)
class Calibration:
    """Result of a calibration: the chosen level, such as a threshold, and the test results of all tested levels.

    Attributes:
        chosen: Last level that passed; None if the first one failed, which leaves the full model.
        steps: Every tested level, in order; only the last one can have failed. Levels after it were not evaluated.
        rule: Rule by which levels pass.
        delta: Tolerated risk.
        epsilon: Tolerated probability, over calibration draws, that the chosen level's risk exceeds delta.
        n: Number of calibration documents.
    """

    chosen: float | None
    steps: tuple[LevelTest, ...]
    rule: Rule
    delta: float
    epsilon: float
    n: int


def hoeffding_p(losses: ArrayLike, delta: float) -> float:
    """Return Hoeffding's p-value of the hypothesis E[loss] > delta, ``exp(-2 n max(0, delta - mean)^2)``.

    Raises:
        ValueError: No losses, a loss outside [0, 1], or `delta` outside (0, 1).
    """
    checked = _losses(losses)
    _check_open_unit("delta", delta)
    return math.exp(-2 * len(checked) * max(0.0, delta - _mean(checked)) ** 2)


def hoeffding_bentkus_p(losses: ArrayLike, delta: float) -> float:
    """Return the Hoeffding-Bentkus p-value of the hypothesis E[loss] > delta, the minimum of two valid p-values.

    The two are ``exp(-n h1(min(mean, delta), delta))`` and ``e P[Bin(n, delta) <= ceil(n mean)]``, where
    ``h1(a, b) = a ln(a/b) + (1 - a) ln((1 - a)/(1 - b))``. Both bound the same tail, so their minimum is valid (Bates
    et al. 2021, Distribution-Free, Risk-Controlling Prediction Sets, arXiv:2101.02703; Learn then Test).

    Raises:
        ValueError: No losses, a loss outside [0, 1], or `delta` outside (0, 1).
    """
    checked = _losses(losses)
    _check_open_unit("delta", delta)
    n = len(checked)
    hoeffding = math.exp(-n * _bernoulli_divergence(min(_mean(checked), delta), delta))
    bentkus = math.e * _binomial_cdf(math.ceil(math.fsum(checked) - _SUM_SLACK), n, delta)
    return min(hoeffding, bentkus)


def documents_needed(mean_loss: float, delta: float, epsilon: float) -> int | None:
    """Return the smallest number of documents from which on `hoeffding_bentkus_p` is at most epsilon at a mean loss.

    >>> documents_needed(0.0, 0.01, 0.1), documents_needed(0.005, 0.01, 0.1)
    (230, 1489)

    Args:
        mean_loss: Mean loss over the documents, independent of their number.
        delta: Tolerated risk.
        epsilon: Tolerated probability of exceeding it.

    Returns:
        The number; None if no number is sufficient, because the mean loss is `delta` or more.

    Raises:
        ValueError: A mean loss outside [0, 1], or `delta` or `epsilon` outside (0, 1).
    """
    from scipy.special import bdtr

    _losses([mean_loss])
    _check_open_unit("delta", delta)
    _check_open_unit("epsilon", epsilon)
    if mean_loss >= delta:
        return None
    divergence = _bernoulli_divergence(mean_loss, delta)
    enough = max(1, math.ceil(-math.log(epsilon) / divergence))  # by Hoeffding's part, which falls with n
    if enough > _MOST_TRIED:
        return enough
    # Bentkus' part needs fewer documents, but rises whenever the sum of the losses exceeds another integer.
    sizes = np.arange(1, enough)
    fails = math.e * bdtr(np.ceil(sizes * mean_loss - _SUM_SLACK), sizes, delta) > epsilon
    return int(sizes[fails][-1]) + 1 if fails.any() else 1


def binomial_p(losses: ArrayLike, delta: float) -> float:
    """Return the exact p-value of the hypothesis E[loss] > delta for losses of 0 and 1, ``P[Bin(n, delta) <= n mean]``.

    Raises:
        ValueError: No losses, a loss that is neither 0 nor 1, or `delta` outside (0, 1).
    """
    checked = _losses(losses)
    _check_open_unit("delta", delta)
    if not np.isin(checked, (0.0, 1.0)).all():
        raise ValueError("the exact binomial test needs losses of 0 and 1; use hoeffding-bentkus for those in between")
    return _binomial_cdf(int(checked.sum()), len(checked), delta)


def wsr_p(losses: ArrayLike, delta: float, epsilon: float) -> float:
    """Return Waudby-Smith and Ramdas' betting p-value of the hypothesis E[loss] > delta, ``1 / max_t K_t(delta)``.

    ``K_t(r) = prod_{i <= t} (1 - nu_i (loss_i - r))`` is the wealth of a bettor against a mean of r or more. Stakes
    depend on the previous losses: ``nu_i = min(1, sqrt(2 ln(1/epsilon) / (n var_{i-1})))``. Wealth grows with r, so the
    p-value is at most epsilon exactly if the upper confidence bound, the smallest r with ``max_t K_t(r) >= 1/epsilon``,
    is at most delta: no root has to be computed (arXiv:2010.09686; Bates et al. 2021).

    Args:
        losses: Losses per document, in [0, 1], in an order that does not depend on them, since the order matters.
        delta: Tolerated risk.
        epsilon: Level for which the stakes are tuned; the p-value is valid at every level.

    Raises:
        ValueError: No losses, a loss outside [0, 1], or `delta` or `epsilon` outside (0, 1).
    """
    checked = _losses(losses)
    _check_open_unit("delta", delta)
    _check_open_unit("epsilon", epsilon)
    n = len(checked)
    counts = 1.0 + np.arange(1, n + 1)
    means = (0.5 + np.cumsum(checked)) / counts
    variances = (0.25 + np.cumsum((checked - means) ** 2)) / counts
    # A stake may only depend on the losses before it.
    variances = np.concatenate([[0.25], variances[:-1]])
    stakes = np.minimum(1.0, np.sqrt(2 * math.log(1 / epsilon) / (n * variances)))
    log_wealth = np.cumsum(np.log1p(-stakes * (checked - delta)))
    return math.exp(-max(0.0, float(log_wealth.max())))


def calibrate(rule: Rule, levels: Sequence[float], losses_at: LossesAt, delta: float, epsilon: float) -> Calibration:
    """Test levels in order, the most conservative first, until one fails; choose the last level that passed.

    The rule decides whether a level passes:

    - `hoeffding-bentkus`, `hoeffding`, `binomial`, `wsr`: a level passes if its p-value is at most epsilon. Then
      P(E[loss at the chosen level] <= delta) >= 1 - epsilon. A level of more risk than delta is only chosen if the
      first such level passed, and it passes with probability epsilon at most.
    - `crc`: conformal risk control, ``mean <= ((n + 1) delta - 1) / n``. It bounds the risk on average over
      calibrations, not with probability 1 - epsilon, and only for losses that never fall along the levels. For other
      losses, all more conservative levels must pass too, as here, and the bound holds only as n grows (Angelopoulos et
      al. 2022, Conformal Risk Control, arXiv:2208.02814).
    - `naive`: ``mean < delta``. No guarantee: a level of slightly more risk than delta passes nearly half of the time.

    Args:
        rule: Name of the rule, one of `RULES`.
        levels: Levels to test, the most conservative first; strictly rising or strictly falling.
        losses_at: Returns the losses per document at a level. Called in order, once per level, and never after the
            first failure: each call may cost a decode of all documents.
        delta: Tolerated risk.
        epsilon: Tolerated probability of exceeding it; not used by `crc` and `naive`.

    Raises:
        ValueError: The rule is unknown, the levels are not strictly monotone, or `delta` or `epsilon` is outside
            (0, 1). Or losses are outside [0, 1], or are not one per document and equally many at every level.
    """
    if rule not in RULES:
        raise ValueError(f"unknown rule {rule!r}; expected one of {', '.join(RULES)}")
    _check_levels(levels)
    _check_open_unit("delta", delta)
    _check_open_unit("epsilon", epsilon)
    chosen: float | None = None
    steps: list[LevelTest] = []
    n = 0
    for level in levels:
        losses = _losses(losses_at(level))
        if steps and len(losses) != n:
            raise ValueError(f"level {level} has losses of {len(losses)} documents, the levels before it of {n}")
        n = len(losses)
        p_value, passed = _judge(rule, losses, delta, epsilon)
        steps.append(LevelTest(level, _mean(losses), p_value, passed))
        if not passed:
            break
        chosen = level
    return Calibration(chosen, tuple(steps), rule, delta, epsilon, n)


def _judge(rule: Rule, losses: Floats, delta: float, epsilon: float) -> tuple[float | None, bool]:
    """Return the p-value of a level's losses (None for a rule without a test), and whether the level passes."""
    if rule == "naive":
        return None, _mean(losses) < delta
    if rule == "crc":
        return None, math.fsum(losses) + 1 <= (len(losses) + 1) * delta
    if rule == "wsr":
        p_value = wsr_p(losses, delta, epsilon)
    elif rule == "binomial":
        p_value = binomial_p(losses, delta)
    elif rule == "hoeffding":
        p_value = hoeffding_p(losses, delta)
    else:
        p_value = hoeffding_bentkus_p(losses, delta)
    return p_value, p_value <= epsilon


def _mean(losses: Floats) -> float:
    """Return the mean loss, summed exactly, so that it does not depend on the order of documents."""
    return math.fsum(losses) / len(losses)


def _bernoulli_divergence(a: float, b: float) -> float:
    """Return ``a ln(a/b) + (1 - a) ln((1 - a)/(1 - b))`` for 0 <= a <= b < 1, b > 0, where 0 ln 0 = 0."""
    from scipy.special import rel_entr

    # Zero at a = b; rounding may give a negative value.
    return max(0.0, float(rel_entr(a, b) + rel_entr(1 - a, 1 - b)))


def _binomial_cdf(k: int, n: int, p: float) -> float:
    """Return P[Bin(n, p) <= k]."""
    from scipy.special import bdtr  # a quarter of a second that other commands should not wait for

    return float(bdtr(k, n, p))


def _losses(losses: ArrayLike) -> Floats:
    """Return the losses of n documents as an array [n]; raise ValueError if there are none or one is outside [0, 1]."""
    array = np.asarray(losses, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"losses must be one per document, one-dimensional; got {array.ndim} dimensions")
    if len(array) == 0:
        raise ValueError("losses are empty")
    outside = ~((array >= 0) & (array <= 1))  # also NaN
    if outside.any():
        raise ValueError(f"losses must lie in [0, 1]; document {outside.argmax()} has {array[outside.argmax()]}")
    return array


def _check_levels(levels: Sequence[float]) -> None:
    """Raise ValueError unless there are levels and they strictly rise or strictly fall."""
    if len(levels) == 0:
        raise ValueError("no levels to test")
    steps = np.diff(np.asarray(levels, dtype=np.float64))
    if not ((steps > 0).all() or (steps < 0).all()):
        raise ValueError(f"levels must strictly rise or strictly fall, conservative first; got {list(levels)}")


def _check_open_unit(name: str, value: float) -> None:
    """Raise ValueError unless 0 < value < 1; `name` names the value in the message."""
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie between 0 and 1, both excluded; got {value}")
