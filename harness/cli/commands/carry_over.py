"""``exitbench carry-over``: results of the version before under today's ids, where a sample of them is the same."""

import sys
from argparse import Namespace

from exitbench.errors import UserError
from exitbench.harness.service.folders import existing_runs
from exitbench.progress import counting
from exitbench.results.ingest.ingest import ingest
from exitbench.terminal import number_of, tell


def carry_over(arguments: Namespace) -> int:
    """Carry over what can be, fill the database, and say what could not; returns 1 where something could not.

    Raises:
        UserError: There is no spool, or it or the database cannot be read or written.
    """
    from exitbench.harness.afterwards import carrying_over as carrying  # loads torch

    runs = existing_runs(arguments.runs)
    if not runs.spool.exists():
        raise UserError(f"There is no spool at {runs.spool}: results are carried over from there.")
    damaged: list[UserError] = []
    groups = carrying.find_groups(runs.spool, damaged.append)
    if not groups and not damaged:
        print("Nothing to carry over: no result has an id of the version before.")
        return 0
    repeat = carrying.repetition(runs.spool, runs.repetitions, runs.models, runs.logs, arguments.data_dir)

    def say(group: carrying.Group, outcome: str) -> None:
        tell(f"{group.model}/{group.method}, {number_of(len(group.stored), 'result')}: {outcome or 'the same'}")

    done = carrying.carry_over(groups, runs.spool, repeat, arguments.sample, say)
    with counting("filling the database") as on_attempt:
        ingest(runs.spool, runs.database, on_attempt)
    left = sum(done.left.values()) + len(damaged)
    print(
        f"{number_of(done.carried, 'result')} carried over, {done.present} had today's ids, {left} left; "
        f"{number_of(done.repeated, 'result')} repeated to see that they are the same."
    )
    for why, count in sorted(done.left.items()):
        tell(f"  {count} left: {why}", sys.stdout)
    for damage in damaged:
        tell(f"  1 left: {damage}", sys.stdout)
    return 1 if left else 0
