"""Conformance before a run: the methods of a plan, tried before their cells are run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from exitbench.harness.conformance import Verdict
from exitbench.harness.engine.checkpoints.exit_head_files import read_exit_blocks
from exitbench.harness.planning.kept_verdicts import Setting, known_verdicts, verdicts
from exitbench.harness.planning.plan import Group, Plan
from exitbench.harness.planning.retry import RETRIED, Retry

_OURS: Final = "exitbench"


def with_verdicts(plan: Plan, retry: Retry, folder: Path, on_trial: Callable[[int], None]) -> Plan:
    """Return the plan with a verdict on the method of every cell that is to be run.

    Args:
        plan: The plan.
        retry: Which cells are to be run.
        folder: Where verdicts are kept.
        on_trial: Told how many settings are to be tried, if there are any.
    """
    asked = _settings(plan, retry)
    verdict_of = verdicts(asked.values(), folder, on_trial)
    groups = []
    for group in plan.groups:
        cells = []
        for planned in group.cells:
            setting = asked.get(planned.item.cell.cell_id)
            record = verdict_of[setting].to_json() if setting else None
            cells.append(replace(planned, item=replace(planned.item, conformance=record)))
        groups.append(replace(group, cells=tuple(cells)))
    return replace(plan, groups=tuple(groups))


def tried(plan: Plan, retry: Retry, folder: Path) -> Iterator[str]:
    """Say what is known of the methods to be run: those of other distributions are tried, ours wait for the run."""
    asked = _settings(plan, retry)
    ours = {setting for setting in asked.values() if setting.distribution == _OURS}
    others = dict.fromkeys(setting for setting in asked.values() if setting not in ours)
    verdict_of = known_verdicts(ours, folder) | verdicts(others, folder)
    by_cell = {cell_id: verdict_of[setting] for cell_id, setting in asked.items() if setting in verdict_of}
    yield from _failing_lines(plan, by_cell)
    kept = Counter(setting.name for setting in others if verdict_of[setting].conforms)
    yield from (f"{name} conforms{f' in {times} settings' if times > 1 else ''}" for name, times in kept.items())


def failing(plan: Plan) -> Iterator[str]:
    """Name the cells of a plan whose method fails, one for each way of failing."""
    items = [planned.item for group in plan.groups for planned in group.cells]
    yield from _failing_lines(
        plan, {item.cell.cell_id: Verdict.from_json(item.conformance) for item in items if item.conformance}
    )


def _failing_lines(plan: Plan, by_cell: Mapping[str, Verdict]) -> Iterator[str]:
    first: dict[tuple[str, Verdict], str] = {}
    for item in (planned.item for group in plan.groups for planned in group.cells):
        verdict = by_cell.get(item.cell.cell_id)
        if verdict is not None and not verdict.conforms:
            first.setdefault((item.cell.method.name, verdict), item.label)
    yield from (f"{label} {verdict}" for (_, verdict), label in first.items())


def _settings(plan: Plan, retry: Retry) -> dict[str, Setting]:
    """The setting of every cell that is to be run, by the cell's id."""
    return {cell_id: setting for group in plan.groups for cell_id, setting in _of_group(group, retry)}


def _of_group(group: Group, retry: Retry) -> Iterator[tuple[str, Setting]]:
    cells = [planned.item.cell for planned in group.cells if planned.state in RETRIED[retry]]
    if cells and group.folder is not None:
        exit_blocks = read_exit_blocks(group.folder)
        for cell in cells:
            yield cell.cell_id, Setting.of(cell.method, cell.model.blocks, exit_blocks)
