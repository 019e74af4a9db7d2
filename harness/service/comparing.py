"""Comparison of runs over the same documents."""

from exitbench.results.analysis.comparison import Comparison, compare
from exitbench.results.database.connection import Database
from exitbench.results.statistics.intervals import Aggregate


def compare_runs(database: Database, run_a: str, run_b: str) -> Comparison:
    """Compare one run with one or more other runs; metrics are aggregated as their tasks define.

    Args:
        database: Open result database.
        run_a: Id or glob of exactly one run.
        run_b: Id or glob of one or more runs.

    Raises:
        UserError: `run_a` or `run_b` matches no run, `run_a` matches several, or the runs have different documents.
    """
    return compare(database, run_a, run_b, _aggregate)


def _aggregate(task: str, metric: str) -> Aggregate:
    # Looked up late: tasks are needed only after the runs have been found comparable.
    from exitbench.tasks.registry import aggregation

    return aggregation(task, metric)
