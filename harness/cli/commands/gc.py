"""``exitbench gc``: free what nobody needs any more."""

import sys
from argparse import Namespace
from collections import Counter

from exitbench.harness.cli.commands.words import data_size
from exitbench.harness.service.folders import existing_runs
from exitbench.progress import counting
from exitbench.results.maintenance.gc import find_garbage, free
from exitbench.terminal import tell


def gc(arguments: Namespace) -> int:
    """Say what can be freed, and free it if that is asked for.

    Raises:
        UserError: There is no such folder of runs, the database is missing, in use or cannot be read, or something
            cannot be removed.
    """
    runs = existing_runs(arguments.runs)
    path = arguments.database or runs.database
    garbage = find_garbage(runs.spool, path, superseded=arguments.superseded, traces=arguments.spool)
    counts, sizes = Counter[str](), Counter[str]()
    for item in garbage:
        counts[item.kind] += 1
        sizes[item.kind] += item.size_bytes
        tell(f"{data_size(item.size_bytes):>10}  {item.kind:18}  {item.path}", sys.stdout)
    found = "; ".join(f"{kind}: {counts[kind]}, {data_size(sizes[kind])}" for kind in sorted(counts))
    if not garbage:
        print("Nothing to free.")
    elif not arguments.yes:
        print(f"\nTo free: {found}. Nothing was removed; the same command with --yes does it.")
    else:
        with counting("freeing") as on_item:
            free(garbage, path, on_item)
        print(f"\nFreed: {found}.")
    return 0
