"""``exitbench status``: print the current state of the spool or of a lake, without opening the database."""

import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Set
from typing import TYPE_CHECKING, Any

from exitbench.errors import UserError
from exitbench.harness.cli.commands.common import data_size, duration
from exitbench.harness.service.folders import Runs, existing_runs
from exitbench.reports.labels import describe, shorten
from exitbench.results.analysis.status import RunningAttempt, SpoolStatus, spool_status
from exitbench.terminal import number_of, print_escaped

if TYPE_CHECKING:
    from exitbench.harness.planning.plan import Plan

REFRESH_S = 2.0
_WIDTH = 150
_CLEAR = "\033[2J\033[H"


def status(arguments: Namespace) -> int:
    """Print cell counts by state, running attempts, latest failures, and the size of the spool (files of all runs).

    With a suite, print the estimated time left too. With ``--lake``, print instead the state of a lake (results of many
    machines in one place).

    Raises:
        UserError: The spool or the lake cannot be listed, or the suite cannot be used.
    """
    if arguments.lake is not None:
        return _status_of_lake(arguments)
    suite = None if arguments.suite is None else _Suite(arguments)
    runs = existing_runs(arguments.runs)

    def text() -> str:
        if suite is None:
            spool_state = spool_status(runs.spool)
            lines = [*_lines(spool_state, ())]
        else:
            spool_state = spool_status(runs.spool, suite.cell_ids.__contains__)
            lines = [*_lines(spool_state, suite.cell_ids), suite.time_left(spool_state)]
        if not spool_state.attempts and runs.database.exists():
            lines.append(f"{runs.database} is not read; `exitbench sql` queries it.")
        return "\n".join(lines)

    if not arguments.watch:
        print_escaped(text(), sys.stdout)
        return 0
    try:
        while True:
            print(end=_CLEAR)
            print_escaped(text(), sys.stdout)
            time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        return 0


def _status_of_lake(arguments: Namespace) -> int:
    """Print the state of the cells in a lake, for one suite or for all."""
    from exitbench.results.lake.reading import lake_lines

    if arguments.watch:
        raise UserError("--watch: follows the spool of this machine; a lake is read once.")
    labels = None if arguments.suite is None else _labels(arguments)
    print_escaped("\n".join(lake_lines(arguments.lake, labels)), sys.stdout)
    return 0


def _labels(arguments: Namespace) -> dict[str, str]:
    """Return the label of each cell of a suite, by cell id.

    Raises:
        UserError: A model is not on this machine, so that the ids of its cells are not known.
    """
    plan = _plan(arguments, Runs(arguments.runs))
    if absent := [group.model.name for group in plan.groups if group.folder is None]:
        raise UserError(f"{', '.join(absent)}: not on this machine, so that its cells are not known. Copy it to RUNS.")
    return {cell.item.cell.cell_id: cell.item.label for group in plan.groups for cell in group.cells}


def _plan(arguments: Namespace, runs: Runs) -> "Plan":
    # Imported here: a plan needs the methods, which need torch.
    from exitbench.harness.planning.plan import make_plan
    from exitbench.harness.planning.suite import load_suite

    return make_plan(load_suite(arguments.suite), runs.spool, runs.models, arguments.data_dir, hub=True)


class _Suite:
    """Cells of a suite, and estimated times of its missing cells; planned only once, also with ``--watch``."""

    def __init__(self, arguments: Namespace) -> None:
        from exitbench.harness.planning.estimate import estimate_plan

        runs = existing_runs(arguments.runs)
        plan = _plan(arguments, runs)
        self._untrained = sum(len(group.labels) for group in plan.groups if group.folder is None)
        self._estimates = estimate_plan(plan, runs.spool, "all")
        self.cell_ids: Set[str] = plan.cell_ids

    def time_left(self, spool_state: SpoolStatus) -> str:
        """Return the estimated time left, as text, if cells run one after the other.

        The estimate covers running attempts and cells that have not started.
        """
        running = {attempt.attempt.cell_id: attempt.left_s(spool_state.taken_s) for attempt in spool_state.running}
        missing = [cell_id for cell_id in self.cell_ids if cell_id not in spool_state.states]
        seconds = [*running.values(), *(self._estimates[cell_id].seconds for cell_id in missing)]
        known_s = sum(value for value in seconds if value is not None)
        unknown = sum(value is None for value in seconds) + self._untrained
        more = f", and {number_of(unknown, 'cell')} of unknown length" if unknown else ""
        return f"time left, one cell after the other: {duration(known_s)}{more}"


def _lines(spool_state: SpoolStatus, cell_ids: Set[str] | tuple[()]) -> Iterator[str]:
    counts = spool_state.counts
    new = len(cell_ids) - len(spool_state.states) if cell_ids else 0
    states = [*sorted(counts.items()), *([("new", new)] if new else [])]
    counted = ", ".join(f"{count} {state}" for state, count in states)
    size = data_size(spool_state.size_bytes)
    cells, attempts = number_of(len(spool_state.states) + new, "cell"), number_of(spool_state.attempts, "attempt")
    yield f"{cells}: {counted or 'none'}; {attempts}, {size}"
    if spool_state.running:
        yield "\nrunning"
        yield from (f"  {_running_line(running, spool_state.taken_s)}" for running in spool_state.running)
    if spool_state.failures:
        yield "\nfailed last"
        for failure in spool_state.failures:
            reason = shorten(f"{failure.status.status}: {failure.status.reason or 'no reason given'}", _WIDTH)
            yield f"  {failure.status.attempt_id[:15]}  {cell_name(failure.cell)}\n    {reason}"
    yield from (f"damaged: {message}" for message in spool_state.damaged)


def _running_line(running: RunningAttempt, now_s: float) -> str:
    owner, left_s = running.owner, running.left_s(now_s)
    progress = "" if owner.total is None else f", {owner.done} of {owner.total} done"
    remaining = "" if left_s is None else f", about {duration(left_s)} left"
    location = f"process {owner.pid} on {owner.host}"
    return f"{cell_name(running.cell)}: {duration(running.elapsed_s(now_s))}{progress}{remaining} ({location})"


def cell_name(cell: dict[str, Any]) -> str:
    """Return a cell's name for display, ``model/task/method parameters/kind``, from the content of its cell.json."""
    if not cell:
        return "a cell whose cell.json cannot be read"
    method = f"{cell['method']['name']} {describe(cell['method']['params'])}".rstrip()
    return f"{cell['model']['name']}/{cell['task']['label']}/{method}/{cell['kind']}"
