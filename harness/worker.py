"""The worker: loads one model and runs its cells, each into its own spool folder.

Run by the executor (or by hand, or by a scheduler) as ``exitbench _cell SPEC.json``; the protocol on stdout is in
`harness.spec`. A cell that fails is a row and the next one runs; only a dead process loses its current cell.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from exitbench.harness.environment import environment_and_hardware
from exitbench.harness.passes import PASSES, Session, Skip
from exitbench.harness.spec import WorkerSpec, WorkItem
from exitbench.results.spool import AttemptWriter

Emit = Callable[[dict[str, Any]], None]


def run(spec: WorkerSpec, emit: Emit) -> int:
    """Run every cell of the specification.

    Args:
        spec: The model, its cells and where they go.
        emit: Receives the events of `harness.spec`.

    Returns:
        The exit code: 0, or 130 after an interrupt. A failed cell is not a failed worker.

    Raises:
        UserError: The checkpoint cannot be read.
    """
    torch.set_num_threads(spec.threads)
    env = environment_and_hardware(spec.threads)
    session = Session(spec)
    for item in spec.cells:
        emit({"event": "start", "cell": item.cell.cell_id, "label": item.label, "documents": session.units(item)})
        try:
            status = _attempt(session, item, env, emit)
        except KeyboardInterrupt:
            emit({"event": "end", "cell": item.cell.cell_id, "status": "interrupted"})
            return 130
        emit({"event": "end", "cell": item.cell.cell_id, "status": status})
    return 0


def _attempt(session: Session, item: WorkItem, env: dict[str, Any], emit: Emit) -> str:
    try:
        with AttemptWriter(session.spool, item.cell.to_json(), env) as writer:

            def on_progress(done: int) -> None:
                emit({"event": "progress", "cell": item.cell.cell_id, "done": done})
                writer.progress(done, session.units(item))

            try:
                PASSES[item.cell.kind](session, item, writer, on_progress)
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
        print(f"{item.label}: {type(error).__name__}: {error}", file=sys.stderr)
        return "failed"


def main(spec_path: Path) -> int:
    """Run the cells of a SPEC.json; events go to stdout, everything else that is printed to stderr."""
    events = sys.stdout

    def emit(event: dict[str, Any]) -> None:
        print(json.dumps(event), file=events, flush=True)

    with contextlib.redirect_stdout(sys.stderr):
        return run(WorkerSpec.from_json(spec_path.read_text(encoding="utf-8")), emit)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
