"""The worker: loads one model and runs its cells, each into its own spool folder.

Run by the executor (or by hand, or by a scheduler) as ``exitbench _cell SPEC.json``; the protocol on stdout is in
`harness.spec`. A cell that fails is a row and the next one runs; only a dead process loses its current cell.
"""

from __future__ import annotations

import contextlib
import functools
import json
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from exitbench.errors import UserError, no_room
from exitbench.harness.environment import environment_and_hardware
from exitbench.harness.holding import hold, outcome
from exitbench.harness.passes import PASSES, Session, Skip
from exitbench.harness.passes.session import write_prompt_counts
from exitbench.harness.spec import NO_ROOM, WorkerSpec, WorkItem
from exitbench.results.spool import AttemptWriter

Emit = Callable[[dict[str, Any]], None]

INTERRUPTED = 130
"""Exit code after a signal that asks to end."""


def run(spec: WorkerSpec, emit: Emit) -> int:
    """Run every cell of the specification.

    Args:
        spec: The model, its cells and where they go.
        emit: Receives the events of `harness.spec`.

    Returns:
        The exit code: 0, 130 after an interrupt, 74 if the disk is full. A failed cell is not a failed worker.

    Raises:
        UserError: The checkpoint cannot be read.
    """
    torch.set_num_threads(spec.threads)
    work = _Work(spec, emit)
    held: list[WorkItem] = []
    try:
        for item in spec.cells:
            waits = {other.cell.cell_id for other in held} & set(item.cell.depends_on)
            if waits or not work.end(item, wait=False):
                held.append(item)
        for item in held:
            work.end(item, wait=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (OSError, UserError) as error:
        if (cause := no_room(error)) is None:
            raise
        print(f"{cause.filename or spec.spool}: {cause.strerror}", file=sys.stderr)
        return NO_ROOM
    return 0


class _Work:
    """The cells of a specification, one after the other; the model is loaded for the first that is to be run."""

    def __init__(self, spec: WorkerSpec, emit: Emit) -> None:
        self._spec, self._emit = spec, emit
        self._env = environment_and_hardware(spec.threads)

    @functools.cached_property
    def _session(self) -> Session:
        return Session(self._spec)

    def end(self, item: WorkItem, *, wait: bool) -> bool:
        """See to it that a cell has ended; False if another process holds it and `wait` is not asked for."""
        cell_id = item.cell.cell_id
        with hold(self._spec.spool, cell_id, wait=wait) as held:
            if not held:
                return False
            status = outcome(self._spec.spool, item) or self._run(item)
        self._emit({"event": "end", "cell": cell_id, "status": status})
        return True

    def _run(self, item: WorkItem) -> str:
        session, cell_id = self._session, item.cell.cell_id
        self._emit({"event": "start", "cell": cell_id, "label": item.label, "documents": session.units(item)})
        try:
            return _attempt(session, item, self._env, self._emit)
        except KeyboardInterrupt:
            self._emit({"event": "end", "cell": cell_id, "status": "interrupted"})
            raise


def _attempt(session: Session, item: WorkItem, env: dict[str, Any], emit: Emit) -> str:
    try:
        with AttemptWriter(session.spool, session.cell_record(item), env) as writer:

            def on_progress(done: int) -> None:
                emit({"event": "progress", "cell": item.cell.cell_id, "done": done})
                writer.progress(done, session.units(item))

            try:
                PASSES[item.cell.kind](session, item, writer, on_progress)
                write_prompt_counts(session, item, writer)
            except Skip as skip:
                writer.finish("skipped", str(skip))
                return "skipped"
            except BaseException:
                writer.log_path.write_text(traceback.format_exc(), encoding="utf-8")
                raise
            peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            writer.finish("ok", peak_rss_bytes=peak_rss_bytes)
            return "ok"
    except (MemoryError, torch.OutOfMemoryError):
        return "oom"
    except Exception as error:
        if no_room(error) is not None:
            raise  # no other cell would fare better
        print(f"{item.label}: {type(error).__name__}: {error}", file=sys.stderr)
        return "failed"


def main(spec_path: Path) -> int:
    """Run the cells of a SPEC.json; events go to stdout, everything else that is printed to stderr."""
    # Of a scheduler that is about to end this process, or of whoever started it, perhaps in the background of a shell,
    # whose jobs begin with SIGINT ignored.
    for notice in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(notice, signal.default_int_handler)
    events = sys.stdout

    def emit(event: dict[str, Any]) -> None:
        try:
            print(json.dumps(event), file=events, flush=True)
        except BrokenPipeError:  # whoever started this worker was killed, and would not see to the rest
            raise KeyboardInterrupt from None

    with contextlib.redirect_stdout(sys.stderr):
        return run(WorkerSpec.from_json(spec_path.read_text(encoding="utf-8")), emit)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
