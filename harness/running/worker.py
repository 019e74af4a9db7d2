"""Worker: loads one model and runs its cells, each into a separate spool folder.

The executor runs it in a separate process (`worker_process`; by hand: ``exitbench _cell SPEC.json``), which reports
through `events`. A failed cell is stored as failed, and the next cell runs; only if the process dies is the current
cell lost.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

import torch

from exitbench.errors import UserError, no_room
from exitbench.harness.cells.job import CellJob, WorkerSpec
from exitbench.harness.processes.interrupts import Interruptible
from exitbench.harness.running.cell_lock import hold, holder, outcome
from exitbench.harness.running.environment import environment_and_hardware
from exitbench.harness.running.passes import PASSES, write_prompt_counts
from exitbench.harness.work.base import Skip, Work
from exitbench.harness.work.kinds import work_of
from exitbench.harness.work.loaded import LoadedModel
from exitbench.harness.work.partners import partners
from exitbench.lm_eval_registration import quiet_lm_eval
from exitbench.methods.base import Parts
from exitbench.plugins import use_plugins
from exitbench.results.spool.attempts import AttemptWriter, status_of

Emit = Callable[[dict[str, Any]], None]

INTERRUPTED = 130
"""Exit code after a signal that requests the worker's end."""

NO_ROOM = 74
"""Exit code if the spool cannot be written: the disk is full (EX_IOERR of sysexits.h)."""

_ROOM_BYTES: Final = 1 << 16
"""Number of bytes that must fit into the spool; otherwise the disk counts as full."""


def run(spec: WorkerSpec, emit: Emit, model: LoadedModel | None = None) -> int:
    """Run every cell of a worker's specification, one after another.

    Args:
        spec: The model, its cells, and the spool (folder that receives an attempt, the stored outcome, per cell).
        emit: Receives the events of `harness.running.events`.
        model: The model of the specification, if it is loaded already.

    Returns:
        The exit code: 0, 130 after an interrupt, 74 if the spool cannot be written. A failed cell does not fail the
        worker.

    Raises:
        UserError: The checkpoint cannot be read.
    """
    with quiet_lm_eval():
        return _run(spec, emit, model)


def _run(spec: WorkerSpec, emit: Emit, model: LoadedModel | None) -> int:
    torch.set_num_threads(spec.threads)
    if spec.plugins is not None:
        files = use_plugins(spec.plugins)
        print(f"Plug-ins of {spec.plugins}: {', '.join(path.name for path in files)}", file=sys.stderr)
    queue = _Queue(spec, emit, model)
    waiting: list[CellJob] = []
    try:
        for item in spec.cells:
            waits = {waiting_cell.cell.cell_id for waiting_cell in waiting} & set(item.cell.depends_on)
            if waits or not queue.run_or_skip(item, wait=False):
                waiting.append(item)
        for item in waiting:
            queue.run_or_skip(item, wait=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    except _NoRoom:
        return NO_ROOM
    finally:
        queue.release_claims()
    return 0


class _NoRoom(Exception):
    """Exception that ends a worker because its spool cannot be written; the parent process has been notified."""


class _Queue:
    """Runner of a specification's cells, one after another; the model is loaded for the first cell that must run."""

    def __init__(self, spec: WorkerSpec, emit: Emit, model: LoadedModel | None) -> None:
        self._spec, self._emit, self._loaded = spec, emit, model
        self._env = environment_and_hardware(spec.threads)
        self._ended: set[str] = set()
        self._claimed: dict[str, contextlib.ExitStack] = {}  # locks of cells answered by another cell's pass

    @functools.cached_property
    def _model(self) -> LoadedModel:
        return self._loaded or LoadedModel(self._spec)

    def run_or_skip(self, item: CellJob, *, wait: bool) -> bool:
        """Run a cell unless it has ended; return False if another process holds its lock and ``wait`` is False."""
        spool, cell_id = self._spec.spool, item.cell.cell_id
        try:
            with self._claimed.pop(cell_id, None) or hold(spool, cell_id, wait=False) as is_held:
                if is_held:
                    self._end(item)
            if is_held or not wait:
                return bool(is_held)
            self._emit({"event": "wait", "cell": cell_id, "holder": holder(spool, cell_id)})
            with hold(spool, cell_id, wait=True):
                self._emit({"event": "held", "cell": cell_id})
                self._end(item)
            return True
        except (OSError, UserError) as error:
            if (cause := _no_room(error, spool)) is None:
                raise
            path, why = str(cause.filename or spool), str(cause.strerror)
            print(f"{path}: {why}", file=sys.stderr)
            self._emit({"event": "no_room", "cell": cell_id, "path": path, "why": why})
            raise _NoRoom from error

    def release_claims(self) -> None:
        """Release the locks of cells that `_claim` locked and that were not run."""
        for claim in self._claimed.values():
            claim.close()

    def _end(self, item: CellJob) -> None:
        status = outcome(self._spec.spool, item) or self._run(item)
        self._ended.add(item.cell.cell_id)
        self._emit({"event": "end", "cell": item.cell.cell_id, "status": status})

    def _claim(self, item: CellJob) -> None:
        """Lock the other cells of the specification that the run of this cell can also answer, in a shared pass.

        Cells that have ended, or that another process runs, are left out.
        """
        model, spool, cell_id = self._model, self._spec.spool, item.cell.cell_id
        if not self._spec.shares or cell_id in model.passes.cells:
            return
        unavailable = {cell_id, *self._ended, *self._claimed}
        free = [other for other in self._spec.cells if other.cell.cell_id not in unavailable]
        partner_parts: dict[str, Parts] = {}
        for other, parts in partners(work_of(model, item), free):
            claim = contextlib.ExitStack()
            if claim.enter_context(hold(spool, other.cell.cell_id, wait=False)) and outcome(spool, other) is None:
                self._claimed[other.cell.cell_id] = claim
                partner_parts[other.cell.cell_id] = parts
            else:
                claim.close()
        if partner_parts:
            model.passes.begin(cell_id, partner_parts)

    def _run(self, item: CellJob) -> str:
        model, cell_id = self._model, item.cell.cell_id
        work = work_of(model, item)
        self._claim(item)
        start = {"event": "start", "cell": cell_id, "label": item.label, "documents": work.units()}
        self._emit({**start, "cells": 1 + len(model.passes.partner_parts(cell_id))})
        try:
            chosen = model.products
            env = self._env if chosen is None else {**self._env, "products": dict(chosen)}
            return _attempt(work, env, self._emit)
        except KeyboardInterrupt:
            self._emit({"event": "end", "cell": cell_id, "status": "interrupted"})
            raise
        finally:
            model.passes.end(cell_id)


def _attempt(work: Work[Any], env: dict[str, Any], emit: Emit) -> str:
    item, spool = work.item, work.model.spool
    try:
        with AttemptWriter(spool, work.cell_record(), env) as writer, Interruptible():

            def on_progress(n_done: int) -> None:
                emit({"event": "progress", "cell": item.cell.cell_id, "done": n_done})
                writer.progress(n_done, work.units())

            try:
                if item.cell.kind != "replay":  # every other kind runs the model, at least at full depth
                    work.require_runnable(work.full_parts)
                PASSES[item.cell.kind](work, writer, on_progress)
                write_prompt_counts(work, writer)
            except Skip as skip:
                writer.finish("skipped", str(skip))
                return "skipped"
            except BaseException:
                writer.log_path.write_text(traceback.format_exc(), encoding="utf-8")
                raise
            peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            cells = work.model.passes.cells.get(item.cell.cell_id, 1)
            writer.finish("ok", peak_rss_bytes=peak_rss_bytes, pass_cells=cells if cells > 1 else None)
            return "ok"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a method raises fails only its cell
        if _no_room(error, spool) is not None:
            raise
        print(f"{item.label}: {type(error).__name__}: {error}", file=sys.stderr)
        return status_of(error)


def _no_room(error: BaseException, spool: Path) -> OSError | None:
    """Return the OSError that caused an exception, if it means that the spool cannot be written; otherwise None.

    A method may fill another disk, or raise such an error itself, so the spool is tested by writing to it.
    """
    cause = no_room(error)
    if cause is None or (cause.filename is not None and Path(str(cause.filename)).is_relative_to(spool)):
        return cause
    try:
        with TemporaryFile(dir=spool) as file:
            file.write(bytes(_ROOM_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as failure:
        return no_room(failure)
    return None
