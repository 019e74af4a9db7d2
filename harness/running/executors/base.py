"""What the command line asks of an executor."""

from collections.abc import Callable, Sequence
from typing import Protocol

from exitbench.harness.cells.job import WorkerSpec
from exitbench.progress import Progress


class Executor(Protocol):
    """Runs model groups, each on one machine from its first cell to its last."""

    @property
    def threads(self) -> int:
        """Threads of torch that a worker may use where the user names no number."""

    def run(self, specs: Sequence[WorkerSpec], progress: Progress, ingest: Callable[[], None]) -> dict[str, str]:
        """Run groups until every cell has ended.

        Args:
            specs: One a loaded model.
            progress: Told of every start and end.
            ingest: Turns what has ended so far into rows; called now and then.

        Returns:
            Status by cell id.

        Raises:
            KeyboardInterrupt: The user interrupted; every finished cell is in the spool.
        """
