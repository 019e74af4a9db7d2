"""Coverage tables of docs/measuring.md, by simulation: `python tests/benchmarks/coverage.py quality|choice [SAMPLES]`."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "results" / "statistics"))

from test_bounded_mean import LOSSES, SIZES, coverage_and_width, gaffke, students_t
from test_recommendation import CASES, simulate


def quality(samples: int) -> None:
    """Print how often the bound on a quality loss holds, and how far it lies above the true loss; then Student's t."""
    for bound in (gaffke, students_t):
        print("\n| differences |", *(f"n={n} |" for n in SIZES))
        print("|---|" + "---:|" * len(SIZES))
        for what in LOSSES:
            cells = [coverage_and_width(what, n, samples, bound) for n in SIZES]
            print(f"| {what} |", *(f"{held:.1f} % (+{width:.1f}) |" for held, width in cells), flush=True)


def choice(samples: int) -> None:
    """Print what becomes of recommendations whose settings truly lose 6 to 12 points, where 10 may be lost."""
    print("| n | settings | chosen | confirmed | of these lose more | quality looks better by | speed by |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for n, settings in CASES:
        outcome = simulate(np.random.default_rng(n + settings), n, np.linspace(6, 12, settings), 10.0, samples)
        confirmed, chosen = max(1, outcome.confirmed), max(1, outcome.chosen)
        shares = [outcome.chosen / samples, outcome.confirmed / samples, outcome.broken / confirmed]
        errors = f"{-outcome.quality_error / chosen:+.2f} points | {100 * outcome.speed_error / chosen:+.2f} %"
        print(f"| {n} | {settings} |", *(f"{100 * share:.0f} % |" for share in shares), errors, "|", flush=True)


TABLES = {"quality": quality, "choice": choice}

if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in TABLES:
        sys.exit(__doc__)
    TABLES[sys.argv[1]](int(sys.argv[2]) if len(sys.argv) == 3 else 2_000)
