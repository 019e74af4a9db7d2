"""Print how often intervals hold the truth, by simulation: the tables of docs/measuring.md.

python tests/benchmarks/interval_coverage.py speed
python tests/benchmarks/interval_coverage.py speed --samples 20000
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "results" / "statistics"))

import test_speed

SAMPLES = 4000


def speed(samples: int) -> Iterator[str]:
    """Speed-ups, with and without stalled readings."""
    yield "| times | readings that stall | documents | intervals that hold the truth | mean estimate is off by | not measurable |"
    yield "|---|---:|---:|---:|---:|---:|"
    for what in test_speed.SIMULATED:
        for stalled in (0, test_speed.STALLED):
            for size in test_speed.SIZES:
                found = test_speed.simulate(what, size, stalled, samples)
                numbers = f"{found.held:.1%} | {found.bias:+.1%} | {found.not_measurable:.1%}"
                yield f"| {what} | {stalled:.0%} | {size} | {numbers} |"


TABLES: dict[str, Callable[[int], Iterator[str]]] = {"speed": speed}


def main() -> None:
    """Print the table that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="per number of documents (default: %(default)s)")
    arguments = parser.parse_args()
    for line in TABLES[arguments.table](arguments.samples):
        print(line, flush=True)


if __name__ == "__main__":
    main()
