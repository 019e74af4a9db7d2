"""When blocks stop changing their mind: against a walk over each token's lists, written from the definitions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from exitbench.results.settling import SIMILAR, settling

LISTS = st.integers(1, 6).flatmap(
    lambda blocks: st.lists(
        st.tuples(*[st.lists(st.sampled_from([0.1, 0.5, 0.9, 0.95]), min_size=blocks, max_size=blocks)] * 2),
        min_size=1,
        max_size=4,
    )
)


@given(LISTS)
def test_each_number_is_what_a_walk_over_the_blocks_finds(tokens: list[tuple[list[float], list[float]]]) -> None:
    p_final, cosine = (np.array(lists) for lists in zip(*tokens, strict=True))
    columns = settling(p_final, cosine)
    for n, (p, s) in enumerate(tokens):
        blocks = len(p)
        s = [*s[:-1], 1.0]  # a state is its own equal
        rises = [all(p[k] >= p[k - 1] for k in range(start, blocks)) for start in range(1, blocks + 1)]
        grows = [all(s[k] > s[k - 1] for k in range(start, blocks - 1)) for start in range(1, blocks + 1)]
        assert columns["monotone_from"][n] == 1 + rises.index(True)
        assert columns["first_similar"][n] == 1 + [value >= SIMILAR for value in s].index(True)
        assert columns["similar_blocks"][n] == sum(value >= SIMILAR for value in s[:-1])
        assert columns["grows_from"][n] == 1 + grows.index(True)
