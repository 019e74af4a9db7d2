"""A script: processes that export one database into one lake, all at once or each killed at another moment.

python exporters.py together|killed DATABASE LAKE N
"""

import os
import signal
import sys
from pathlib import Path

from exitbench.results.database.connection import open_database
from exitbench.results.lake import places
from exitbench.results.lake.export import export_lake


def export(database: Path, lake: str) -> None:
    """Export once."""
    with open_database(database) as opened:
        export_lake(opened.duck, places.place_of(lake))


def killed_before(step: int) -> None:
    """Have this process killed before its n-th step of writing: a file written beside, or put in its place."""
    steps = 0

    def counted(function):  # type: ignore[no-untyped-def]
        def call(*arguments, **named):  # type: ignore[no-untyped-def]
            nonlocal steps
            steps += 1
            if steps == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return call

    places._put_in_place = counted(places._put_in_place)
    os.fsync = counted(os.fsync)


def main(how: str, database: str, lake: str, count: str) -> None:
    """Start processes, wait, and say how each ended."""
    children = []
    for number in range(int(count)):
        child = os.fork()
        if child == 0:
            if how == "killed":
                killed_before(2 * number + 1)
            export(Path(database), lake)
            os._exit(0)
        children.append(child)
        if how == "killed":
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    if how == "together":
        print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
