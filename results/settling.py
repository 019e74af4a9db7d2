"""When the blocks of a model stop changing their mind about a token: one number a token, from its lists by block."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

SIMILAR: Final = 0.9
"""Cosine with the last block's state from which a block's state counts as similar (MEE, Table 1)."""


def settling(p_final_NL: NDArray[np.floating], cosine_last_NL: NDArray[np.floating]) -> dict[str, NDArray[np.int16]]:
    """Return the probe's columns that follow from two of its lists.

    Args:
        p_final_NL: Probability of the final token at blocks 1..L.
        cosine_last_NL: Cosine of a block's state with that of block L.

    Returns:
        For each of N tokens: `monotone_from`, the block from which the probability falls at no further block;
        `first_similar`, the first block whose state is similar to the last one's (L at the latest); `similar_blocks`,
        how many of blocks 1..L-1 are; `grows_from`, the block from which the similarity grows strictly with each of
        blocks 1..L-1.
    """
    similar_NL = cosine_last_NL >= SIMILAR
    similar_NL[:, -1] = True
    columns = {
        "monotone_from": _after_last(p_final_NL[:, 1:] < p_final_NL[:, :-1]),
        "first_similar": similar_NL.argmax(1) + 1,
        "similar_blocks": similar_NL[:, :-1].sum(1),
        "grows_from": _after_last(cosine_last_NL[:, 1:-1] <= cosine_last_NL[:, :-2]),
    }
    return {name: values.astype(np.int16) for name, values in columns.items()}


def _after_last(broken_NK: NDArray[np.bool_]) -> NDArray[np.int_]:
    """Return the block after the last step (from block k to k + 1, k = 1..K) at which something is broken, else 1."""
    steps = np.arange(1, broken_NK.shape[1] + 1)
    last_N: NDArray[np.int_] = np.max(np.where(broken_NK, steps, 0), axis=1, initial=0)
    return 1 + last_N
