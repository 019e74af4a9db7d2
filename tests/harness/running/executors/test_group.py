"""Workers cannot harm a run by invalid events, child processes that remain, hanging, or any kind of exit."""

from __future__ import annotations

import io
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exitbench.harness.cells.job import CellJob, WorkerSpec
from exitbench.harness.running.executors import group, process
from exitbench.harness.running.executors.local import LocalExecutor
from exitbench.progress import Expected, Lines
from exitbench.results.spool.attempts import latest_status, read_attempt

Worker = Callable[[str, str], tuple[str, ...]]
LONG_S = 300.0


@pytest.fixture
def run(spec: WorkerSpec, tmp_path: Path) -> Callable[..., list[str]]:
    """Return a function that runs the three cells and returns their statuses in order."""

    def run_cells(command: tuple[str, ...], timeouts_s: Sequence[float | None] = (None, None, None)) -> list[str]:
        timed = replace(spec, cells=with_timeouts(spec, timeouts_s))
        with Lines(dict.fromkeys(map(str, range(3)), Expected()), io.StringIO()) as progress:
            statuses = LocalExecutor(tmp_path / "logs", worker=command, cores=1).run([timed], progress, lambda: None)
        return [statuses[item.cell.cell_id] for item in spec.cells]

    return run_cells


def with_timeouts(spec: WorkerSpec, timeouts_s: Sequence[float | None]) -> tuple[CellJob, ...]:
    return tuple(replace(item, timeout_s=limit) for item, limit in zip(spec.cells, timeouts_s, strict=True))


def record(spec: WorkerSpec, cell: int) -> dict[str, Any]:
    """Return status.json of a cell's only finished attempt, with the time limit of its cell.json."""
    cell_id = spec.cells[cell].cell.cell_id
    assert len(list(spec.spool.glob(f"*/{cell_id}/*/DONE"))) == 1
    result = read_attempt(latest_status(spec.spool)[cell_id].path)
    return {**result.status, "cell_timeout_s": result.cell.get("cell_timeout_s")}


def logs(tmp_path: Path) -> str:
    return "".join(path.read_text() for path in sorted((tmp_path / "logs").glob("*.log")))


# ------------------------------------------------------------------------------------------ events

INVALID = (
    '{"event": "x"}',
    "[]",
    "3",
    '{"event": ["start"]}',
    '{"event": "end", "cell": "0123", "status": "ok"}',
    '{"event": "end", "cell": CELL}',
    '{"event": "end", "cell": CELL, "status": "great"}',
    '{"event": "end", "cell": CELL, "status": "ok", "more": 1}',
    '{"event": "end", "cell": [CELL], "status": "ok"}',
    '{"event": "progress", "cell": CELL, "done": "2"}',
    '{"event": "progress", "cell": CELL, "done": true}',
    '{"event": "progress", "cell": CELL, "done": -1}',
    '{"event": "start", "cell": CELL, "label": "one", "documents": 2.5, "cells": 1}',
    '{"event": "wait", "cell": CELL, "holder": null}',
    "[" * 100_000,
)


def test_invalid_events_are_logged_and_ignored(
    spec: WorkerSpec, worker: Worker, run: Callable[..., list[str]], tmp_path: Path
) -> None:
    texts = [event.replace("CELL", json.dumps(spec.cells[1].cell.cell_id)) for event in INVALID]
    assert run(worker("two", f"[tell(text) for text in {texts!r}]")) == ["ok", "ok", "ok"]
    assert logs(tmp_path).splitlines() == texts
    assert len(list(spec.spool.glob("*/*/*/DONE"))) == 3


def test_second_end_event_of_a_cell_is_ignored(worker: Worker, run: Callable[..., list[str]]) -> None:
    assert run(worker("two", "say('end', spec.cells[0], status='failed')")) == ["ok", "ok", "ok"]


# ------------------------------------------------------------------------------------------ ends

SHARES = "say('start', spec.cells[0], label='one', documents=2, cells=3)"


def test_cells_run_separately_after_a_worker_dies_in_a_shared_pass(
    spec: WorkerSpec, worker: Worker, run: Callable[..., list[str]]
) -> None:
    assert run(worker("one", f"spec.shares and ({SHARES}, die(9, 'gone'))")) == ["ok", "ok", "ok"]
    assert len(list(spec.spool.glob("*/*/*/DONE"))) == 3


def test_cell_that_kills_the_worker_again_when_alone_fails(
    spec: WorkerSpec, worker: Worker, run: Callable[..., list[str]]
) -> None:
    assert run(worker("one", f"(spec.shares and {SHARES}, die(9, 'gone'))")) == ["failed", "ok", "ok"]
    assert "gone" in record(spec, 0)["reason"]


@pytest.mark.parametrize(("limit_s", "expected"), [(10.0, 30.0), (None, None)])
def test_time_limit_of_a_shared_pass_is_the_sum_of_its_cells(
    limit_s: float | None, expected: float | None, spec: WorkerSpec
) -> None:
    items = with_timeouts(spec, [limit_s] * 3)
    with Lines(dict.fromkeys(map(str, range(3)), Expected()), io.StringIO()) as progress:
        watch = group._Watch(items, progress)
        start = {"event": "start", "cell": items[0].cell.cell_id, "label": "one", "documents": 2, "cells": 3}
        assert watch.take(json.dumps(start))
    assert watch.limit_s == expected


def test_worker_killed_by_an_unnamed_signal_is_recorded_as_failed(
    spec: WorkerSpec, worker: Worker, run: Callable[..., list[str]]
) -> None:
    number = signal.SIGRTMIN + 6
    assert run(worker("two", f"os.kill(os.getpid(), {number})")) == ["ok", "failed", "ok"]
    assert record(spec, 1)["reason"] == f"the worker was killed by signal {number}"
    assert record(spec, 1)["signal"] == number


def test_exit_code_of_a_full_disk_without_its_event_fails_only_the_cell(
    spec: WorkerSpec, worker: Worker, run: Callable[..., list[str]]
) -> None:
    assert run(worker("two", "die(74, 'the last words')")) == ["ok", "failed", "ok"]
    assert record(spec, 1)["reason"] == "the worker exited with code 74: the last words"


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("first\n\rexitbench: 100%|#####| 2/2 [00:01<00:00,  1.5doc/s]", ": first"),
        ("\r 50%|##   | 1/2 [00:01<00:01]the last words", ": the last words"),
        ("\rtold\n12it [00:03, 4.1it/s]\n", ": told"),
        ("\r  0%|  | 0/2 [00:00<?, ?it/s]", ""),
    ],
)
def test_failure_reasons_do_not_quote_progress_bars(printed: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(printed.encode())
    worker_exit = group._WorkerExit(0, None, None, False, "\n".join(group._lines(tmp_path / "log")))
    assert worker_exit.reason == f"the worker exited with code 0{reason}"


def test_out_of_memory_is_recognised_in_the_last_log_line(worker: Worker, run: Callable[..., list[str]]) -> None:
    last = {
        "one": "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory",
        "two": "  what():  std::bad_alloc",
    }
    dies = f"die(1, {last!r}[item.label]) if item.label in {last!r} else None"
    assert run(worker("*", dies)) == ["oom", "oom", "ok"]


# ------------------------------------------------------------------------------------------ what is left behind


@pytest.mark.parametrize("kept", ["1", "1, int(sys.argv[2])", "1, 2, int(sys.argv[2]), int(sys.argv[3])"])
def test_leftover_child_processes_are_killed_with_the_worker(
    kept: str, worker: Worker, run: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOOK_S", 0.1)
    assert run(worker("two", f"(leave_child({kept}), note('left'))")) == ["ok", "ok", "ok"]
    deadline = time.monotonic() + LONG_S
    (left,) = (tmp_path / "notes").glob("left-*")
    group = left.name.split("-")[1]
    while [stat for stat in _stats() if stat[4] == group and stat[2] != "Z"]:  # killed, and ends when it is its turn
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _stats() -> list[list[str]]:
    """Return for every process its fields in /proc/PID/stat: id, name, state, parent, group, and so on."""
    results = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            before, _, after = path.read_text().rpartition(")")
        except OSError:
            continue
        results.append([*before.split(" (", 1), *after.split()])
    return results


def test_method_that_closes_standard_output_does_not_fail(worker: Worker, run: Callable[..., list[str]]) -> None:
    assert run(worker("two", "os.close(1)")) == ["ok", "ok", "ok"]


def test_worker_that_closes_its_event_pipe_and_continues_is_killed(
    spec: WorkerSpec, worker: Worker, run: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOOK_S", 0.1)
    monkeypatch.setattr(process, "CLOSING_S", 0.2)
    assert run(worker("three", "(os.close(int(sys.argv[2])), wait())")) == ["ok", "ok", "failed"]
    assert record(spec, 2)["reason"] == "the worker was killed by SIGKILL"


# ------------------------------------------------------------------------------------------ time-outs


@pytest.mark.parametrize(
    "hangs",
    [
        "(forget_signals(), wait())",
        "__import__('ctypes').PyDLL(None).sleep(600)",
        pytest.param("exec('while True: pass')", marks=pytest.mark.exhaustive),
    ],
    ids=["asleep", "in C, with the interpreter's lock", "in Python"],
)
def test_hanging_cell_is_recorded_as_timeout_and_the_next_one_runs(
    hangs: str, spec: WorkerSpec, worker: Worker, run: Callable[..., list[str]]
) -> None:
    # The others have time enough for a worker to start on a busy machine: its start counts too.
    assert run(worker("two", hangs), timeouts_s=(LONG_S, 0.5, LONG_S)) == ["ok", "timeout", "ok"]
    lost = record(spec, 1)
    assert lost["reason"] == "took longer than cell_timeout_s = 0.5"
    assert (lost["signal"], lost["cell_timeout_s"]) == (9, 0.5)


def test_worker_that_hangs_before_its_first_cell_is_not_restarted(
    spec: WorkerSpec, run: Callable[..., list[str]], tmp_path: Path
) -> None:
    path = tmp_path / "worker.py"
    path.write_text("import time\ntime.sleep(600)\n")
    assert run((sys.executable, str(path)), timeouts_s=[0.5] * 3) == ["timeout"] * 3
    reason = "took longer than cell_timeout_s = 0.5 before its first event, or between two cells"
    assert {status.reason for status in latest_status(spec.spool).values()} == {reason}


def test_waiting_for_another_process_is_not_a_timeout_and_shown_once(
    spec: WorkerSpec, worker: Worker, run: Callable[..., list[str]], tmp_path: Path
) -> None:
    wait = "say('wait', item, holder='process 7')"
    waits = f"({wait}, {wait}, time.sleep(2), say('held', item))"
    output = io.StringIO()
    timed = replace(spec, cells=with_timeouts(spec, (LONG_S, 1.5, LONG_S)))
    with Lines(dict.fromkeys(map(str, range(3)), Expected()), output) as progress:
        LocalExecutor(tmp_path / "logs", worker=worker("two", waits), cores=1).run([timed], progress, lambda: None)
    assert {status.status for status in latest_status(spec.spool).values()} == {"ok"}
    assert output.getvalue().count("two: waiting for process 7, which runs it\n") == 1
