"""Half widths of 95 % intervals, written without the SQL of the views that they are compared with."""

import numpy as np

T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306}
"""97.5% quantiles of Student's t at one degree of freedom less than documents."""


def half_of_share(share: float, half: float, documents: int) -> float:
    """Return the distance to the farther end of a share's logit interval, given the half width of its t interval."""
    if half < 1e-6:
        return max(share, 1 - share) * (1 - 0.025 ** (1 / documents))
    logit, steps = np.log(share / (1 - share)), half / (share * (1 - share))
    return float(max(share - 1 / (1 + np.exp(steps - logit)), 1 / (1 + np.exp(-steps - logit)) - share))
