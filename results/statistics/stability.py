"""Stability of predictions over blocks: the block from which a token's probability and state do not change any more."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

SIMILAR: Final = 0.9
"""Minimum cosine with the last block's state for a block's state to count as similar (MEE, Table 1)."""

TOLERANCE: Final = 0.01
"""Total decrease of a probability or cosine that still counts as nearly monotone: more than rounding."""


def stability(p_final_NL: NDArray[np.floating], cosine_last_NL: NDArray[np.floating]) -> dict[str, NDArray[np.number]]:
    """Return the probe columns that say from which block on state and probability of the full-depth token are stable.

    Args:
        p_final_NL: Probability of the full-depth token at blocks 1..L, for each of N tokens.
        cosine_last_NL: Cosine similarity of each block's state to that of block L.

    Returns:
        Columns by name, [N]. `monotone_from`: the first block from which on the probability never falls.
        `first_similar`: the first block whose state is similar to block L's (L at the latest). `similar_blocks`: the
        number of such blocks among 1..L-1. `grows_from`: the first block from which on the cosine grows strictly, up to
        block L-1. `nearly_monotone_from` and `nearly_grows_from`: the same, but the value may fall by at most
        `tolerance` below any value since that block.
    """
    similar_NL = cosine_last_NL >= SIMILAR
    similar_NL[:, -1] = True
    columns = {
        "monotone_from": _after_last(p_final_NL[:, 1:] < p_final_NL[:, :-1]),
        "first_similar": similar_NL.argmax(1) + 1,
        "similar_blocks": similar_NL[:, :-1].sum(1),
        "grows_from": _after_last(cosine_last_NL[:, 1:-1] <= cosine_last_NL[:, :-2]),
        "nearly_monotone_from": _after_last(_falls(p_final_NL) > TOLERANCE),
        "nearly_grows_from": _after_last(_falls(cosine_last_NL[:, :-1]) > TOLERANCE),
    }
    tolerance_N = np.full(len(p_final_NL), TOLERANCE)
    return {name: values.astype(np.int16) for name, values in columns.items()} | {"tolerance": tolerance_N}


def _falls(values_NK: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return, per token and block k, the largest decrease from block k's value to a later block's, [N, K - 1].

    `values_NK` has the values of N tokens at blocks 1..K; the result has columns k = 1..K-1.
    """
    least_NK = np.minimum.accumulate(values_NK[:, ::-1].astype(np.float64), axis=1)[:, ::-1]
    return values_NK[:, :-1].astype(np.float64) - least_NK[:, 1:]


def _after_last(broken_NK: NDArray[np.bool_]) -> NDArray[np.int_]:
    """Return, per token, the block after the last step at which `broken` is true; 1 if it is true at none.

    `broken` is [N, K]; its column k = 1..K is the step from block k to block k + 1.
    """
    steps = np.arange(1, broken_NK.shape[1] + 1)
    last_N: NDArray[np.int_] = np.max(np.where(broken_NK, steps, 0), axis=1, initial=0)
    return 1 + last_N
