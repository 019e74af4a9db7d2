"""``exitbench status``: what the spool, or a lake, says at this moment; the database is not opened."""

import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Set
from typing import Any

from exitbench.errors import UserError
from exitbench.harness.cli.commands.common import data_size, duration
from exitbench.harness.service.folders import Runs, existing_runs
from exitbench.reports.labels import describe, shorten
from exitbench.results.analysis.status import Running, SpoolStatus, spool_status
from exitbench.terminal import number_of, tell

REFRESH_S = 2.0
_WIDTH = 150
_CLEAR = "\033[2J\033[H"


def status(arguments: Namespace) -> int:
    """Print counts, running attempts, the last failures, the time left and the size; or what a lake has.

    Raises:
        UserError: The spool or the lake cannot be listed, or the suite is not usable.
    """
    if arguments.lake is not None:
        return _status_of_lake(arguments)
    suite = None if arguments.suite is None else _Suite(arguments)
    runs = existing_runs(arguments.runs)

    def text() -> str:
        if suite is None:
            found = spool_status(runs.spool)
            lines = [*_lines(found, ())]
        else:
            found = spool_status(runs.spool, suite.cell_ids.__contains__)
            lines = [*_lines(found, suite.cell_ids), suite.time_left(found)]
        if not found.attempts and runs.database.exists():
            lines.append(f"{runs.database} is not looked at; `exitbench sql` asks it.")
        return "\n".join(lines)

    if not arguments.watch:
        tell(text(), sys.stdout)
        return 0
    try:
        while True:
            print(end=_CLEAR)
            tell(text(), sys.stdout)
            time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        return 0


def _status_of_lake(arguments: Namespace) -> int:
    """Print what a lake has, of a suite or at all."""
    from exitbench.results.lake.reading import lake_lines

    if arguments.watch:
        raise UserError("--watch: follows the spool of this machine; a lake is looked at once.")
    labels = None if arguments.suite is None else _labels(arguments)
    tell("\n".join(lake_lines(arguments.lake, labels)), sys.stdout)
    return 0


def _labels(arguments: Namespace) -> dict[str, str]:
    """Names of a suite's cells, by id.

    Raises:
        UserError: A model is not on this machine, so that its cells have no ids here.
    """
    from exitbench.harness.planning.plan import make_plan
    from exitbench.harness.planning.suite import load_suite

    runs = Runs(arguments.runs)
    plan = make_plan(load_suite(arguments.suite), runs.spool, runs.models, arguments.data_dir)
    if absent := [group.model.name for group in plan.groups if group.folder is None]:
        raise UserError(f"{', '.join(absent)}: not on this machine, so that its cells are not known. Copy it to RUNS.")
    return {cell.item.cell.cell_id: cell.item.label for group in plan.groups for cell in group.cells}


class _Suite:
    """The cells of a suite and how long those that are missing will take; planned once, however long one watches."""

    def __init__(self, arguments: Namespace) -> None:
        # Imported here: a plan needs the methods, and they need torch.
        from exitbench.harness.planning.estimate import estimate_plan
        from exitbench.harness.planning.plan import make_plan
        from exitbench.harness.planning.suite import load_suite

        runs = existing_runs(arguments.runs)
        plan = make_plan(load_suite(arguments.suite), runs.spool, runs.models, arguments.data_dir)
        self._untrained = sum(len(group.labels) for group in plan.groups if group.folder is None)
        self._estimates = estimate_plan(plan, runs.spool, "all")
        self.cell_ids: Set[str] = {cell.item.cell.cell_id for group in plan.groups for cell in group.cells}

    def time_left(self, found: SpoolStatus) -> str:
        """One line: the running attempts' rest and the cells that nobody has begun, one after the other."""
        running = {attempt.attempt.cell_id: attempt.left_s(found.taken_s) for attempt in found.running}
        missing = [cell_id for cell_id in self.cell_ids if cell_id not in found.states]
        seconds = [*running.values(), *(self._estimates[cell_id].seconds for cell_id in missing)]
        known = sum(value for value in seconds if value is not None)
        unknown = sum(value is None for value in seconds) + self._untrained
        more = f", and {number_of(unknown, 'cell')} of unknown length" if unknown else ""
        return f"time left, one cell after the other: {duration(known)}{more}"


def _lines(found: SpoolStatus, cell_ids: Set[str] | tuple[()]) -> Iterator[str]:
    counts = found.counts
    new = len(cell_ids) - len(found.states) if cell_ids else 0
    states = [*sorted(counts.items()), *([("new", new)] if new else [])]
    counted = ", ".join(f"{count} {state}" for state, count in states)
    size = data_size(found.size_bytes)
    cells, attempts = number_of(len(found.states) + new, "cell"), number_of(found.attempts, "attempt")
    yield f"{cells}: {counted or 'none'}; {attempts}, {size}"
    if found.running:
        yield "\nrunning"
        yield from (f"  {_running_line(running, found.taken_s)}" for running in found.running)
    if found.failures:
        yield "\nfailed last"
        for failure in found.failures:
            reason = shorten(f"{failure.status.status}: {failure.status.reason or 'no reason given'}", _WIDTH)
            yield f"  {failure.status.attempt_id[:15]}  {cell_name(failure.cell)}\n    {reason}"
    yield from (f"damaged: {message}" for message in found.damaged)


def _running_line(running: Running, now_s: float) -> str:
    owner, left_s = running.owner, running.left_s(now_s)
    done = "" if owner.total is None else f", {owner.done} of {owner.total} done"
    left = "" if left_s is None else f", about {duration(left_s)} left"
    where = f"process {owner.pid} on {owner.host}"
    return f"{cell_name(running.cell)}: {duration(running.elapsed_s(now_s))}{done}{left} ({where})"


def cell_name(cell: dict[str, Any]) -> str:
    """Return model/task/method parameters/kind of a cell.json."""
    if not cell:
        return "a cell whose cell.json cannot be read"
    method = f"{cell['method']['name']} {describe(cell['method']['params'])}".rstrip()
    return f"{cell['model']['name']}/{cell['task']['label']}/{method}/{cell['kind']}"
