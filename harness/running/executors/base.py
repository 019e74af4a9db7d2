"""Protocol of executors, which run the cells of a plan."""

from collections.abc import Callable, Sequence
from typing import Protocol

from exitbench.harness.cells.job import WorkerSpec
from exitbench.progress import Progress


class Executor(Protocol):
    """Runner of model groups. A group is all cells of one loaded model, and runs on one machine from start to end."""

    @property
    def threads(self) -> int:
        """Default number of torch threads of a worker."""

    def run(self, specs: Sequence[WorkerSpec], progress: Progress, ingest: Callable[[], None]) -> dict[str, str]:
        """Run the cells of all specifications until every cell has ended.

        Args:
            specs: One specification per loaded model.
            progress: Notified of every start and end.
            ingest: Turns ended cells into database rows; called from time to time.

        Returns:
            Final status of every cell, by cell id.

        Raises:
            KeyboardInterrupt: The user interrupted; every finished cell is in the spool.
        """
