"""The exit decision after a block: which scores are above the threshold."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from exitbench.harness.engine.decoding.decode import exceeds_threshold


@given(st.lists(st.floats(width=32), min_size=1, max_size=5), st.floats())
@example([0.1], 0.1)  # in double precision the score is above
@example([1.0], math.nextafter(1.0, 0.0))
@example([3.4e38], 1e39)
def test_float32_scores_are_compared_in_float32(scores: list[float], level: float) -> None:
    score_A = torch.tensor(scores, dtype=torch.float32)
    assert exceeds_threshold(score_A, level) == (score_A > level).tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_scores_of_other_number_formats_are_compared_in_that_format(dtype: torch.dtype) -> None:
    score_A = torch.tensor([0.1, 0.9, float("nan")], dtype=dtype)
    for level in (0.1, 0.9, float(score_A[0])):
        assert exceeds_threshold(score_A, level) == (score_A > level).tolist()


def test_rows_may_have_different_thresholds() -> None:
    assert exceeds_threshold(torch.tensor([0.3, 0.3]), torch.tensor([0.2, 0.4])) == [True, False]
