"""Script: processes export one database into one lake, at the same time or each killed at a different moment.

python exporters.py together|killed DATABASE LAKE N
"""

import os
import signal
import sys
from pathlib import Path

import deltalake
import pyarrow as pa

from exitbench.results.database.connection import open_database
from exitbench.results.lake import export as module


def export(database: Path, lake: str) -> None:
    """Export once, a few attempts per commit."""
    module._BATCH = 4
    with open_database(database) as opened:
        module.export_lake(opened.duck, lake)


def killed_before(step: int) -> None:
    """Make this process kill itself at the n-th step of its writing: before, within or after a table's rows."""
    steps = 0
    write = deltalake.write_deltalake

    def count() -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(table, rows, **named):  # type: ignore[no-untyped-def]
        def batches():  # type: ignore[no-untyped-def]
            for batch in rows:
                yield batch
                count()

        count()
        write(table, pa.RecordBatchReader.from_batches(rows.schema, batches()), **named)
        count()

    deltalake.write_deltalake = counted


def main(how: str, database: str, lake: str, count: str) -> None:
    """Start `count` processes, wait for them, and print the exit code of each."""
    children = []
    for number in range(int(count)):
        child = os.fork()
        if child == 0:
            if how == "killed":
                killed_before(27 * number // (int(count) - 1) + 1)
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
