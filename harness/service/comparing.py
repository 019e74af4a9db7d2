"""Compare runs over the same documents."""

from exitbench.results.analysis.comparison import Comparison, compare
from exitbench.results.database.connection import Database
from exitbench.results.statistics.intervals import Aggregate


def compare_runs(database: Database, run_a: str, run_b: str) -> Comparison:
    """Contrast one run with one or more, metrics added up as their tasks do.

    Raises:
        UserError: A name fits no run or too many, or the runs are of different documents.
    """
    return compare(database, run_a, run_b, _aggregate)


def _aggregate(task: str, metric: str) -> Aggregate:
    # Imported here: the tasks are looked up when the runs are known to be comparable.
    from exitbench.tasks.registry import aggregation

    return aggregation(task, metric)
