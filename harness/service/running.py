"""Run a suite: train missing models, run pending cells, fill the database."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from exitbench.errors import UserError
from exitbench.harness.cells.corpus import write_pending
from exitbench.harness.cells.job import WorkerSpec
from exitbench.harness.engine.checkpoints.device_maps import require_gpus
from exitbench.harness.engine.checkpoints.hub import fetch, not_here
from exitbench.harness.planning.contracts import failing, with_verdicts
from exitbench.harness.planning.estimate import estimate_plan
from exitbench.harness.planning.memory import ROOM, shortages
from exitbench.harness.planning.plan import ModelGroup, Plan, make_plan, resolve_device
from exitbench.harness.planning.suite import Suite, load_suite
from exitbench.harness.running.environment import available_cores
from exitbench.harness.running.executors.base import Executor
from exitbench.harness.running.executors.gpus import visible_gpus
from exitbench.harness.running.executors.local import LocalExecutor
from exitbench.harness.running.shard import part, require_apart
from exitbench.harness.service.folders import Runs, ingest_spool
from exitbench.harness.service.options import RunOptions
from exitbench.harness.training import ensure_all_trained
from exitbench.plugins import plugins_folder
from exitbench.progress import Expected, Progress, progress
from exitbench.results.side_records.trainings import record_training
from exitbench.terminal import number_of, print_escaped


@dataclass(frozen=True)
class SuiteRun:
    """Result of running the cells of a plan.

    Attributes:
        plan: The plan that was run.
        statuses: Final status of each cell that ran, by cell id.
        not_ingested: One message per attempt (stored run of a cell) that the database lacks, with the reason.
    """

    plan: Plan
    statuses: Mapping[str, str]
    not_ingested: tuple[str, ...]

    @property
    def failed(self) -> list[str]:
        """Ids of cells that did not succeed."""
        return [cell_id for cell_id, status in self.statuses.items() if status != "ok"]

    @property
    def ok(self) -> bool:
        """Whether every cell that ran succeeded and is in the database."""
        return not self.failed and not self.not_ingested


def run_suite(options: RunOptions, *, remarks: bool = True) -> SuiteRun:
    """Train missing models, run the pending cells and fill the database.

    Args:
        options: What to run, and how.
        remarks: Whether to print the plan's remarks on suite and models.

    Raises:
        UserError: A problem detected before any work begins, or damaged data.
        KeyboardInterrupt: The user interrupted; finished cells are in the spool and in the database.

    Examples:
        Run 20 documents of one task of a bundled suite::

            finished = run_suite(RunOptions("builtin", only="*/squad/*", limit=20))
            assert finished.ok, finished.failed
    """
    runs = Runs(options.runs)
    # Called before planning: it collects attempts of Slurm jobs that ended unobserved, so that the plan includes them.
    slurm = _slurm(options, runs)
    plan = plan_suite(options)
    if slurm is not None and plan.suite.device == "auto":
        raise UserError(
            '--executor slurm: device = "auto" of the suite means this machine; name "cuda" or "cpu" there.'
        )
    if not options.confirm_run_unsafe_code and (unsafe := unsafe_tasks(plan)):
        raise UserError(
            f"{', '.join(unsafe)}: scoring runs what the model wrote. Allowed with --confirm-run-unsafe-code, which "
            "runs it in a process with limits and without a network."
        )
    executor = slurm or _local(plan, runs)
    runs.require_writable()
    write_pending(runs.root)
    if ingest_spool(runs.spool, runs.database):  # damaged attempts left the spool, so their cells must run again
        plan = plan_suite(options)
    if plan.unfetched or options.hub:
        plan = _with_fetched(plan, options)
    if plan.untrained:
        cores = options.threads or available_cores()
        ensure_all_trained(plan.untrained, runs.models, options.data_dir, cores)
        plan = plan_suite(options)
    if remarks:
        for remark in (*plan.remarks, *(f"{group.model.name}: {it}" for group in plan.groups for it in group.remarks)):
            print_escaped(remark)
    for group in plan.groups:
        if group.folder is not None and group.cells:
            record_training(runs.spool, group.cells[0].item.cell.model.weights_sha256, group.folder)
    if slurm is None and (short := list(shortages(plan, options.retry))):
        raise UserError("\n".join([*short, ROOM]))
    plan = with_verdicts(plan, options.retry, runs.root, _print_check_start)
    for method in failing(plan):
        print_escaped(f"Breaks its contract, so that its runs are not to be cited: {method}")
    not_ingested: list[str] = []
    try:
        statuses = _run_groups(plan, runs, executor, options, not_ingested)
    except KeyboardInterrupt:
        _ingest_meanwhile(runs)
        print("Interrupted. What is finished is kept; the same command goes on from there.", file=sys.stderr)
        raise
    not_ingested += ingest_spool(runs.spool, runs.database)
    return SuiteRun(plan, statuses, tuple(not_ingested))


def unsafe_tasks(plan: Plan) -> list[str]:
    """Return the labels of tasks whose scoring executes code that a model generated."""
    requests = {(planned.item.cell.task.label, planned.item.data) for group in plan.groups for planned in group.cells}
    return sorted({label for label, data in requests if getattr(data.task_object, "is_unsafe", False)})


def _with_fetched(plan: Plan, options: RunOptions) -> Plan:
    """Download the plan's hub models if allowed, and plan again.

    Raises:
        UserError: A model is missing and downloading is not allowed, or a model cannot be downloaded.
    """
    if not options.hub:
        raise not_here(plan.unfetched[0])
    for group in plan.groups:
        if group.model.hub is not None:
            fetch(group.model.hub, print_escaped)
    return plan_suite(options)


def _print_check_start(number: int) -> None:
    print(f"Trying whether methods keep their contracts: {number} settings.", file=sys.stderr)


def _slurm(options: RunOptions, runs: Runs) -> Executor | None:
    """Return the Slurm executor if the options request it, otherwise None."""
    if options.executor == "slurm":
        from exitbench.harness.running.executors.slurm import SlurmExecutor
        from exitbench.harness.running.executors.slurm_options import read_options

        return SlurmExecutor(runs.slurm.resolve(), read_options(options.slurm))
    if options.slurm:
        raise UserError(f"--slurm {options.slurm[0]}: only goes with --executor slurm.")
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
            require_gpus(group.model.location, device_map or (), len(gpus))
    return LocalExecutor(runs.logs, gpus)


def _run_groups(
    plan: Plan, runs: Runs, executor: Executor, options: RunOptions, not_ingested: list[str]
) -> dict[str, str]:
    """Run the pending cells of all groups; return the final status by cell id.

    One message per attempt (stored run of a cell) that could not be ingested is appended to `not_ingested`.
    """
    threads = options.threads or _free_threads(plan, executor, options)
    specs = [_spec(group, plan, runs, threads, options) for group in plan.groups]
    estimates = estimate_plan(plan, runs.spool, options.retry)
    expected = {
        item.label: Expected(item.cell.kind, estimates[item.cell.cell_id].seconds)
        for group in plan.groups
        for item in group.to_run(options.retry)
    }
    with progress(expected) as bars:
        best_so_far_reporter = _BestSoFar(runs, plan.cell_ids, bars)

        def ingest() -> None:
            not_ingested.extend(_ingest_meanwhile(runs))
            best_so_far_reporter.tell()

        return executor.run([spec for spec in specs if spec.cells], bars, ingest)


def _free_threads(plan: Plan, executor: Executor, options: RunOptions) -> int:
    """Return the executor's number of threads; print a note if other processes leave fewer than all cores free.

    The number is 1 if no cell is to be run.
    """
    if not plan.to_run_count(options.retry):
        return 1
    threads = executor.threads
    if plan.device == "cpu" and options.executor != "slurm" and threads < available_cores():
        print_escaped(
            f"Other processes hold cores of this machine: {number_of(threads, 'thread')} of torch instead of "
            f"{available_cores()}, so that times are not of waiting for them (--threads N takes another number)."
        )
    return threads


class _BestSoFar:
    """Reporter that prints the best setting of each task so far, whenever it changes."""

    def __init__(self, runs: Runs, cell_ids: frozenset[str], bars: Progress) -> None:
        self._runs, self._cell_ids, self._bars = runs, cell_ids, bars
        self._said: set[str] = set()

    def tell(self) -> None:
        """Print new best settings from the database; do nothing if another process has the database open."""
        from exitbench.reports.tables.text import best_so_far
        from exitbench.results.database.connection import open_database

        try:
            with open_database(self._runs.database, wait_s=0) as database:
                lines = best_so_far(database, self._cell_ids)
        except UserError:
            return
        for line in lines:
            if line not in self._said:
                self._bars.note(f"Best so far  {line}")
        self._said = set(lines)


def _spec(group: ModelGroup, plan: Plan, runs: Runs, threads: int, options: RunOptions) -> WorkerSpec:
    if group.folder is None:
        raise UserError(f"model {group.model.name!r} was trained but is not found in {runs.models}.")
    return WorkerSpec(
        cells=group.to_run(options.retry),
        model_path=group.folder.resolve(),
        data_dir=options.data_dir and options.data_dir.resolve(),
        spool=runs.spool.resolve(),
        device=plan.device,
        threads=threads,
        plugins=plugins_folder(),
        confirm_run_unsafe_code=options.confirm_run_unsafe_code,
    )


def _ingest_meanwhile(runs: Runs) -> tuple[str, ...]:
    """Ingest the results of cells that have ended, while others run; return one message per attempt that was left out.

    If the database is locked or the disk is full, print the error and return ().
    """
    try:
        return ingest_spool(runs.spool, runs.database, on_wait=None)
    except UserError as error:
        print_escaped(f"The database is filled later: {error}")
        return ()


def plan_suite(options: RunOptions) -> Plan:
    """Return the plan of a run, limited to the requested shards (parts of a suite for different machines).

    Raises:
        UserError: The suite, its data or its models cannot be used.
    """
    runs = Runs(options.runs)
    require_apart(options.shard)
    plan = make_plan(
        options.suite if isinstance(options.suite, Suite) else load_suite(options.suite),
        runs.spool,
        runs.models,
        options.data_dir,
        only=options.only,
        limit=options.limit,
        kinds=options.kinds,
        hub=options.hub,
    )
    return part(plan, options.shard)
