"""Rows that are still active at a block: they are selected by index, and groups that exited separately are joined."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from exitbench.methods.base import ActiveRows, argmax_token

TEXTS = (([1], []), ([2], [5]), ([3], [6, 7]), ([4], [8]))
ALL = ActiveRows((1, 2, 3, 4), (7, 8, 9, 6), (0, 1, 0, 2), range(4), texts_A=TEXTS)


def take(active: ActiveRows, *index: int) -> ActiveRows:
    return active.take(index, torch.tensor(index))


def told(active: ActiveRows) -> tuple[list[int], ...]:
    assert active.rows_A is not None
    assert active.texts_A == tuple(TEXTS[row] for row in active.rows), "each row keeps its text"
    columns = (active.positions_A, active.seeds_A, active.waiting_A, active.rows, active.rows_A.tolist())
    return tuple(list(column) for column in columns)


def test_selecting_rows_keeps_their_columns_and_batch_positions() -> None:
    some = take(ALL, 1, 2, 3)
    assert told(some) == ([2, 3, 4], [8, 9, 6], [1, 0, 2], [1, 2, 3], [1, 2, 3])
    assert told(take(some, 0, 2)) == ([2, 4], [8, 6], [1, 2], [1, 3], [1, 3])


def test_groups_that_exited_separately_are_joined_in_exit_order() -> None:
    rest = take(ALL, 0, 2, 3)
    joined = ActiveRows.joined([take(ALL, 1), take(rest, 1, 2), take(rest, 0)])
    assert told(joined) == ([2, 3, 4, 1], [8, 9, 6, 7], [1, 0, 2, 0], [1, 2, 3, 0], [1, 2, 3, 0])


@given(st.integers(0, 2**31), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_lowest_of_tied_tokens_is_chosen(seed: int, dtype: torch.dtype) -> None:
    values = torch.tensor([-torch.inf, -1.0, 0.0, 2.0], dtype=dtype)
    logits_AV = values[torch.randint(4, (3, 300), generator=torch.Generator().manual_seed(seed))]
    assert argmax_token(logits_AV).tolist() == [row.index(max(row)) for row in logits_AV.tolist()]
