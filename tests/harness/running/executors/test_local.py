"""The local executor against workers that behave, die, run out of memory and are interrupted, and several GPUs."""

import io
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from exitbench.harness.cells.cell import Kind
from exitbench.harness.cells.job import WorkerSpec
from exitbench.harness.processes.locks import locked
from exitbench.harness.running.executors import group
from exitbench.harness.running.executors.gpus import Gpu
from exitbench.harness.running.executors.local import LocalExecutor
from exitbench.progress import Expected, Lines
from exitbench.results.spool.attempts import latest_status, read_attempt

FORK = multiprocessing.get_context("fork")
LONG_S = 300.0
"""Longer than anything takes on a busy machine."""
Worker = Callable[[str, str], tuple[str, ...]]


def outcome(spec: WorkerSpec, command: tuple[str, ...], tmp_path: Path) -> tuple[list[str], str]:
    """Return the statuses of the cells in order, and the printed output."""
    output = io.StringIO()
    with Lines(dict.fromkeys(map(str, range(len(spec.cells))), Expected()), output) as progress:
        statuses = LocalExecutor(tmp_path / "logs", worker=command, cores=1).run([spec], progress, lambda: None)
    return [statuses[item.cell.cell_id] for item in spec.cells], output.getvalue()


def test_every_cell_is_run_and_shown_once(spec: WorkerSpec, worker: Worker, tmp_path: Path) -> None:
    statuses, shown = outcome(spec, worker("two", "chatter()"), tmp_path)
    assert statuses == ["ok", "ok", "ok"]
    assert [line.split(":")[0] for line in shown.splitlines()] == [
        "[1/3] one (2 documents)",
        "[2/3] two (2 documents)",
        "[3/3] three (2 documents)",
    ]
    (log,) = (tmp_path / "logs").glob("*.log")
    assert log.read_text() == 'a library prints\n{"event": "x"}\n'


@pytest.mark.parametrize(
    ("does", "status", "reason", "exit_code", "number"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "failed", "the worker was killed by SIGKILL", None, 9),
        pytest.param("os.abort()", "failed", "the worker was killed by SIGABRT", None, 6, marks=pytest.mark.exhaustive),
        pytest.param(
            "die(3, 'the last words')",
            "failed",
            "the worker exited with code 3: the last words",
            3,
            None,
            marks=pytest.mark.exhaustive,
        ),
        ("die(3, 'x\\nnanobind: leaked 2 types!')", "failed", "the worker exited with code 3: x", 3, None),
        ("die(1, 'MemoryError')", "oom", "the worker exited with code 1: MemoryError", 1, None),
    ],
)
def test_dead_worker_fails_only_its_current_cell(
    spec: WorkerSpec,
    worker: Worker,
    tmp_path: Path,
    does: str,
    status: str,
    reason: str,
    exit_code: int | None,
    number: int | None,
) -> None:
    statuses, shown = outcome(spec, worker("two", does), tmp_path)
    assert statuses == ["ok", status, "ok"]
    assert f"two (2 documents): {status}" in shown
    lost = latest_status(spec.spool)[spec.cells[1].cell.cell_id]
    record = read_attempt(lost.path).status
    assert (record["status"], record["reason"]) == (status, reason)
    assert (record["exit_code"], record["signal"]) == (exit_code, number)


def test_the_last_log_lines_of_a_dead_worker_are_kept(spec: WorkerSpec, worker: Worker, tmp_path: Path) -> None:
    outcome(spec, worker("two", "die(3, 'first\\nthe last words')"), tmp_path)
    lost = latest_status(spec.spool)[spec.cells[1].cell.cell_id]
    assert read_attempt(lost.path).status["log_tail"] == "first\nthe last words"


def test_worker_that_cannot_start_fails_every_cell_without_a_restart(spec: WorkerSpec, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise SystemExit('no such model')")
    statuses, _ = outcome(spec, (sys.executable, str(path)), tmp_path)
    assert statuses == ["failed"] * 3
    assert len(list((tmp_path / "logs").glob("*.log"))) == 1
    reasons = {status.reason for status in latest_status(spec.spool).values()}
    assert reasons == {"the worker exited with code 1: no such model"}


def test_worker_exit_with_code_0_during_a_cell_is_a_failure(spec: WorkerSpec, worker: Worker, tmp_path: Path) -> None:
    statuses, _ = outcome(spec, worker("three", "os._exit(0)"), tmp_path)
    assert statuses == ["ok", "ok", "failed"]


def run_until_interrupted(
    specs: list[WorkerSpec], command: tuple[str, ...], tmp_path: Path, cores: int, grace_s: float
) -> None:
    """Run cells as the main thread of a process, and end it as `exitbench run` does after Ctrl-C."""
    group.GRACE_S = grace_s
    try:
        with (
            (tmp_path / "shown").open("w") as shown,
            Lines(dict.fromkeys(map(str, range(3)), Expected()), shown) as progress,
        ):
            LocalExecutor(tmp_path / "logs", worker=command, cores=cores).run(specs, progress, lambda: None)
    except KeyboardInterrupt:
        sys.exit(130)


def interrupt(process: multiprocessing.process.BaseProcess) -> int | None:
    """Send SIGINT to a process, wait for its end, and return its exit code."""
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join(LONG_S)
    return process.exitcode


@pytest.mark.parametrize(
    ("does", "grace_s"),
    [("wait()", 30.0), ("(signal.signal(signal.SIGINT, signal.SIG_IGN), wait())", 0.2)],
    ids=["ends in order", "has to be killed"],
)
def test_ctrl_c_ends_the_worker_and_keeps_finished_cells(
    spec: WorkerSpec, worker: Worker, tmp_path: Path, does: str, grace_s: float
) -> None:
    # One specification runs, one waits for its turn.
    arguments = ([spec, spec], worker("two", does), tmp_path, 1, grace_s)
    parent = FORK.Process(target=run_until_interrupted, args=arguments, daemon=True)
    parent.start()
    wait_for(lambda: any("waiting" in log.read_text() for log in (tmp_path / "logs").glob("*.log")))
    assert interrupt(parent) == 130
    shown = (tmp_path / "shown").read_text()
    assert "one (2 documents): ok" in shown and "two (2 documents): interrupted" in shown
    ended = latest_status(spec.spool)
    assert [ended[item.cell.cell_id].status for item in spec.cells[:2]] == ["ok", "interrupted"]
    assert spec.cells[2].cell.cell_id not in ended


def wait_for(condition: Callable[[], bool], limit_s: float = LONG_S) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_worker_spec_is_stored_next_to_its_log(spec: WorkerSpec, worker: Worker, tmp_path: Path) -> None:
    outcome(spec, worker("two", "die(3, '')"), tmp_path)
    kept = [json.loads(path.read_text()) for path in sorted((tmp_path / "logs").glob("*.json"))]
    assert [[item["label"] for item in record["cells"]] for record in kept] == [["one", "two", "three"], ["three"]]


# ------------------------------------------------------------------------------------------ several cores


def of_kinds(spec: WorkerSpec, *kinds: Kind) -> WorkerSpec:
    cells = zip(spec.cells, kinds, strict=True)
    return replace(spec, cells=tuple(replace(item, cell=replace(item.cell, kind=kind)) for item, kind in cells))


def run_on_cores(cores: int, specs: list[WorkerSpec], command: tuple[str, ...], tmp_path: Path) -> dict[str, str]:
    executor = LocalExecutor(tmp_path / "logs", worker=command, cores=cores)
    with Lines(dict.fromkeys(map(str, range(len(specs))), Expected()), io.StringIO()) as progress:
        return executor.run(specs, progress, lambda: None)


def test_untimed_groups_run_in_parallel(spec: WorkerSpec, worker: Worker, tmp_path: Path) -> None:
    statuses = run_on_cores(3, groups_of(spec), worker("*", "meet(3)"), tmp_path)
    assert list(statuses.values()) == ["ok"] * 3


def test_groups_run_one_at_a_time_on_one_core(spec: WorkerSpec, worker: Worker, tmp_path: Path) -> None:
    statuses = run_on_cores(1, groups_of(spec), worker("*", "alone()"), tmp_path)
    assert list(statuses.values()) == ["ok"] * 3


def test_timing_cells_run_alone_after_all_others(spec: WorkerSpec, worker: Worker, tmp_path: Path) -> None:
    specs = groups_of(of_kinds(spec, "timing", "quality", "timing"))
    statuses = run_on_cores(3, specs, worker("*", "(alone(), note(item.label))"), tmp_path)
    assert set(statuses.values()) == {"ok"}
    kept = [json.loads(path.read_text()) for path in sorted((tmp_path / "logs").glob("*.json"))]
    assert [[item["label"] for item in record["cells"]] for record in kept] == [["two"], ["one"], ["three"]]


def test_interrupt_of_parallel_groups_keeps_finished_cells(spec: WorkerSpec, worker: Worker, tmp_path: Path) -> None:
    """Two groups run in parallel. The finished one keeps its result; the other's cell ends as interrupted."""
    arguments = (groups_of(spec)[:2], worker("two", "wait()"), tmp_path, 2, 30.0)
    parent = FORK.Process(target=run_until_interrupted, args=arguments, daemon=True)
    parent.start()
    wait_for(lambda: any("waiting" in log.read_text() for log in (tmp_path / "logs").glob("*.log")))
    first = spec.cells[0].cell.cell_id  # which may not have begun when the other one waits
    wait_for(lambda: first in (done := latest_status(spec.spool)) and done[first].status == "ok")
    assert interrupt(parent) == 130
    ended = latest_status(spec.spool)
    assert [ended[item.cell.cell_id].status for item in spec.cells[:2]] == ["ok", "interrupted"]


# ------------------------------------------------------------------------------------------ several GPUs

TWO_GPUS = (Gpu("uuid-a", "0"), Gpu("uuid-b", "1"))
NOTES = "note('on', os.environ.get('CUDA_VISIBLE_DEVICES', 'all'))"


def groups_of(spec: WorkerSpec) -> list[WorkerSpec]:
    """Return each cell of a specification as a separate group."""
    return [replace(spec, cells=(item,)) for item in spec.cells]


def run_on(gpus: tuple[Gpu, ...], specs: list[WorkerSpec], command: tuple[str, ...], tmp_path: Path) -> dict[str, str]:
    executor = LocalExecutor(tmp_path / "logs", gpus, command, tmp_path / "gpus")
    with Lines(dict.fromkeys(map(str, range(len(specs))), Expected()), io.StringIO()) as progress:
        return executor.run(specs, progress, lambda: None)


def test_groups_share_the_gpus_and_each_worker_sees_one(spec: WorkerSpec, worker: Worker, tmp_path: Path) -> None:
    statuses = run_on(TWO_GPUS, groups_of(spec), worker("*", f"({NOTES}, meet(2))"), tmp_path)
    assert set(statuses.values()) == {"ok"} and len(statuses) == 3
    used = [path.name.split("-")[1] for path in (tmp_path / "notes").glob("on-*")]
    assert set(used) == {"0", "1"}


def test_single_gpu_runs_one_group_at_a_time_without_cuda_visible_devices(
    spec: WorkerSpec, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    statuses = run_on(TWO_GPUS[:1], groups_of(spec), worker("*", f"({NOTES}, alone())"), tmp_path)
    assert list(statuses.values()) == ["ok"] * 3
    assert len(list((tmp_path / "notes").glob("on-all-*"))) == 3


def test_gpu_locked_by_another_run_is_not_used(spec: WorkerSpec, worker: Worker, tmp_path: Path) -> None:
    with locked(tmp_path / "gpus" / "uuid-a.lock", wait=True) as held:
        assert held
        run_on(TWO_GPUS, groups_of(spec), worker("*", NOTES), tmp_path)
    assert len(list((tmp_path / "notes").glob("on-1-*"))) == 3
    assert not list((tmp_path / "gpus").iterdir())


def test_a_run_waits_until_a_gpu_is_free(spec: WorkerSpec, worker: Worker, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool, locked(tmp_path / "gpus" / "uuid-a.lock", wait=True):
        waiting = pool.submit(run_on, TWO_GPUS[:1], [spec], worker("one", NOTES), tmp_path)
        time.sleep(0.2)
        assert not waiting.done() and not (tmp_path / "notes").exists()
        Path(tmp_path / "gpus" / "uuid-a.lock").unlink()  # as if its holder let go
        assert set(waiting.result(timeout=LONG_S).values()) == {"ok"}


def test_progress_of_parallel_groups_names_each_cell(spec: WorkerSpec, worker: Worker, tmp_path: Path) -> None:
    output = io.StringIO()
    executor = LocalExecutor(tmp_path / "logs", TWO_GPUS, worker("*", "meet(2)"), tmp_path / "gpus")
    with Lines(dict.fromkeys(map(str, range(2)), Expected()), output) as progress:
        executor.run(groups_of(spec)[:2], progress, lambda: None)
    lines = sorted(line.split(": ")[0].split("] ")[1] for line in output.getvalue().splitlines())
    assert lines == ["one (2 documents)", "two (2 documents)"]
