"""Conformance before a run: check the methods of a plan before their cells are run."""

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
    """Return the plan with a conformance verdict for the method of every cell to run.

    Args:
        plan: The plan.
        retry: Which cells to run.
        folder: Folder of the verdict cache.
        on_trial: Called with the number of settings to check, if there are any.
    """
    settings = _settings(plan, retry)
    verdict_of = verdicts(settings.values(), folder, on_trial)
    groups = []
    for group in plan.groups:
        cells = []
        for planned in group.cells:
            setting = settings.get(planned.item.cell.cell_id)
            record = verdict_of[setting].to_json() if setting else None
            cells.append(replace(planned, item=replace(planned.item, conformance=record)))
        groups.append(replace(group, cells=tuple(cells)))
    return replace(plan, groups=tuple(groups))


def tried(plan: Plan, retry: Retry, folder: Path) -> Iterator[str]:
    """Yield lines on the conformance of the methods to run.

    Third-party methods are checked now; bundled ones only if their verdict is known.
    """
    settings = _settings(plan, retry)
    bundled = {setting for setting in settings.values() if setting.distribution == _OURS}
    third_party = dict.fromkeys(setting for setting in settings.values() if setting not in bundled)
    verdict_of = known_verdicts(bundled, folder) | verdicts(third_party, folder)
    by_cell = {cell_id: verdict_of[setting] for cell_id, setting in settings.items() if setting in verdict_of}
    yield from _failing_lines(plan, by_cell)
    conforming_counts = Counter(setting.name for setting in third_party if verdict_of[setting].conforms)
    yield from (
        f"{name} conforms{f' in {times} settings' if times > 1 else ''}" for name, times in conforming_counts.items()
    )


def failing(plan: Plan) -> Iterator[str]:
    """Yield a line per distinct conformance failure, with the first cell that has it."""
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
    """Return the setting of every cell to run, by cell id."""
    return {cell_id: setting for group in plan.groups for cell_id, setting in _group_settings(group, retry)}


def _group_settings(group: Group, retry: Retry) -> Iterator[tuple[str, Setting]]:
    cells = [planned.item.cell for planned in group.cells if planned.state in RETRIED[retry]]
    if cells and group.folder is not None:
        exit_blocks = read_exit_blocks(group.folder)
        for cell in cells:
            yield cell.cell_id, Setting.of(cell.method, cell.model.blocks, exit_blocks)
