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
    """Speed-ups, with and without stalled readings: intervals that hold the truth, and how far the estimate is off."""
    sizes = test_speed.SIZES
    yield f"| times | readings that stall | {' | '.join(f'{size} documents' for size in sizes)} |"
    yield f"|---|---:|{'---:|' * len(sizes)}"
    for what in test_speed.SIMULATED:
        for stalled in (0, test_speed.STALLED):
            found = [test_speed.simulate(what, size, stalled, samples) for size in sizes]
            numbers = " | ".join(f"{one.held:.1%} ({round(one.bias, 3) + 0.0:+.1%})" for one in found)
            yield f"| {what} | {stalled:.0%} | {numbers} |"


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
