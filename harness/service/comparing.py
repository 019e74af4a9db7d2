"""Compare runs over the same documents."""

from exitbench.results.analysis.comparison import Comparison, compare
from exitbench.results.database.connection import Database
from exitbench.results.statistics.intervals import Aggregate


def compare_runs(database: Database, run_a: str, run_b: str) -> Comparison:
    """Compare one run with one or more others; metrics are aggregated as their tasks define.

    Raises:
        UserError: A name matches no run or too many, or the runs have different documents.
    """
    return compare(database, run_a, run_b, _aggregate)


def _aggregate(task: str, metric: str) -> Aggregate:
    # Imported here: tasks are needed only once the runs are known to be comparable.
    from exitbench.tasks.registry import aggregation

    return aggregation(task, metric)
