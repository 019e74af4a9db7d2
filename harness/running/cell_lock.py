"""Cell locks, by which concurrent runs over one spool share the work: no two of them run the same cell.

The process that runs a cell holds its lock (``<spool>/locks/<cell_id>``). After acquiring the lock, it checks whether
the cell has ended since the plan was made. So a repeated run also resumes where it stopped.
"""

import socket
from contextlib import AbstractContextManager
from pathlib import Path

from exitbench.harness.cells.job import CellJob
from exitbench.harness.processes.locks import locked
from exitbench.results.spool.attempts import TO_BE_RUN, UNFINISHED, Attempt, cell_attempts, read_status
from exitbench.results.spool.heartbeat import owner_of


def hold(spool: Path, cell_id: str, *, wait: bool) -> AbstractContextManager[bool]:
    """Return a context manager that holds a cell's lock, and yields whether the lock is held.

    If another process holds it, wait until it is free, or yield False if ``wait`` is False.
    """
    return locked(spool / "locks" / cell_id, wait=wait)


def holder(spool: Path, cell_id: str) -> str:
    """Return a description of the process that runs a cell, for messages; ``another run`` if it is unknown."""
    running = [attempt.path for attempt in cell_attempts(spool, cell_id) if not attempt.finished]
    owner = owner_of(running[-1]) if running else None
    if owner is None or not owner.pid:
        return "another run"
    return f"process {owner.pid}" + (f" on {owner.host}" if owner.host != socket.gethostname() else "")


def attempts_since(spool: Path, item: CellJob) -> list[Attempt]:
    """Return the attempts (runs) of a cell that began after the last attempt that the plan has seen, oldest first.

    An attempt is seen if it had ended when the plan was made. If none had, all attempts are returned.
    """
    attempts = cell_attempts(spool, item.cell.cell_id)
    return [attempt for attempt in attempts if item.seen is None or attempt.attempt_id > item.seen]


def outcome(spool: Path, item: CellJob) -> str | None:
    """Return the status of a cell that has ended since the plan was made.

    None if no attempt has ended since then, or if the last one was interrupted or damaged, so that the cell must run.
    """
    finished = [attempt for attempt in attempts_since(spool, item) if attempt.finished]
    status = read_status(finished[-1]).status if finished else UNFINISHED
    return None if status in TO_BE_RUN else status
