"""``exitbench verify``: a stored run once more, and whether it gives the same."""

import sys
from argparse import Namespace

from exitbench.errors import UserError
from exitbench.harness.afterwards.rerun import Verdict, find_checkpoint, find_stored, verify
from exitbench.harness.cli.commands.env import difference_lines, this_machine
from exitbench.harness.service.folders import existing_runs
from exitbench.results.analysis.environments import Described, differences
from exitbench.results.analysis.repeats import Compared
from exitbench.terminal import number_of, tell


def verify_run(arguments: Namespace) -> int:
    """Run a stored cell again; returns 0 if it gives what was stored, else 1.

    Raises:
        UserError: The run, its model or its documents are not found, or are others by now.
    """
    runs = existing_runs(arguments.runs)
    if not runs.spool.exists():
        raise UserError(f"There is no spool at {runs.spool}: what is not there cannot be repeated.")
    stored = find_stored(runs.spool, arguments.run)
    threads = arguments.threads or int(stored.env["hardware"]["threads"])
    folder = arguments.model or find_checkpoint(stored, runs.models, runs.logs)
    tell(f"repeating attempt {stored.attempt.attempt_id} on {folder}, {number_of(threads, 'thread')}")
    verdict = verify(
        stored,
        runs.spool,
        runs.repetitions,
        folder,
        arguments.data_dir,
        threads,
        confirm_run_unsafe_code=arguments.confirm_run_unsafe_code,
    )
    for line in _lines(verdict):
        tell(line, sys.stdout)
    then = Described(f"attempt {stored.attempt.attempt_id}", stored.env)
    changed = difference_lines(differences(then, this_machine(threads)))
    print("software and machine: " + ("the same" if not changed else "they differ, then -> now"))
    for line in changed:
        tell(line, sys.stdout)
    return 0 if verdict.equal else 1


def _lines(verdict: Verdict) -> list[str]:
    if verdict.status != "ok":
        return [f"not repeated: the new attempt ended as {verdict.status}: {verdict.reason or 'no reason given'}"]
    lines = [_line(compared) for compared in verdict.compared]
    lines += ["equal" if verdict.equal else "differs", f"the repetition is {verdict.repeated}"]
    return lines


def _line(compared: Compared) -> str:
    if compared.first is None:
        return f"{compared.file}: equal" + ("" if compared.rows is None else f", {number_of(compared.rows, 'row')}")
    if compared.rows is None:
        return f"{compared.file}: {compared.first}"
    return (
        f"{compared.file}: {compared.differing_rows} of {compared.rows} rows differ, in {compared.differing_documents} "
        f"documents or steps; first {compared.first}"
    )
