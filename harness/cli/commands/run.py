"""``exitbench run``: train what is missing, run what is not done, fill the database, report."""

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exitbench.errors import UserError
from exitbench.harness.cells.corpus import keep
from exitbench.harness.cells.job import WorkerSpec
from exitbench.harness.cli.commands.failures import failure_lines
from exitbench.harness.cli.commands.folders import Runs
from exitbench.harness.cli.commands.plan import planned
from exitbench.harness.cli.commands.report import print_broken
from exitbench.harness.engine.checkpoints.device_maps import require_gpus
from exitbench.harness.engine.checkpoints.hub import fetch, not_here
from exitbench.harness.planning.contracts import failing, with_verdicts
from exitbench.harness.planning.memory import ROOM, shortages
from exitbench.harness.planning.plan import Group, Plan, resolve_device
from exitbench.harness.planning.retry import Retry
from exitbench.harness.planning.suite import Suite
from exitbench.harness.running.environment import available_cores
from exitbench.harness.running.executors.base import Executor
from exitbench.harness.running.executors.gpus import visible_gpus
from exitbench.harness.running.executors.local import LocalExecutor
from exitbench.harness.training import ensure_all_trained
from exitbench.plugins import plugins_folder
from exitbench.progress import Progress, progress
from exitbench.results.beside.trainings import record_training
from exitbench.terminal import number_of, tell

EXAMPLE_QUERY = "SELECT model, task_label, method, params, round(value, 1) AS value FROM frontier ORDER BY ALL"
LEFT_OUT_QUERY = """
    SELECT DISTINCT model, task_label, value AS dropped, n, metric FROM metric_values
    WHERE metric IN ('documents_dropped', 'documents_unscorable') AND kind = 'quality' AND suite = ? ORDER BY ALL
"""
_NO_GIST = "No method's quality was measured on trained weights: nothing to recommend (--table has every setting)."
FAILURES_QUERY = "SELECT model, task_label, method, params, kind, status, reason FROM failures"


@dataclass(frozen=True)
class Measured:
    """What is known once the cells of a plan have run.

    Attributes:
        statuses: How each cell that ran ended, by its id.
        left_out: What no database takes, and why.
    """

    plan: Plan
    statuses: Mapping[str, str]
    left_out: tuple[str, ...]


def run(arguments: Namespace) -> int:
    """Run a suite; returns 0 if every cell that ran ended ok and is in the database, else 1.

    Raises:
        UserError: Anything that can be known before work begins, or data that turns out damaged.
        KeyboardInterrupt: The user interrupted; finished cells are in the spool and in the database.
    """
    runs = Runs(arguments.runs)
    measured = measure(arguments)
    _print_results(runs, measured.plan.suite.name, whole=arguments.table)
    if not arguments.no_report:
        _print_report(runs)
    print(f"Database  {runs.database}")
    print(f'Query     exitbench sql --database {runs.database} "{EXAMPLE_QUERY}"')
    verdict = _verdict(measured.statuses, measured.plan, runs, arguments.retry)
    return 1 if measured.left_out else verdict


def measure(arguments: Namespace, suite: Suite | None = None) -> Measured:
    """Train what is missing, run the cells that are not done and fill the database.

    Args:
        arguments: Of `run`.
        suite: What to run; None: the one that the arguments name.

    Raises:
        UserError: Anything that can be known before work begins, or data that turns out damaged.
        KeyboardInterrupt: The user interrupted; finished cells are in the spool and in the database.
    """
    runs = Runs(arguments.runs)
    # Before the plan: what jobs left undone while nobody looked becomes rows, which the plan then finds.
    slurm = _slurm(arguments, runs)
    plan = planned(arguments, suite)
    if slurm is not None and plan.suite.device == "auto":
        raise UserError(
            '--executor slurm: device = "auto" of the suite means this machine; name "cuda" or "cpu" there.'
        )
    if not arguments.confirm_run_unsafe_code and (unsafe := unsafe_tasks(plan)):
        raise UserError(
            f"{', '.join(unsafe)}: scoring runs what the model wrote. Allowed with --confirm-run-unsafe-code, which "
            "runs it in a process with limits and without a network."
        )
    executor = slurm or _local(plan, runs)
    runs.require_writable()
    keep(runs.root)
    if _ingest(runs):  # what is damaged has left the spool: those cells are to be run again
        plan = planned(arguments, suite)
    if plan.unfetched or arguments.hub:
        plan = _with_fetched(plan, arguments)
    if plan.untrained:
        cores = arguments.threads or available_cores()
        ensure_all_trained(plan.untrained, runs.models, arguments.data_dir, cores)
        plan = planned(arguments, suite)
    for remark in plan.remarks:
        tell(remark)
    for group in plan.groups:
        for remark in group.remarks:
            tell(f"{group.model.name}: {remark}")
        if group.folder is not None and group.cells:
            record_training(runs.spool, group.cells[0].item.cell.model.weights_sha256, group.folder)
    if slurm is None and (short := list(shortages(plan, arguments.retry))):
        raise UserError("\n".join([*short, ROOM]))
    plan = with_verdicts(plan, arguments.retry, runs.root, _say_tried)
    for method in failing(plan):
        tell(f"Breaks its contract, so that its runs are not to be cited: {method}")
    left_out: list[str] = []
    try:
        statuses = _run_groups(plan, runs, executor, arguments, left_out)
    except KeyboardInterrupt:
        _ingest_meanwhile(runs)
        print("Interrupted. What is finished is kept; the same command goes on from there.", file=sys.stderr)
        raise
    left_out += _ingest(runs)
    return Measured(plan, statuses, tuple(left_out))


def unsafe_tasks(plan: Plan) -> list[str]:
    """Return the labels of tasks whose scores come of running what a model wrote."""
    requests = {(planned.item.cell.task.label, planned.item.data) for group in plan.groups for planned in group.cells}
    return sorted({label for label, data in requests if getattr(data.task_object, "is_unsafe", False)})


def _with_fetched(plan: Plan, arguments: Namespace) -> Plan:
    """Fetch the plan's models of the hub where that is asked for, and plan again.

    Raises:
        UserError: It is not asked for and one is not here, or one cannot be fetched.
    """
    if not arguments.hub:
        raise not_here(plan.unfetched[0])
    for group in plan.groups:
        if group.model.hub is not None:
            fetch(group.model.hub, tell)
    return planned(arguments, plan.suite)


def _say_tried(number: int) -> None:
    print(f"Trying whether methods keep their contracts: {number} settings.", file=sys.stderr)


def _slurm(arguments: Namespace, runs: Runs) -> Executor | None:
    """The Slurm executor, if that is what the arguments name."""
    if arguments.executor == "slurm":
        from exitbench.harness.running.executors.slurm import SlurmExecutor
        from exitbench.harness.running.executors.slurm_options import read_options

        return SlurmExecutor(runs.slurm.resolve(), read_options(arguments.slurm))
    if arguments.slurm:
        raise UserError(f"--slurm {arguments.slurm[0]}: only goes with --executor slurm.")
    return None


def _local(plan: Plan, runs: Runs) -> Executor:
    if plan.device == "cuda" and resolve_device("auto") != "cuda":
        raise UserError(
            f'{plan.suite.path}: [defaults] device is "cuda", but torch sees no GPU here. Allowed: "cpu", or "auto", '
            "which takes a GPU where there is one."
        )
    gpus = visible_gpus() if plan.device == "cuda" else ()
    for group in plan.groups:
        for device_map in {cell.item.cell.device_map for cell in group.cells}:
            require_gpus(group.model.where, device_map or (), len(gpus))
    return LocalExecutor(runs.logs, gpus)


def _run_groups(
    plan: Plan, runs: Runs, executor: Executor, arguments: Namespace, left_out: list[str]
) -> dict[str, str]:
    """Run what is to be run; returns how each cell ended, by its id. What no database takes is added to `left_out`."""
    threads = arguments.threads or _free_threads(plan, executor, arguments)
    specs = [_spec(group, plan, runs, threads, arguments) for group in plan.groups]
    with progress(plan.to_run_count(arguments.retry)) as bars:
        standing = _Standing(runs, plan.suite.name, bars)

        def ingest() -> None:
            left_out.extend(_ingest_meanwhile(runs))
            standing.tell()

        return executor.run([spec for spec in specs if spec.cells], bars, ingest)


def _free_threads(plan: Plan, executor: Executor, arguments: Namespace) -> int:
    """The executor's own number of threads, which is said where other processes make it fewer than the cores."""
    if not plan.to_run_count(arguments.retry):
        return 1
    threads = executor.threads
    if plan.device == "cpu" and arguments.executor != "slurm" and threads < available_cores():
        tell(
            f"Other processes hold cores of this machine: {number_of(threads, 'thread')} of torch instead of "
            f"{available_cores()}, so that times are not of waiting for them (--threads N takes another number)."
        )
    return threads


class _Standing:
    """The best setting so far of each task, said when it becomes another."""

    def __init__(self, runs: Runs, suite: str, bars: Progress) -> None:
        self._runs, self._suite, self._bars = runs, suite, bars
        self._said: set[str] = set()

    def tell(self) -> None:
        """Look into the database and say what is new; nothing where somebody else has it open."""
        from exitbench.reports.tables.gist import best_so_far
        from exitbench.results.database.connection import open_database

        try:
            with open_database(self._runs.database, wait_s=0) as database:
                lines = best_so_far(database, self._suite)
        except UserError:
            return
        for line in lines:
            if line not in self._said:
                self._bars.note(f"Best so far  {line}")
        self._said = set(lines)


def _spec(group: Group, plan: Plan, runs: Runs, threads: int, arguments: Namespace) -> WorkerSpec:
    if group.folder is None:
        raise UserError(f"model {group.model.name!r} was trained but is not found in {runs.models}.")
    return WorkerSpec(
        cells=group.to_run(arguments.retry),
        model_path=group.folder.resolve(),
        data_dir=arguments.data_dir and arguments.data_dir.resolve(),
        spool=runs.spool.resolve(),
        device=plan.device,
        threads=threads,
        plugins=plugins_folder(),
        confirm_run_unsafe_code=arguments.confirm_run_unsafe_code,
    )


def _ingest(runs: Runs, say: Callable[[str], None] | None = tell) -> tuple[str, ...]:
    """Fill the database with what has ended; returns what was left out, and why.

    Other runs that fill it are waited for; without `say`, not for long.
    """
    from exitbench.results.ingest.ingest import ingest

    left_out = ingest(runs.spool, runs.database, say=say).quarantined
    for message in left_out:
        tell(f"left out of the database: {message}")
    return left_out


def _ingest_meanwhile(runs: Runs) -> tuple[str, ...]:
    """The same while cells run, which do not end because somebody has the database open or the disk is full."""
    try:
        return _ingest(runs, say=None)
    except UserError as error:
        tell(f"The database is filled later: {error}")
        return ()


def print_left_out(path: Path, suite: str) -> None:
    """Say of which results documents were left out, and why."""
    from exitbench.results.database.connection import open_database

    with open_database(path) as database:
        rows = database.query(LEFT_OUT_QUERY, [suite]).to_pylist()
    for row in rows:
        where, dropped = f"{row['model']} on {row['task_label']}", f"{row['dropped']:.0f} of {row['n']} documents"
        why = "prompts are too long" if row["metric"] == "documents_dropped" else "texts cannot be scored"
        tell(f"{where}: {dropped} left out, whose {why}", sys.stdout)


def _print_results(runs: Runs, suite: str, *, whole: bool) -> None:
    """Print a sentence a task, and every setting where that is asked."""
    from exitbench.results.database.patience import patiently

    if whole:
        from exitbench.reports.tables.text import calibration_text, summary_text

        print(patiently(lambda: summary_text(runs.database), tell))
        if calibrations := patiently(lambda: calibration_text(runs.database), tell):
            print(calibrations)
    print("\n".join(patiently(lambda: _gist(runs.database, suite), tell)) + "\n")
    print_left_out(runs.database, suite)


def _gist(path: Path, suite: str) -> list[str]:
    from exitbench.reports.tables.gist import gist_lines
    from exitbench.results.database.connection import open_database

    with open_database(path) as database:
        return gist_lines(database, suite) or [_NO_GIST]


def _print_report(runs: Runs) -> None:
    from exitbench.reports.current import current_report
    from exitbench.results.database.patience import patiently

    asked: dict[str, Any] = {"draft": True, "workers": available_cores(), "progress": True}
    report = patiently(lambda: current_report(runs.database, runs.report, **asked), tell)
    print(f"Report    {report.index_html}{' (a draft: see `exitbench check`)' if report.is_draft else ''}")
    print("          each setting beside the others: #frontier; every number: #results")
    print_broken(report)


def _verdict(statuses: Mapping[str, str], plan: Plan, runs: Runs, retry: Retry) -> int:
    bad = [cell_id for cell_id, status in statuses.items() if status != "ok"]
    if bad:
        counts = Counter(statuses[cell_id] for cell_id in bad)
        tell("\n" + ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) + ":")
        for line in failure_lines(runs.database, bad):
            tell(f"  {line}")
        tell(f'More: exitbench sql --database {runs.database} "{FAILURES_QUERY}"')
    elif not statuses:
        done = plan.states()["done"]
        tell(f"\nNothing to run: {number_of(done, 'cell')} {'is' if done == 1 else 'are'} done (--retry {retry}).")
    return 1 if bad else 0
