"""Carry results of an earlier version over to today's cell ids, where repeating a sample of them gives the same.

Ids of earlier versions held the digest of a method's source; today's hold the versions that engine and method declare
(`harness.cells.cell`). Old results keep their place; what is carried over is a copy under the new id that says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError, told
from exitbench.harness.afterwards.rerun import REPEATABLE, Stored, find_checkpoint, verify
from exitbench.harness.cells.cell import INPUTS, Cell
from exitbench.harness.engine import ENGINE_VERSION
from exitbench.methods.registry import get_method, revision
from exitbench.results.files.atomic_folder import SpoolError
from exitbench.results.spool.attempts import copy_attempt, freed_tables, latest_status, read_attempt, scan_spool

_CARRIED: Final = 2
"""The version of ids that is carried over: the last before this one."""


@dataclass(frozen=True)
class Group:
    """Results of one source of one method on one model, which are carried over together.

    Attributes:
        method: Name of the method.
        model: Name of the model.
        stored: The results.
    """

    method: str
    model: str
    stored: tuple[Stored, ...]

    def sample(self, size: int) -> tuple[Stored, ...]:
        """Choose what to repeat: of every task in turn; quality before the rest, few documents before many."""
        known = [one for one in self.stored if one.cell["kind"] in REPEATABLE]
        by_task: dict[str, list[Stored]] = defaultdict(list)
        for one in sorted(known, key=_work):
            by_task[one.cell["task"]["label"]].append(one)
        rounds = max(map(len, by_task.values()), default=0)
        turns = [own[turn] for turn in range(rounds) for own in by_task.values() if turn < len(own)]
        return tuple(turns[:size])


@dataclass(frozen=True)
class Carried:
    """What became of results of earlier versions.

    Attributes:
        carried: How many have today's id now.
        present: How many had it before, or have a newer result with it.
        repeated: How many were repeated to see whether they are the same.
        left: Why others were left as they are, with how many each reason holds for.
    """

    carried: int
    present: int
    repeated: int
    left: Mapping[str, int]


def find_groups(spool: Path, on_damage: Callable[[SpoolError], None]) -> list[Group]:
    """Return the newest successful result of every cell with an id of the version before, in groups.

    Args:
        spool: The spool.
        on_damage: Told of a result that is not what was written, which is passed over.
    """
    attempts = {attempt.attempt_id: attempt for attempt in scan_spool(spool) if attempt.finished}
    groups: dict[tuple[str, ...], list[Stored]] = defaultdict(list)
    for status in latest_status(spool).values():
        if status.status != "ok":
            continue
        try:
            record = read_attempt(attempts[status.attempt_id].path)
        except SpoolError as damage:
            on_damage(damage)
            continue
        if record.cell["id_version"] == _CARRIED:
            method = record.cell["method"]
            key = (method["name"], method.get("source_sha256", ""), record.cell["model"]["weights_sha256"])
            groups[key].append(Stored(record.attempt, record.cell, record.env))
    return [Group(key[0], own[0].cell["model"]["name"], tuple(own)) for key, own in sorted(groups.items())]


def carry_over(
    groups: Sequence[Group],
    spool: Path,
    repeat: Callable[[Stored], bool],
    size: int,
    on_group: Callable[[Group, str], None] = lambda group, outcome: None,
) -> Carried:
    """Give results today's ids, a group at a time, where a sample of the group gives the same today.

    A result is carried over only with all that it was computed from and compared with. Of those that differ only in the
    source of their method, and so have one id today, it is the newest.

    Args:
        groups: From `find_groups`.
        spool: Where they lie.
        repeat: Says whether a result, repeated, is the same.
        size: How many of each group to repeat.
        on_group: Told what came of a group.
    """
    fate: dict[str, str] = {}
    repeated = 0
    for group in groups:
        sample = group.sample(size)
        repeated += len(sample)
        outcome = _outcome(sample, repeat)
        fate |= dict.fromkeys((one.attempt.cell_id for one in group.stored), outcome)
        on_group(group, outcome)
    stored = {one.attempt.cell_id: one for group in groups for one in group.stored}
    ids = _Ids(stored, fate)
    done = {status.cell_id for status in latest_status(spool).values() if status.status == "ok"}
    left: dict[str, int] = defaultdict(int)
    carried = present = 0
    for cell_id, one in sorted(stored.items(), key=lambda item: item[1].attempt.attempt_id, reverse=True):
        try:
            cell = ids.cell(cell_id)
        except UserError as why:
            left[str(why)] += 1
            continue
        if cell.cell_id in done:
            present += 1
        else:
            _copy(one, cell, spool)
            done.add(cell.cell_id)
            carried += 1
    return Carried(carried, present, repeated, dict(left))


def repetition(
    spool: Path, repetitions: Path, models: Path, logs: Path, data_dir: Path | None
) -> Callable[[Stored], bool]:
    """Return what repeats a stored result, aside, on as many threads as then, and says whether it is the same."""

    def repeat(stored: Stored) -> bool:
        folder = find_checkpoint(stored, models, logs)
        threads = int(stored.env["hardware"]["threads"])
        return verify(stored, spool, repetitions, folder, data_dir, threads, across_versions=True).equal

    return repeat


def _work(one: Stored) -> tuple[int, int, str]:
    return REPEATABLE.index(one.cell["kind"]), one.cell["task"]["documents"], one.attempt.attempt_id


def _outcome(sample: Sequence[Stored], repeat: Callable[[Stored], bool]) -> str:
    """Empty where all of a sample give the same; else why the group stays as it is."""
    if not sample:
        return "nothing of its method and model can be repeated (times alone)"
    for one in sample:
        try:
            if not repeat(one):
                return f"{one.cell['method']['name']} gives something else today"
        except UserError as error:
            return told(error)
    return ""


@dataclass(frozen=True)
class _Ids:
    """Today's cells of old results, by their old ids."""

    stored: Mapping[str, Stored]
    fate: Mapping[str, str]

    def cell(self, cell_id: str) -> Cell:
        """Return today's cell.

        Raises:
            UserError: It cannot be carried over; says why.
        """
        if cell_id not in self.stored:
            raise UserError("what it was computed from or compared with is not here")
        if why := self.fate[cell_id]:
            raise UserError(why)
        if freed_tables(self.stored[cell_id].attempt.path):
            raise UserError("its traces were freed (`exitbench gc --spool`): only a database has them")
        record = self.stored[cell_id].cell
        cls = get_method(record["method"]["name"])
        method = cls.from_params(record["method"]["params"])
        params = {"fit": method.fit_params, "scores": method.score_params}.get(record["kind"], method.params)()
        old = Cell.from_json(record)
        inputs: dict[str, Any] = {
            name: self.cell(of).cell_id for name in (*INPUTS, "full_depth_cell_id") if (of := record[name])
        }
        now = replace(old.method, params=params, revision=revision(cls))
        return replace(old, method=now, engine_version=ENGINE_VERSION, **inputs)


def _copy(old: Stored, cell: Cell, spool: Path) -> None:
    record = {**old.cell, **cell.to_json(), "carried_over_from": old.attempt.attempt_id}
    record["method"].pop("source_sha256", None)
    copy_attempt(old.attempt, spool, record)
