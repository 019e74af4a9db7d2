"""First blocks from which predictions stay stable: compared with a loop over each token's blocks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitbench.results.statistics.stability import SIMILAR, TOLERANCE, stability

VALUES = st.sampled_from([0.1, 0.5, 0.495, 0.485, 0.9, 0.95])
LISTS = st.integers(1, 6).flatmap(
    lambda blocks: st.lists(
        st.tuples(*[st.lists(VALUES, min_size=blocks, max_size=blocks)] * 2), min_size=1, max_size=4
    )
)


@given(LISTS)
def test_stability_columns_equal_a_loop_over_blocks(tokens: list[tuple[list[float], list[float]]]) -> None:
    p_final, cosine = (np.array(lists) for lists in zip(*tokens, strict=True))
    columns = stability(p_final, cosine)
    for n, (p, s) in enumerate(tokens):
        blocks = len(p)
        s = [*s[:-1], 1.0]  # a state is its own equal
        rises = [all(p[k] >= p[k - 1] for k in range(start, blocks)) for start in range(1, blocks + 1)]
        grows = [all(s[k] > s[k - 1] for k in range(start, blocks - 1)) for start in range(1, blocks + 1)]
        assert columns["monotone_from"][n] == 1 + rises.index(True)
        assert columns["first_similar"][n] == 1 + [value >= SIMILAR for value in s].index(True)
        assert columns["similar_blocks"][n] == sum(value >= SIMILAR for value in s[:-1])
        assert columns["grows_from"][n] == 1 + grows.index(True)
        assert columns["nearly_monotone_from"][n] == nearly_from(p)
        assert columns["nearly_grows_from"][n] == nearly_from(s[:-1])


def nearly_from(values: list[float]) -> int:
    """Return the smallest block s such that v_j >= v_i - `TOLERANCE` for all blocks s <= i < j."""
    for start in range(len(values)):
        tail = values[start:]
        if all(early - late <= TOLERANCE for k, early in enumerate(tail) for late in tail[k + 1 :]):
            return start + 1
    return 1


def test_rounding_noise_is_no_fall_but_accumulated_small_falls_are() -> None:
    wiggles = [0.5, 0.9, 0.8999, 0.9, 0.8998]
    slides = [0.93, 0.924, 0.92, 0.914, 0.911]
    columns = stability(np.array([wiggles, slides]), np.ones((2, 5)))
    assert columns["monotone_from"].tolist() == [5, 5]
    assert columns["nearly_monotone_from"].tolist() == [1, 3]
    assert columns["tolerance"].tolist() == pytest.approx([TOLERANCE] * 2)
