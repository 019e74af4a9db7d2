"""Distillation of a decoder's deep states into its own shallow ones (FREE, Bae et al. 2023)."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exitbench.errors import UserError, suggestion
from exitbench.harness.training.objectives.losses import check_shallow

DistillationKind = Literal["last", "uniform", "closest-code", "closest-text"]

# The one row of FREE's published table (L=24: S=4, 6, 8, 10, 12; L=12: S=3) that the rule below does not give.
UNEVEN_TEACHERS = {(24, 10): (3, 6, 8, 11, 13, 16, 18, 20, 22, 24)}


def teacher_blocks(n_blocks: int, shallow: int) -> list[int]:
    """Blocks 1..L, in order, that teach blocks 1..S: FREE's table, and ceil(k L / S) for k = 1..S beyond it.

    FREE's code knows six pairs of depths; the rule gives five of them, the sixth is kept as published.

    Raises:
        UserError: S is not a block before the last.
    """
    check_shallow(n_blocks, shallow)
    published = UNEVEN_TEACHERS.get((n_blocks, shallow))
    return list(published or (-(-k * n_blocks // shallow) for k in range(1, shallow + 1)))


def distillation_loss(
    student: Sequence[Tensor], teacher: Sequence[Tensor], kind: DistillationKind, transform: nn.Module | None = None
) -> Tensor:
    """Mean squared error between final-normed states of shallow and deep blocks.

    Each pair's error is a mean over elements, the loss a mean over pairs; which states are paired:

    * `last`: block S and block L.
    * `uniform`: block k and the k-th of `teacher_blocks`.
    * `closest-code`: each of `teacher_blocks` and the block `closest_below` gives it, as FREE's code does.
    * `closest-text`: each shallow block and the closest of blocks S+1..L, as the Monotonic-Early-Exit text says.

    Args:
        student: States of blocks 1..S, each [N, D]; gradients go here.
        teacher: States of blocks 1..L, each [N, D]; constants.
        kind: Which states are paired.
        transform: A map [N, D] -> [N, D] on the student's side.

    Returns:
        A scalar.

    Raises:
        UserError: No such kind, or S is not a block before the last.
    """
    check_shallow(len(teacher), len(student))
    students = [h if transform is None else transform(h) for h in student]
    teachers = [h.detach() for h in teacher]
    tables = [teachers[block - 1] for block in teacher_blocks(len(teachers), len(students))]
    if kind == "last":
        pairs = [(students[-1], teachers[-1])]
    elif kind == "uniform":
        pairs = list(zip(students, tables, strict=True))
    elif kind == "closest-code":
        chosen = closest_below(_errors(tables, students))
        pairs = [(students[k], h) for k, h in zip(chosen, tables, strict=True)]
    elif kind == "closest-text":
        deep = teachers[len(students) :]
        pairs = [(h, deep[int(j)]) for h, j in zip(students, _errors(students, deep).argmin(1), strict=True)]
    else:
        raise UserError(f"Distillation {kind!r} is not known.{suggestion(kind, get_args(DistillationKind))}")
    return torch.stack([F.mse_loss(ours, theirs) for ours, theirs in pairs]).mean()


def closest_below(errors: Tensor) -> list[int]:
    """Give each row, from the last to the first, the column of least error before the column given last.

    Where none is left, the last given one is given again.

    Args:
        errors: Error of each column (student) for each row (teacher), [T, S].

    Returns:
        A column, from 0, for each row in order.
    """
    rows: list[list[float]] = errors.tolist()
    chosen, bound = [], errors.shape[1]
    for row in reversed(rows):
        bound = min(range(bound), key=row.__getitem__, default=bound)
        chosen.append(bound)
    return chosen[::-1]


@torch.no_grad()
def _errors(rows: Sequence[Tensor], columns: Sequence[Tensor]) -> Tensor:
    """Mean squared error of every row with every column, [rows, columns]."""
    return torch.stack([torch.stack([F.mse_loss(a, b) for b in columns]) for a in rows])
