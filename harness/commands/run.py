"""``exitbench run``: train what is missing, run what is not done, fill the database, report."""

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable

from exitbench.errors import UserError
from exitbench.harness.commands.folders import Runs
from exitbench.harness.commands.plan import planned
from exitbench.harness.commands.report import print_broken
from exitbench.harness.environment import available_cores
from exitbench.harness.executors.base import Executor
from exitbench.harness.executors.gpus import visible_gpus
from exitbench.harness.executors.local import LocalExecutor
from exitbench.harness.plan import Group, Plan
from exitbench.harness.progress import progress
from exitbench.harness.retry import Retry
from exitbench.harness.spec import WorkerSpec
from exitbench.harness.training import ensure_all_trained
from exitbench.results.trainings import record_training

EXAMPLE_QUERY = "SELECT model, task_label, method, params, round(value, 1) AS value FROM frontier ORDER BY ALL"
FAILURES_QUERY = "SELECT model, task_label, method, params, kind, status, reason FROM failures"


def run(arguments: Namespace) -> int:
    """Run a suite; returns 0 if every cell that ran ended ok, else 1.

    Raises:
        UserError: Anything that can be known before work begins, or data that turns out damaged.
        KeyboardInterrupt: The user interrupted; finished cells are in the spool and in the database.
    """
    runs = Runs(arguments.runs)
    # Before the plan: what jobs left undone while nobody looked becomes rows, which the plan then finds.
    slurm = _slurm(arguments, runs)
    plan = planned(arguments)
    if slurm is not None and plan.suite.device == "auto":
        raise UserError(
            '--executor slurm: device = "auto" of the suite means this machine; name "cuda" or "cpu" there.'
        )
    runs.require_writable()
    if _ingest(runs):  # what is damaged has left the spool: those cells are to be run again
        plan = planned(arguments)
    if plan.untrained:
        cores = arguments.threads or available_cores()
        ensure_all_trained(plan.untrained, runs.models, arguments.data_dir, cores)
        plan = planned(arguments)
    for group in plan.groups:
        if group.folder is not None and group.cells:
            record_training(runs.spool, group.cells[0].item.cell.model.weights_sha256, group.folder)
    try:
        statuses = _run_groups(plan, runs, slurm or _local(plan, runs), arguments)
    except KeyboardInterrupt:
        _ingest_meanwhile(runs)
        print("Interrupted. What is finished is kept; the same command goes on from there.", file=sys.stderr)
        raise
    _ingest(runs)
    _print_results(runs)
    return _verdict(statuses, plan, runs, arguments.retry)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _slurm(arguments: Namespace, runs: Runs) -> Executor | None:
    """The Slurm executor, if that is what the arguments name."""
    if arguments.executor == "slurm":
        from exitbench.harness.executors.slurm import SlurmExecutor
        from exitbench.harness.executors.slurm_options import read_options

        return SlurmExecutor(runs.slurm.resolve(), read_options(arguments.slurm))
    if arguments.slurm:
        raise UserError(f"--slurm {arguments.slurm[0]}: only goes with --executor slurm.")
    return None


def _local(plan: Plan, runs: Runs) -> Executor:
    return LocalExecutor(runs.logs, visible_gpus() if plan.device == "cuda" else ())


def _run_groups(plan: Plan, runs: Runs, executor: Executor, arguments: Namespace) -> Counter[str]:
    threads = arguments.threads or executor.threads
    specs = [_spec(group, plan, runs, threads, arguments) for group in plan.groups]
    with progress(plan.to_run_count(arguments.retry)) as bars:
        statuses = executor.run([spec for spec in specs if spec.cells], bars, lambda: _ingest_meanwhile(runs))
    return Counter(statuses.values())


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
    )


def _ingest(runs: Runs, say: Callable[[str], None] | None = _say) -> bool:
    """Fill the database with what has ended; returns whether something was left out.

    Other runs that fill it are waited for; without `say`, not for long.
    """
    from exitbench.results.ingest import ingest

    left_out = ingest(runs.spool, runs.database, say=say).quarantined
    for message in left_out:
        print(f"left out of the database: {message}", file=sys.stderr)
    return bool(left_out)


def _ingest_meanwhile(runs: Runs) -> None:
    """The same while cells run, which do not end because somebody has the database open or the disk is full."""
    try:
        _ingest(runs, say=None)
    except UserError as error:
        print(f"The database is filled later: {error}", file=sys.stderr)


def _print_results(runs: Runs) -> None:
    from exitbench.reports.render import write_report
    from exitbench.reports.tables.text import calibration_text, summary_text
    from exitbench.results.patience import patiently

    print(patiently(lambda: summary_text(runs.database), _say))
    if calibrations := patiently(lambda: calibration_text(runs.database), _say):
        print(calibrations)
    print(f"Database  {runs.database}")
    cores = available_cores()
    report = patiently(lambda: write_report(runs.database, runs.report, draft=True, workers=cores, progress=True), _say)
    print(f"Report    {report.index_html}{' (a draft: see `exitbench check`)' if report.is_draft else ''}")
    print_broken(report)
    print(f'Query     exitbench sql --database {runs.database} "{EXAMPLE_QUERY}"')


def _verdict(statuses: Counter[str], plan: Plan, runs: Runs, retry: Retry) -> int:
    bad = {status: count for status, count in statuses.items() if status != "ok"}
    if bad:
        counted = ", ".join(f"{count} {status}" for status, count in sorted(bad.items()))
        print(f'\n{counted}. Why: exitbench sql --database {runs.database} "{FAILURES_QUERY}"', file=sys.stderr)
    elif not statuses:
        print(f"\nNothing to run: {plan.states()['done']} cells are done (--retry {retry}).", file=sys.stderr)
    return 1 if bad else 0
