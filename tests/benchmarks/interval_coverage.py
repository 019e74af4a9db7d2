"""Print the simulated coverage of intervals: the tables of tests/benchmarks/interval_coverage.md.

python tests/benchmarks/interval_coverage.py speed
python tests/benchmarks/interval_coverage.py quality --samples 2000
python tests/benchmarks/interval_coverage.py choice --samples 1000
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "results" / "statistics"))

import numpy as np
import test_speed
from test_bounded_mean import LOSSES, coverage_and_width, gaffke, students_t
from test_bounded_mean import SIZES as LOSS_SIZES
from test_recommendation import CASES, simulate

SAMPLES = 4000


def speed(samples: int) -> Iterator[str]:
    """Yield a table on speed-ups: coverage of the interval and error of the estimate, with and without stalls."""
    sizes = test_speed.SIZES
    yield f"| times | readings that stall | {' | '.join(f'{size} documents' for size in sizes)} |"
    yield f"|---|---:|{'---:|' * len(sizes)}"
    for what in test_speed.SIMULATED:
        for stalled in (0, test_speed.STALLED):
            results = [test_speed.simulate(what, size, stalled, samples) for size in sizes]
            numbers = " | ".join(f"{result.coverage:.1%} ({round(result.bias, 3) + 0.0:+.1%})" for result in results)
            yield f"| {what} | {stalled:.0%} | {numbers} |"


def quality(samples: int) -> Iterator[str]:
    """Yield a table per bound on a quality loss (Gaffke's, Student's t): coverage, and distance from the true loss."""
    for name, bound in (("Gaffke's bound", gaffke), ("Student's t", students_t)):
        yield f"| {name} | {' | '.join(f'n = {n}' for n in LOSS_SIZES)} |"
        yield "|---|" + "---:|" * len(LOSS_SIZES)
        for what in LOSSES:
            cells = [coverage_and_width(what, n, samples, bound) for n in LOSS_SIZES]
            yield f"| {what} | {' | '.join(f'{held:.1f}% (+{width:.1f})' for held, width in cells)} |"
        yield ""


def choice(samples: int) -> Iterator[str]:
    """Yield a table on recommendations: how often they are confirmed and wrong.

    The settings truly lose 6 to 12 points, and 10 are allowed.
    """
    yield "| n | settings | chosen | confirmed | of these lose more | quality looks better by | speed by |"
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    for n, settings in CASES:
        result = simulate(np.random.default_rng(n + settings), n, np.linspace(6, 12, settings), 10.0, samples)
        chosen, confirmed = max(1, result.chosen), max(1, result.confirmed)
        shares = f"{result.chosen / samples:.0%} | {result.confirmed / samples:.0%} | {result.broken / confirmed:.1%}"
        errors = f"{-result.quality_error / chosen:+.2f} points | {result.speed_error / chosen:+.1%}"
        yield f"| {n} | {settings} | {shares} | {errors} |"


TABLES: dict[str, Callable[[int], Iterator[str]]] = {"speed": speed, "quality": quality, "choice": choice}


def main() -> None:
    """Print the requested table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="per number of documents (default: %(default)s)")
    arguments = parser.parse_args()
    for line in TABLES[arguments.table](arguments.samples):
        print(line, flush=True)


if __name__ == "__main__":
    main()
