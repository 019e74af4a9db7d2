"""Distillation of deep states into shallow ones: the pairs of blocks, and the distances."""

import itertools
from collections.abc import Sequence
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from exitbench.errors import UserError
from exitbench.harness.training.objectives import (
    UNEVEN_TEACHERS,
    DistillationKind,
    assign_students,
    distillation_loss,
    teacher_blocks,
)

# FREE's table as published: counted from 0.
PUBLISHED = {
    (24, 12): [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23],
    (24, 10): [2, 5, 7, 10, 12, 15, 17, 19, 21, 23],
    (24, 8): [2, 5, 8, 11, 14, 17, 20, 23],
    (24, 6): [3, 7, 11, 15, 19, 23],
    (24, 4): [5, 11, 17, 23],
    (12, 3): [3, 7, 11],
}


def depths_up_to(most: int) -> st.SearchStrategy[tuple[int, int]]:
    """Draw numbers of blocks (teacher, student); the student has fewer."""
    return st.integers(2, most).flatmap(lambda blocks: st.tuples(st.just(blocks), st.integers(1, blocks - 1)))


def states(count: int, seed: int = 0) -> list[Tensor]:
    """Return one random float64 state tensor [3, 4] per block, with gradients enabled."""
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(3, 4, generator=rng, dtype=torch.float64).requires_grad_() for _ in range(count)]


def error(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the mean squared error, computed element by element."""
    squares = [(a - b) ** 2 for a, b in zip(ours.flatten(), theirs.flatten(), strict=True)]
    return sum(squares, torch.zeros((), dtype=torch.float64)) / len(squares)


def pairs_by_hand(
    student: Sequence[Tensor], teacher: Sequence[Tensor], kind: DistillationKind
) -> list[tuple[int, int]]:
    """Return the pairs (student block, teacher block), from 1, by a literal reading of the definitions."""
    shallow, deep = len(student), len(teacher)
    table = PUBLISHED.get((deep, shallow)) or [round((k + 1) * deep / shallow) - 1 for k in range(shallow)]
    if kind == "last":
        return [(shallow, deep)]
    if kind == "uniform":
        return [(k + 1, j + 1) for k, j in enumerate(table)]
    pairs: list[tuple[int, int]] = []
    if kind == "closest-text":
        for k, ours in enumerate(student, start=1):
            distances = {j: error(ours, teacher[j - 1]).item() for j in range(shallow + 1, deep + 1)}
            pairs.append((k, min(distances, key=distances.__getitem__)))
        return pairs
    last = deep
    for j in reversed(table):
        order = sorted(range(shallow), key=lambda k, j=j: error(student[k], teacher[j]).item())  # type: ignore[misc]
        allowed = [k for k in order if k < last]
        last = allowed[0] if allowed else last
        pairs.append((last + 1, j + 1))
    return pairs


# ---- the table ----


@pytest.mark.parametrize(("depths", "wanted"), PUBLISHED.items(), ids=str)
def test_teacher_blocks_equal_every_published_row(depths: tuple[int, int], wanted: list[int]) -> None:
    assert teacher_blocks(*depths) == [block + 1 for block in wanted]


def test_teacher_rule_gives_every_published_row_except_the_hard_coded_ones() -> None:
    by_rule = {
        (blocks, shallow): [-(-k * blocks // shallow) - 1 for k in range(1, shallow + 1)]
        for blocks, shallow in PUBLISHED
    }
    assert {depths for depths in PUBLISHED if by_rule[depths] != PUBLISHED[depths]} == set(UNEVEN_TEACHERS)


@given(depths_up_to(60))
def test_teacher_blocks_ascend_to_the_last_block_and_are_deeper_than_their_students(depths: tuple[int, int]) -> None:
    blocks, shallow = depths
    teachers = teacher_blocks(blocks, shallow)
    assert len(teachers) == shallow and teachers[-1] == blocks
    assert all(a < b for a, b in itertools.pairwise(teachers))
    assert all(teacher > student for student, teacher in enumerate(teachers, start=1))


@pytest.mark.parametrize("shallow", [0, 6])
def test_invalid_number_of_student_blocks_is_refused(shallow: int) -> None:
    with pytest.raises(UserError, match="1 to 5"):
        teacher_blocks(6, shallow)


# ---- the loss ----


@pytest.mark.parametrize("kind", get_args(DistillationKind))
@pytest.mark.parametrize("depths", [(6, 3), (12, 3), (24, 10), (4, 1)])
@pytest.mark.parametrize("transformed", [False, True])
def test_distillation_loss_and_gradients_equal_a_reference_implementation(
    kind: DistillationKind, depths: tuple[int, int], transformed: bool
) -> None:
    teacher, student = states(depths[0], seed=1), states(depths[1], seed=2)
    matrix = torch.randn(4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64).requires_grad_()
    transform = nn.Linear(4, 4, bias=False).double()
    transform.weight = nn.Parameter(matrix.detach().clone())
    leaves = [*student, transform.weight] if transformed else student
    loss = distillation_loss(student, teacher, kind, transform if transformed else None)

    mapped = [h @ matrix.T for h in student] if transformed else student
    pairs = pairs_by_hand(mapped, teacher, kind)
    wanted = sum((error(mapped[k - 1], teacher[j - 1].detach()) for k, j in pairs), torch.zeros(())) / len(pairs)
    torch.testing.assert_close(loss, wanted)
    theirs = [*student, matrix] if transformed else student
    torch.testing.assert_close(
        torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(wanted, theirs, allow_unused=True, materialize_grads=True),
    )


@pytest.mark.parametrize("kind", get_args(DistillationKind))
def test_teacher_states_get_no_gradient(kind: DistillationKind) -> None:
    teacher, student = states(6), states(3, seed=1)
    distillation_loss(student, teacher, kind).backward()
    assert all(h.grad is None for h in teacher)
    assert student[-1].grad is not None


@settings(max_examples=25)
@given(depths_up_to(12), st.integers(0, 100))
def test_distillation_loss_is_zero_only_if_paired_states_are_equal(depths: tuple[int, int], seed: int) -> None:
    blocks, shallow = depths
    teacher = [h.detach() for h in states(blocks, seed)]
    student = [teacher[block - 1].clone() for block in teacher_blocks(blocks, shallow)]
    assert distillation_loss(student, teacher, "last").item() == 0
    assert distillation_loss(student, teacher, "uniform").item() == 0
    assert distillation_loss(student, teacher, "closest-code").item() == 0
    assert distillation_loss([teacher[-1]] * shallow, teacher, "closest-text").item() == 0
    student[-1][0, 0] += 1e-3
    assert all(distillation_loss(student, teacher, kind).item() > 0 for kind in ("last", "uniform", "closest-code"))


def test_closest_text_and_closest_code_pair_blocks_differently() -> None:
    near = [torch.full((1, 1), value) for value in (0.0, 1.0, 2.0, 9.0, 9.0, 8.0)]
    student = [torch.full((1, 1), value) for value in (0.0, 7.0)]
    # Code: block 6 (8) takes student 2, block 3 (2) must take student 1. Text: 0 -> 2 of block 3, 7 -> 8 of block 6.
    assert distillation_loss(student, near, "closest-code").item() == pytest.approx((4 + 1) / 2)
    assert distillation_loss(student, near, "closest-text").item() == pytest.approx((4 + 1) / 2)
    student[1] = torch.full((1, 1), 3.0)
    assert distillation_loss(student, near, "closest-code").item() == pytest.approx((4 + 25) / 2)
    assert distillation_loss(student, near, "closest-text").item() == pytest.approx((4 + 1) / 2)


@given(
    st.tuples(st.integers(1, 8), st.integers(1, 8)).flatmap(
        lambda size: st.lists(
            st.lists(st.floats(0, 9), min_size=size[1], max_size=size[1]), min_size=size[0], max_size=size[0]
        )
    )
)
def test_greedy_student_assignment_is_increasing_until_students_run_out(rows: list[list[float]]) -> None:
    chosen = assign_students(torch.tensor(rows, dtype=torch.float64))
    assert chosen[-1] == rows[-1].index(min(rows[-1]))
    for own, above, row in zip(chosen[-2::-1], chosen[:0:-1], rows[-2::-1], strict=True):
        assert own < above or own == above == 0
        assert all(row[own] <= row[other] for other in range(above))
