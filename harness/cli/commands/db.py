"""``exitbench db``: the database itself, apart from what it says."""

from argparse import Namespace
from pathlib import Path

from exitbench.errors import UserError
from exitbench.harness.service.folders import existing_runs
from exitbench.progress import counting
from exitbench.results.ingest.rebuild import rebuild
from exitbench.results.maintenance.integrity import check, require_whole_spool
from exitbench.terminal import number_of, tell


def db(arguments: Namespace) -> int:
    """Check the database, or rebuild it from the spool; returns 1 if something is wrong or was left out.

    Raises:
        UserError: The database is in use or cannot be written, or would lose rows.
    """
    runs = existing_runs(arguments.runs)
    path = arguments.database or runs.database
    if arguments.action == "check":
        if arguments.force:
            raise UserError("--force: only goes with rebuild.")
        return _check(runs.spool, path)
    if not arguments.force:
        require_whole_spool(runs.spool, path)
    return _rebuild(runs.spool, path, arguments.force)


def _check(spool: Path, path: Path) -> int:
    with counting("check") as on_attempt:
        report = check(spool, path, on_attempt)
    for problem in report.problems:
        tell(problem)
    found = number_of(len(report.problems), "problem") if report.problems else "no problem"
    held = f"{number_of(report.attempts, 'attempt')}, {number_of(report.files, 'file')}"
    print(f"{path}: {number_of(report.rows, 'row')}; {spool}: {held}; {found}.")
    return 1 if report.problems else 0


def _rebuild(spool: Path, path: Path, forget: bool) -> int:
    with counting("rebuild") as on_attempt:
        report = rebuild(spool, path, on_attempt, forget=forget)
    for message in report.quarantined:
        tell(f"left out of the database: {message}")
    added, left = number_of(report.added, "attempt"), len(report.quarantined)
    print(f"{path}: {added}, {report.unfinished} unfinished, {left} left out.")
    return 1 if report.quarantined else 0
