"""FREE's threshold from a mixture of two Beta distributions of confidences (FREE section 4.3; its code: util/bmm.py).

One component models the confidences of tokens whose early choice agrees with full depth, the other those of tokens that
disagree. Both are fitted once by weighted moments, from fixed starting components and the labels. The threshold is the
first of ten levels at which the agreeing component has more than a share `SHARE` of the density.

Shape suffixes: N tokens, K the two components (disagreeing, agreeing), G grid of levels.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

START_ALPHA, START_BETA = (1.0, 2.0), (2.0, 1.0)
"""Parameters of the two Beta components before fitting; their weights are fixed at one half each."""
GRID = (0.3, 0.9, 10)
"""Lowest level, highest level, and number of levels."""
SHARE = 0.4
"""Share of the agreeing component in the density that a level needs to be the threshold."""
LIKELIHOOD_WEIGHT = 0.8
"""Weight of the starting components' posterior in a token's responsibilities; the rest is the weight of its label."""
FLOOR = 1e-4
STANDARD_ERRORS = 3.0
"""Standard errors by which the mean confidence of agreeing tokens must exceed that of disagreeing tokens."""


def adaptive_threshold(
    score_N: Tensor, agrees_N: Tensor, default: float, form: Literal["correct", "code"] = "correct"
) -> float:
    """Return a threshold for confidences, fitted by a mixture of two Beta distributions.

    Each token's weights in the two components depend on ``form``. ``correct``: 0.8 times the posterior under the
    starting components, plus 0.2 times the token's label. ``code``: only the label, floored at 1e-4 and normalized,
    because the published code overwrites the posterior.

    With ``code`` the threshold is 0.3 if one label is absent or labels are independent of the confidence, because both
    components are then the same. It is 0.9 if all confidences are equal.

    Args:
        score_N: Confidence of each token at the early exit, in [0, 1].
        agrees_N: Label of each token: True if the token chosen at the early exit is also the full model's choice.
        default: The threshold if there are no tokens. For ``correct``, also if the data cannot determine it: only one
            label, equal confidences, or agreeing tokens that are not more confident than the others.
        form: How tokens are weighted, ``correct`` or ``code``.

    Returns:
        The threshold, one of ten levels from 0.3 to 0.9, or ``default``.
    """
    score_N = score_N.double().cpu().clamp(FLOOR, 1 - FLOOR)
    label_NK = torch.stack([~agrees_N.cpu(), agrees_N.cpu()], dim=1).double()
    if len(score_N) == 0:
        return default
    if form == "code":
        weight_NK = ((1 - LIKELIHOOD_WEIGHT) * label_NK).clamp(min=FLOOR)
        return _level(*_moments(score_N, weight_NK / weight_NK.sum(1, keepdim=True)), GRID[1])
    if not _tells_apart(score_N, agrees_N.cpu()):
        return default
    log_p_NK = _log_density(score_N, score_N.new_tensor(START_ALPHA), score_N.new_tensor(START_BETA))
    weight_NK = LIKELIHOOD_WEIGHT * torch.softmax(log_p_NK, dim=1) + (1 - LIKELIHOOD_WEIGHT) * label_NK
    return _level(*_moments(score_N, weight_NK), default)


def _tells_apart(score_N: Tensor, agrees_N: Tensor) -> bool:
    """Return whether agreeing tokens are significantly more confident than disagreeing tokens (Welch's t statistic)."""
    agreeing, disagreeing = score_N[agrees_N], score_N[~agrees_N]
    if len(agreeing) < 2 or len(disagreeing) < 2:
        return False
    error = (agreeing.var() / len(agreeing) + disagreeing.var() / len(disagreeing)).sqrt()
    return bool(agreeing.mean() - disagreeing.mean() > STANDARD_ERRORS * error)


def _moments(score_N: Tensor, weight_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean [K] and variance [K] of the confidences, weighted for each of the K mixture components."""
    share_NK = weight_NK / weight_NK.sum(0)
    mean_K = (share_NK * score_N[:, None]).sum(0)
    return mean_K, (share_NK * (score_N[:, None] - mean_K) ** 2).sum(0)


def _level(mean_K: Tensor, variance_K: Tensor, default: float) -> float:
    """Return the lowest threshold in `GRID` at which the component with the larger mean has enough of the density.

    Enough is a share greater than `SHARE`. Return ``default`` if the moments belong to no Beta distribution.
    """
    alpha_K = mean_K * (mean_K * (1 - mean_K) / variance_K - 1)
    beta_K = alpha_K * (1 - mean_K) / mean_K
    if not bool(((alpha_K > 0) & (beta_K > 0) & alpha_K.isfinite() & beta_K.isfinite()).all()):
        return default
    low, high, n = GRID
    levels_G = torch.linspace(low, high, n, dtype=torch.float64)
    p_GK = _log_density(levels_G, alpha_K, beta_K).exp()
    # Levels at which both densities are 0 (0 / 0) do not count, as in the published code.
    sure = int((p_GK[:, int(mean_K.argmax())] / p_GK.sum(1) > SHARE).sum())
    # Assumes, as in the published code, that the levels that count are the highest ones.
    return float(levels_G[min(n - sure, n - 1)])


def _log_density(x_N: Tensor, alpha_K: Tensor, beta_K: Tensor) -> Tensor:
    """Return the log-density of each of N numbers under each of K Beta distributions, [N, K]."""
    x_N1 = x_N[:, None]
    norm_K = torch.lgamma(alpha_K + beta_K) - torch.lgamma(alpha_K) - torch.lgamma(beta_K)
    return (alpha_K - 1) * x_N1.log() + (beta_K - 1) * torch.log1p(-x_N1) + norm_K
