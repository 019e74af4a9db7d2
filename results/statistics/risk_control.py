"""Learn then Test: choose how early to exit with P(risk of the chosen level <= delta) >= 1 - epsilon.

A level is a threshold, or whatever else orders a method's settings from conservative to eager. Its loss on a document
lies in [0, 1]: how far the early output is from the full model's, say. Levels and their order are fixed before any loss
is seen; the documents are drawn like those of the test and were used for nothing else. Each level is tested in turn for
H: E[loss] > delta, and the walk ends at the first H that is not rejected: tests in a fixed order need no correction for
their number (Angelopoulos et al. 2021, Learn then Test, arXiv:2110.01052; for exits Schuster et al. 2022, CALM,
arXiv:2207.07061). Losses may rise and fall along the levels; that costs power, never validity.

Letters differ between papers. Here delta is the risk that is tolerated, epsilon the probability of exceeding it.
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

# A sum this little above an integer is that integer: rounding must not move a ceiling. Where a sum truly lies there,
# the guarantee is for a delta larger by this over n.
_SUM_SLACK: Final = 1e-9

_MOST_TRIED: Final = 1_000_000
"""Documents up to which the least number is searched; beyond, Hoeffding's part alone says how many are enough."""


@dataclass(frozen=True)
class Step:
    """One level that was tested.

    Attributes:
        level: The level.
        mean_loss: Mean of its losses over the calibration documents.
        p_value: Of H: E[loss] > delta; None under a rule that tests nothing (`crc`, `naive`).
        passed: Whether the walk went on.
    """

    level: float
    mean_loss: float
    p_value: float | None
    passed: bool


@dataclass(frozen=True)
class Calibration:
    """What was chosen, and the path to it.

    Attributes:
        chosen: The last level that passed; None where the first failed already, which leaves the full model.
        steps: Every level tested, in order; only the last can have failed. Levels after it were not looked at.
        rule: How a level was judged.
        delta: Tolerated risk.
        epsilon: Tolerated probability, over calibration draws, of a chosen level with more risk than that.
        n: Calibration documents.
    """

    chosen: float | None
    steps: tuple[Step, ...]
    rule: Rule
    delta: float
    epsilon: float
    n: int


def hoeffding_p(losses: ArrayLike, delta: float) -> float:
    """Return Hoeffding's p-value of H: E[loss] > delta, ``exp(-2 n max(0, delta - mean)^2)``.

    Raises:
        ValueError: No losses, a loss outside [0, 1], or `delta` outside (0, 1).
    """
    checked = _losses(losses)
    _check_open_unit("delta", delta)
    return math.exp(-2 * len(checked) * max(0.0, delta - _mean(checked)) ** 2)


def hoeffding_bentkus_p(losses: ArrayLike, delta: float) -> float:
    """Return the Hoeffding-Bentkus p-value of H: E[loss] > delta, the smaller of two that are each valid.

    ``exp(-n h1(min(mean, delta), delta))`` and ``e P[Bin(n, delta) <= ceil(n mean)]``, where
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
    """Return from how many documents on `hoeffding_bentkus_p` is at most epsilon for losses of a mean.

    >>> documents_needed(0.0, 0.01, 0.1), documents_needed(0.005, 0.01, 0.1)
    (230, 1489)

    Args:
        mean_loss: Mean loss over the documents, however many they are.
        delta: Tolerated risk.
        epsilon: Tolerated probability of exceeding it.

    Returns:
        None where no number is enough: the mean loss is `delta` or more.

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
    enough = max(1, math.ceil(-math.log(epsilon) / divergence))  # for Hoeffding's part, which falls with every document
    if enough > _MOST_TRIED:
        return enough
    # Bentkus' part needs fewer, but rises wherever the sum of the losses passes a whole number.
    sizes = np.arange(1, enough)
    fails = math.e * bdtr(np.ceil(sizes * mean_loss - _SUM_SLACK), sizes, delta) > epsilon
    return int(sizes[fails][-1]) + 1 if fails.any() else 1


def binomial_p(losses: ArrayLike, delta: float) -> float:
    """Return the exact p-value of H: E[loss] > delta for losses of 0 and 1, ``P[Bin(n, delta) <= n mean]``.

    Raises:
        ValueError: No losses, a loss that is neither 0 nor 1, or `delta` outside (0, 1).
    """
    checked = _losses(losses)
    _check_open_unit("delta", delta)
    if not np.isin(checked, (0.0, 1.0)).all():
        raise ValueError("the exact binomial test needs losses of 0 and 1; use hoeffding-bentkus for those in between")
    return _binomial_cdf(int(checked.sum()), len(checked), delta)


def wsr_p(losses: ArrayLike, delta: float, epsilon: float) -> float:
    """Return the betting p-value of H: E[loss] > delta after Waudby-Smith and Ramdas, ``1 / max_t K_t(delta)``.

    ``K_t(r) = prod_{i <= t} (1 - nu_i (loss_i - r))`` is the wealth of one who bets against a mean of r or more. Stakes
    are set by the losses before: ``nu_i = min(1, sqrt(2 ln(1/epsilon) / (n var_{i-1})))``. Wealth grows with r, so that
    the p-value is at most epsilon exactly where the upper confidence bound, the smallest r with
    ``max_t K_t(r) >= 1/epsilon``, is at most delta: no root needs to be sought (arXiv:2010.09686; Bates et al. 2021).

    Args:
        losses: Per document, in [0, 1], in an order that does not depend on them: the order enters.
        delta: Tolerated risk.
        epsilon: The level the stakes are tuned to; the p-value is valid at every level.

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
    # A stake may know the losses before it only.
    variances = np.concatenate([[0.25], variances[:-1]])
    stakes = np.minimum(1.0, np.sqrt(2 * math.log(1 / epsilon) / (n * variances)))
    log_wealth = np.cumsum(np.log1p(-stakes * (checked - delta)))
    return math.exp(-max(0.0, float(log_wealth.max())))


def calibrate(rule: Rule, levels: Sequence[float], losses_at: LossesAt, delta: float, epsilon: float) -> Calibration:
    """Walk the levels under any rule, guaranteed or not, to its first failure.

    - `hoeffding-bentkus`, `hoeffding`, `binomial`, `wsr`: levels pass while their p-value is at most epsilon, and
      P(E[loss at the chosen level] <= delta) >= 1 - epsilon: to choose a level of more risk than delta, the walk must
      have passed the first such level, and passes it with probability epsilon at most.
    - `crc`: conformal risk control, ``mean <= ((n + 1) delta - 1) / n``. It bounds the risk on average over
      calibrations, not with probability 1 - epsilon, and does so for losses that never fall along the levels. For
      others, all more conservative levels must pass too, as here, and it holds only as n grows (Angelopoulos et al.
      2022, Conformal Risk Control, arXiv:2208.02814).
    - `naive`: ``mean < delta``. No guarantee: a level of slightly more risk than delta passes nearly half of the time.

    Args:
        rule: One of `RULES`.
        levels: Strictly monotone, either way, most conservative first.
        losses_at: Losses per document at a level. Called in order, once a level, and never after the first that fails:
            every call may cost a decode of all documents.
        delta: Tolerated risk.
        epsilon: Tolerated probability of exceeding it; without effect on `crc` and `naive`.

    Raises:
        ValueError: The rule is unknown; levels are not strictly monotone; losses lie outside [0, 1], or are not one
            per document, equally many at every level; `delta` or `epsilon` is outside (0, 1).
    """
    if rule not in RULES:
        raise ValueError(f"unknown rule {rule!r}; expected one of {', '.join(RULES)}")
    _check_levels(levels)
    _check_open_unit("delta", delta)
    _check_open_unit("epsilon", epsilon)
    chosen: float | None = None
    steps: list[Step] = []
    n = 0
    for level in levels:
        losses = _losses(losses_at(level))
        if steps and len(losses) != n:
            raise ValueError(f"level {level} has losses of {len(losses)} documents, the levels before it of {n}")
        n = len(losses)
        p_value, passed = _judge(rule, losses, delta, epsilon)
        steps.append(Step(level, _mean(losses), p_value, passed))
        if not passed:
            break
        chosen = level
    return Calibration(chosen, tuple(steps), rule, delta, epsilon, n)


def _judge(rule: Rule, losses: Floats, delta: float, epsilon: float) -> tuple[float | None, bool]:
    """Return the p-value, if the rule has one, and whether the level passes."""
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
    """Return the mean, summed exactly: the order of documents does not matter."""
    return math.fsum(losses) / len(losses)


def _bernoulli_divergence(a: float, b: float) -> float:
    """Return ``a ln(a/b) + (1 - a) ln((1 - a)/(1 - b))`` for 0 <= a <= b < 1, b > 0, where 0 ln 0 = 0."""
    from scipy.special import rel_entr

    # Zero at a = b; rounding may fall below it.
    return max(0.0, float(rel_entr(a, b) + rel_entr(1 - a, 1 - b)))


def _binomial_cdf(k: int, n: int, p: float) -> float:
    """Return P[Bin(n, p) <= k]."""
    from scipy.special import bdtr  # a quarter of a second that no other command should wait for

    return float(bdtr(k, n, p))


def _losses(losses: ArrayLike) -> Floats:
    """Return losses [n] as floats, or raise."""
    array = np.asarray(losses, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"losses must be one per document, one-dimensional; got {array.ndim} dimensions")
    if len(array) == 0:
        raise ValueError("losses are of no documents")
    outside = ~((array >= 0) & (array <= 1))  # also NaN
    if outside.any():
        raise ValueError(f"losses must lie in [0, 1]; document {outside.argmax()} has {array[outside.argmax()]}")
    return array


def _check_levels(levels: Sequence[float]) -> None:
    """Raise unless there are levels, and they strictly rise or strictly fall."""
    if len(levels) == 0:
        raise ValueError("no levels to test")
    steps = np.diff(np.asarray(levels, dtype=np.float64))
    if not ((steps > 0).all() or (steps < 0).all()):
        raise ValueError(f"levels must strictly rise or strictly fall, conservative first; got {list(levels)}")


def _check_open_unit(name: str, value: float) -> None:
    """Raise unless 0 < value < 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie between 0 and 1, both excluded; got {value}")
