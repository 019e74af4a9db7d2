"""Run the benchmarks and store their times; called by `nox -s perf`.

    python tests/benchmarks/run.py [--runs DIR] [pytest's arguments]
    python tests/benchmarks/run.py --against REV [--rounds N] [--tolerance SHARE] [pytest's arguments]

The first form stores the times in the database of runs and returns pytest's exit status. The second compares the work
tree with another commit (see against.py) and stores nothing.
"""

import argparse
import atexit
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from against import MOST_ROUNDS, TOLERANCE, compare
from checkouts import ROOT

from exitbench.errors import UserError
from exitbench.harness.service.folders import Runs


def main() -> int:
    """Run the benchmarks and return the exit status.

    It is 0, 1 (something failed or is slower), 2 (bad input), 5 (no benchmark ran), or 130 (interrupted).
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of all run data (runs)")
    parser.add_argument("--benchmark-json", type=Path, metavar="FILE", help="leave pytest-benchmark's file there too")
    parser.add_argument("--against", metavar="REV", help="compare with this commit, branch or tag")
    rounds = "rounds of REV, work tree, work tree, REV; more make intervals narrower (2)"
    parser.add_argument("--rounds", type=int, choices=range(1, MOST_ROUNDS + 1), default=2, help=rounds)
    tolerance = f"fail from this much slower on, as a share ({TOLERANCE})"
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, metavar="SHARE", help=tolerance)
    options, chosen = parser.parse_known_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # temporary files are removed, as after Ctrl-C
    try:
        if options.against is not None:
            return compare(options.against, chosen, options.rounds, options.tolerance)
        copy = None if options.benchmark_json is None else options.benchmark_json.absolute()
        return measure(chosen, Runs(options.runs.absolute()), copy)
    except UserError as error:
        print(f"perf: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def measure(chosen: Sequence[str], runs: Runs, copy: Path | None) -> int:
    """Run benchmarks, store their times in the database, and return pytest's exit status.

    Times of an interrupted run are stored too.

    Raises:
        UserError: The times cannot be stored.
    """
    runs.require_writable()
    os.chdir(ROOT)
    with TemporaryDirectory(prefix="perf-") as folder:
        times = Path(folder) / "perf.json"
        code = pytest.main(["-o", "testpaths=tests/benchmarks", *chosen, f"--benchmark-json={times}"])
        if times.exists():
            if copy is not None:
                shutil.copy(times, copy)
            keep(times, runs)
    return code


def keep(times: Path, runs: Runs) -> None:
    """Store the times in pytest-benchmark's file in the database.

    Raises:
        UserError: The database cannot be written; the message says how to store the times later.
    """
    from exitbench.results.ingest.importing import merge  # not imported while measuring

    try:
        problems = merge(times, runs.spool, runs.database).problems
    except UserError as error:
        later = shutil.copy(times, runs.root / f"{times.parent.name}.json")
        raise UserError(f"{error}\nThe times are kept: exitbench import {later} --runs {runs.root}") from error
    for problem in problems:
        print(f"left out: {problem}", file=sys.stderr)
    n = len(json.loads(times.read_text(encoding="utf-8"))["benchmarks"])
    print(f"{n} benchmarks are now in {runs.database}: exitbench sql @perf_history --database {runs.database}")


def end() -> None:
    """Exit without interpreter shutdown, which would print pages about leaks of torch and DuckDB."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    code = 1
    atexit.register(end)  # registered first, so called last
    code = main()
