"""FREE's threshold from a mixture of two Beta distributions of confidences (FREE section 4.3; its code: util/bmm.py).

One component stands for tokens whose early choice is not the full model's, the other for tokens whose is. Both are
fitted once by weighted moments, from fixed starting components and the labels. The threshold is the first of ten levels
from which the second component holds at least a share of `SHARE`.

Shape suffixes: N tokens, K the two components (disagreeing, agreeing), G grid of levels.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

START_ALPHA, START_BETA = (1.0, 2.0), (2.0, 1.0)
"""The components before fitting; their weights are one half each and stay so."""
GRID = (0.3, 0.9, 10)
"""Least and largest threshold, and the number of levels between them."""
SHARE = 0.4
"""Share of the agreeing component above which a confidence is sure enough."""
LIKELIHOOD_WEIGHT = 0.8
"""Of the starting components' posterior in a token's responsibilities; the rest is the label's."""
FLOOR = 1e-4
STANDARD_ERRORS = 3.0
"""Standard errors by which agreeing tokens must exceed the others in mean confidence, to tell the two apart."""


def adaptive_threshold(
    score_N: Tensor, agrees_N: Tensor, default: float, form: Literal["correct", "code"] = "correct"
) -> float:
    """Choose a threshold for confidences.

    ``correct``: a token's responsibilities are the posterior of the starting components, weight 0.8, and its label,
    weight 0.2. ``code``: the published code computes the first term and overwrites it with the second, which it then
    floors at 1e-4 and normalises. Where one label is absent, or independent of the confidence, both components are the
    same and its threshold is 0.3; where the confidences have no spread it is 0.9.

    Args:
        score_N: Confidences of early tokens, in [0, 1].
        agrees_N: Whether the token is the full model's choice.
        default: The threshold without tokens, and for ``correct`` wherever the data cannot tell one: one label alone,
            no spread, or confidences of agreeing tokens that are not higher than the others'.
        form: Which of the two.

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
    """Return whether agreeing tokens score higher than the others beyond chance (Welch's statistic of the means)."""
    agreeing, disagreeing = score_N[agrees_N], score_N[~agrees_N]
    if len(agreeing) < 2 or len(disagreeing) < 2:
        return False
    error = (agreeing.var() / len(agreeing) + disagreeing.var() / len(disagreeing)).sqrt()
    return bool(agreeing.mean() - disagreeing.mean() > STANDARD_ERRORS * error)


def _moments(score_N: Tensor, weight_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and variance of each component, [K]."""
    share_NK = weight_NK / weight_NK.sum(0)
    mean_K = (share_NK * score_N[:, None]).sum(0)
    return mean_K, (share_NK * (score_N[:, None] - mean_K) ** 2).sum(0)


def _level(mean_K: Tensor, variance_K: Tensor, default: float) -> float:
    """The level from which the component with the larger mean is likely enough."""
    alpha_K = mean_K * (mean_K * (1 - mean_K) / variance_K - 1)
    beta_K = alpha_K * (1 - mean_K) / mean_K
    if not bool(((alpha_K > 0) & (beta_K > 0) & alpha_K.isfinite() & beta_K.isfinite()).all()):
        return default
    low, high, n = GRID
    levels_G = torch.linspace(low, high, n, dtype=torch.float64)
    p_GK = _log_density(levels_G, alpha_K, beta_K).exp()
    # Levels that neither component reaches (0 / 0) are not sure enough, as published.
    sure = int((p_GK[:, int(mean_K.argmax())] / p_GK.sum(1) > SHARE).sum())
    # Assumes, as published, that the levels that are sure enough are the uppermost ones.
    return float(levels_G[min(n - sure, n - 1)])


def _log_density(x_N: Tensor, alpha_K: Tensor, beta_K: Tensor) -> Tensor:
    """Return the log-density of each number under each Beta distribution, [N, K]."""
    x_N1 = x_N[:, None]
    norm_K = torch.lgamma(alpha_K + beta_K) - torch.lgamma(alpha_K) - torch.lgamma(beta_K)
    return (alpha_K - 1) * x_N1.log() + (beta_K - 1) * torch.log1p(-x_N1) + norm_K
