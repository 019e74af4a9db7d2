"""``exitbench rescore``: metrics of stored answers under the tasks' current versions."""

from argparse import Namespace

from exitbench.errors import UserError
from exitbench.harness.afterwards.rescoring import rescore
from exitbench.harness.service.folders import existing_runs
from exitbench.progress import counting
from exitbench.results.ingest.ingest import ingest
from exitbench.terminal import number_of, tell


def rescore_runs(arguments: Namespace) -> int:
    """Score what is not scored under the current version, then fill the database; returns 1 if something was left.

    Raises:
        UserError: A name fits nothing, or none of the runs could be scored.
    """
    runs = existing_runs(arguments.runs)
    with counting("rescore") as on_run:
        report = rescore(runs.spool, arguments.names, arguments.data_dir, on_run, arguments.confirm_run_unsafe_code)
    problems = [
        f"{number_of(len(attempts), 'run')}, such as {attempts[0]}: {why}" for why, attempts in report.problems.items()
    ]
    if problems and not report.rescored + report.current:
        raise UserError("nothing could be scored.\n" + "\n".join(problems))
    for problem in problems:
        tell(f"not rescored: {problem}")
    left_out = ingest(runs.spool, arguments.database or runs.database).quarantined
    for problem in left_out:
        tell(f"left out of the database: {problem}")
    left = sum(map(len, report.problems.values()))
    print(
        f"{number_of(report.rescored, 'run')} rescored, {report.current} had the current metric version, {left} left."
    )
    return 1 if left or left_out else 0
