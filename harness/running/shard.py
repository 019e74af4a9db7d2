"""Shards: the parts of a suite that different machines run, when a user splits a suite by hand.

A pair of a model and a task, with all of its cells, is never split. So dependencies run once, on the machine that needs
them; no machine waits for another; and timings that are compared come from one machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from exitbench.errors import UserError
from exitbench.terminal import number_of

if TYPE_CHECKING:  # a plan needs torch, and the command line reads shards before torch is known to be needed
    from exitbench.harness.planning.plan import Plan


@dataclass(frozen=True)
class Shard:
    """One of `count` parts of a suite, with its number, from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def require_apart(shards: Sequence[Shard]) -> None:
    """Check that all shards are of one split (the same number of parts, `count`), and that none is named twice.

    Raises:
        UserError: The shards have different counts, or one of them is repeated.
    """
    for before, shard in pairwise(shards):
        if shard.count != before.count:
            raise UserError(f"--shard {before} and {shard}: overlap, as parts of two splits. Name parts of one.")
    if len(set(shards)) < len(shards):
        raise UserError(f"--shard {' '.join(map(str, shards))}: overlap; name each part once.")


def part(plan: "Plan", shards: Sequence[Shard]) -> "Plan":
    """Return the part of a plan that belongs to any of the shards; the whole plan if there are no shards.

    Pairs of a model and a task are assigned to the shards in turn, in the suite's order. The result depends only on the
    suite and the selection, which are the same on every machine.

    Raises:
        UserError: The shards overlap, there are more shards than pairs, or a model is still to be trained.
    """
    if not shards:
        return plan
    require_apart(shards)
    if plan.untrained:
        # trained on each machine, its weights would differ in their last bits, and so would every cell's id
        names = ", ".join(recipe.name for recipe in plan.untrained)
        raise UserError(
            f"--shard: to be trained first: {names}. `exitbench train` on one machine, then copy RUNS/models to all."
        )
    pairs = list(dict.fromkeys(_pair(group.model.name, label) for group in plan.groups for label in group.labels))
    if shards[0].count > len(pairs):
        raise UserError(
            f"--shard {shards[0]}: a model on a task is run by one machine, and this selection has "
            f"{number_of(len(pairs), 'such pair')}. Allowed: K/N with N up to {len(pairs)}."
        )
    selected = {pair for shard in shards for pair in pairs[shard.number - 1 :: shard.count]}
    groups = []
    for group in plan.groups:
        labels = tuple(label for label in group.labels if _pair(group.model.name, label) in selected)
        cells = tuple(cell for cell in group.cells if _pair(group.model.name, cell.item.label) in selected)
        if labels:
            groups.append(replace(group, labels=labels, cells=cells))
    return replace(plan, groups=tuple(groups))


def _pair(model: str, label: str) -> tuple[str, str]:
    """Return (model, task) of a cell with the label MODEL/TASK/METHOD/KIND."""
    return model, label.removeprefix(f"{model}/").partition("/")[0]
