"""Rows that are still active at a block: they are selected by index, and groups that exited separately are joined."""

from __future__ import annotations

import torch

from exitbench.methods.base import ActiveRows

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
