"""An exception in a method fails its cell alone, with the right status. A full disk or an interrupt ends the run."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from suite_runs import plan_suite, worker_spec

from exitbench.harness.cells.job import WorkerSpec
from exitbench.harness.running import worker
from exitbench.harness.running.cell_lock import hold
from exitbench.results.spool.attempts import AttemptWriter, latest_status, read_attempt, scan_spool
from exitbench.results.spool.schema import ENV_KEYS

ENV = {section: dict.fromkeys(keys) for section, keys in ENV_KEYS.items() if section}
SWEEP = '[[sweep]]\nmethod = "static"\ngrid = { exit_layer = [1] }\nkinds = ["quality"]\n'


@pytest.fixture
def spec(write_suite: Callable[..., Path], data_dir: Path, tmp_path: Path) -> WorkerSpec:
    """Return the specification of a worker with two cells."""
    (group,) = plan_suite(tmp_path, write_suite(SWEEP).read_text(), data_dir).groups
    return worker_spec(group, tmp_path / "spool", data_dir)


def raising(error: BaseException) -> Callable[..., None]:
    def work(*_: Any) -> None:
        raise error

    return work


def run_both(spec: WorkerSpec, work: Callable[..., None]) -> tuple[int, list[dict[str, Any]]]:
    """Run the two cells with `work` in place of the quality pass; return exit code and events."""
    events: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(worker.PASSES, "quality", work)
        code = worker.run(spec, events.append)
    return code, events


@pytest.mark.parametrize(
    ("work", "status", "reason"),
    [
        (raising(GeneratorExit()), "failed", "GeneratorExit: "),
        (raising(SystemExit(74)), "failed", "SystemExit: 74"),
        (raising(OSError(errno.ENOSPC, "No space left on device")), "failed", "OSError: [Errno 28] No space left on"),
        (raising(OSError(errno.EROFS, "Read-only", "/elsewhere/file")), "failed", "OSError: [Errno 30] Read-only"),
        (raising(TimeoutError("late")), "timeout", "TimeoutError: late"),
        (raising(MemoryError()), "oom", "MemoryError: "),
        (raising(RuntimeError("std::bad_alloc")), "oom", "RuntimeError: std::bad_alloc"),
        (raising(OSError(errno.ENOMEM, "Cannot allocate memory")), "oom", "OSError: [Errno 12]"),
        (lambda *_: torch.empty(10**15), "oom", "RuntimeError: [enforce fail at alloc_cpu"),
        (raising(RuntimeError("the lamp went out")), "failed", "RuntimeError: the lamp went out"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_exception_fails_one_cell_and_the_next_cell_runs(
    spec: WorkerSpec, work: Callable[..., None], status: str, reason: str
) -> None:
    code, events = run_both(spec, work)
    assert code == 0
    assert [event["status"] for event in events if event["event"] == "end"] == [status, status]
    attempts = list(scan_spool(spec.spool))
    assert len(attempts) == 2 and all(attempt.finished for attempt in attempts)
    for result in latest_status(spec.spool).values():
        assert result.status == status and str(result.reason).startswith(reason)


def test_interrupt_ends_the_worker_with_one_interrupted_attempt(spec: WorkerSpec) -> None:
    code, events = run_both(spec, raising(KeyboardInterrupt()))
    assert code == 130
    assert [event["event"] for event in events] == ["start", "end"]
    assert [status.status for status in latest_status(spec.spool).values()] == ["interrupted"]


def test_interrupt_that_a_library_turns_into_an_error_is_recorded_as_interrupted(spec: WorkerSpec) -> None:
    def query(*_: Any) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise RuntimeError("Query interrupted") from error

    code, events = run_both(spec, query)
    assert (code, events[-1]["status"]) == (130, "interrupted")
    assert [status.status for status in latest_status(spec.spool).values()] == ["interrupted"]


@pytest.mark.parametrize("named", [True, False], ids=["by name", "found out"])
def test_full_disk_ends_the_worker_and_names_the_path(
    spec: WorkerSpec, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the error names no file, the worker tries to write to the spool to find out whether its disk is full."""

    def full(*_: Any) -> None:
        if not named:
            monkeypatch.setattr(worker, "TemporaryFile", raising_factory)
        raise OSError(errno.ENOSPC, "No space left on device", *([str(spec.spool / "ab/x.parquet")] if named else []))

    def raising_factory(**_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    code, events = run_both(spec, full)
    assert code == worker.NO_ROOM
    place = str(spec.spool / "ab/x.parquet") if named else str(spec.spool)
    cell_id = spec.cells[0].cell.cell_id
    told = {"event": "no_room", "cell": cell_id, "path": place, "why": "No space left on device"}
    assert events[-1] == told


def test_cell_timeout_is_stored_but_not_part_of_the_identity(
    spec: WorkerSpec, write_suite: Callable[..., Path], data_dir: Path, tmp_path: Path
) -> None:
    suite = write_suite(SWEEP).read_text().replace("[models.tiny]", "[defaults]\ncell_timeout_s = 90\n[models.tiny]")
    items = plan_suite(tmp_path, suite, data_dir).groups[0].to_run("failed")
    assert [item.cell.cell_id for item in items] == [item.cell.cell_id for item in spec.cells]
    assert {item.timeout_s for item in items} == {90.0} and {item.timeout_s for item in spec.cells} == {6 * 3600.0}
    given = WorkerSpec.from_json(replace(spec, cells=items).to_json())
    assert given.cells == items
    with AttemptWriter(spec.spool, items[0].cell_record(), ENV) as writer:
        writer.finish("ok")
    assert read_attempt(writer.path).cell["cell_timeout_s"] == 90.0


def test_worker_reports_waiting_for_a_cell_locked_by_another_process(spec: WorkerSpec, tmp_path: Path) -> None:
    """A fake process holds the cell's lock. When the worker reports that it waits, that process finishes the cell."""
    first = spec.cells[0]
    held = hold(spec.spool, first.cell.cell_id, wait=False)
    assert held.__enter__()
    other = AttemptWriter(spec.spool, first.cell_record(), ENV)
    events: list[dict[str, Any]] = []

    def emit(event: dict[str, Any]) -> None:
        events.append(event)
        if event["event"] == "wait":
            other.finish("ok")
            held.__exit__(None, None, None)

    assert worker.run(replace(spec, cells=(first,)), emit) == 0
    assert [event["event"] for event in events] == ["wait", "held", "end"]
    assert events[0]["holder"].startswith("process ")
    assert [attempt.attempt_id for attempt in scan_spool(spec.spool)] == [other.attempt_id]
