"""The executor against workers that behave, die, run out of memory and are interrupted."""

import io
import json
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from exitbench.harness.cell import Cell, Generation, MethodRef, ModelRef, TaskRef
from exitbench.harness.executor import run_group
from exitbench.harness.progress import Lines
from exitbench.harness.spec import DataRequest, WorkerSpec, WorkItem
from exitbench.results.spool import latest_status, read_attempt

CELL = Cell(
    suite="suite",
    kind="quality",
    method=MethodRef("gate", {"threshold": 0.0}, "a" * 64),
    kv_policy="state-copy",
    model=ModelRef("small", "b" * 64, "c" * 64, "d" * 64, "seq2seq", 8, 4, 1000),
    task=TaskRef("squad", "squad", "test", "builtin", 2, "e" * 64, "f" * 64, "1"),
    generation=Generation(16),
    dtype="float32",
    device="cpu",
    batch_size=1,
    seed=0,
)

WORKER = """\
import json, os, signal, sys, time
from pathlib import Path
from exitbench.harness.spec import WorkerSpec
from exitbench.results.schema import ENV_KEYS
from exitbench.results.spool import AttemptWriter

ENV = {section: dict.fromkeys(keys) for section, keys in ENV_KEYS.items() if section}
spec = WorkerSpec.from_json(Path(sys.argv[1]).read_text())

def say(event, item, **more):
    print(json.dumps({"event": event, "cell": item.cell.cell_id, **more}), flush=True)

def run(item):
    say("start", item, label=item.label, documents=2)
    with AttemptWriter(spec.spool, item.cell.to_json(), ENV) as writer:
        if item.label == HOW[0]:
            HOW[1]()
        say("progress", item, done=2)
        writer.finish("ok")
    say("end", item, status="ok")

def chatter():
    print("a library prints")
    print("3")

def wait():
    print("waiting", file=sys.stderr, flush=True)
    time.sleep(60)

def die(code, last):
    print(last, file=sys.stderr, flush=True)
    os._exit(code)

"""


@pytest.fixture
def spec(tmp_path: Path) -> WorkerSpec:
    """Three cells, named one, two, three."""
    items = tuple(
        WorkItem(replace(CELL, seed=seed), label, DataRequest("squad", "builtin", "test"))
        for seed, label in enumerate(("one", "two", "three"))
    )
    return WorkerSpec(items, tmp_path, None, tmp_path / "spool", "cpu", 1)


@pytest.fixture
def worker(tmp_path: Path) -> Callable[[str, str], tuple[str, ...]]:
    """A worker that does something of its own in the cell of one label."""

    def make(label: str, does: str) -> tuple[str, ...]:
        body = WORKER + textwrap.dedent(f"""\
            HOW = ({label!r}, lambda: {does})
            try:
                for item in spec.cells:
                    run(item)
            except KeyboardInterrupt:
                say("end", item, status="interrupted")
                sys.exit(130)
            """)
        path = tmp_path / "worker.py"
        path.write_text(body)
        return sys.executable, str(path)

    return make


Worker = Callable[[str, str], tuple[str, ...]]


def outcome(spec: WorkerSpec, command: tuple[str, ...], tmp_path: Path) -> tuple[list[str], str]:
    """Statuses by cell in order, and what was shown."""
    shown = io.StringIO()
    with Lines(len(spec.cells), shown) as progress:
        statuses = run_group(spec, tmp_path / "logs", progress, command)
    return [statuses[item.cell.cell_id] for item in spec.cells], shown.getvalue()


def test_every_cell_is_run_and_shown_once(spec: WorkerSpec, worker: Worker, tmp_path: Path) -> None:
    statuses, shown = outcome(spec, worker("two", "chatter()"), tmp_path)
    assert statuses == ["ok", "ok", "ok"]
    assert [line.split(":")[0] for line in shown.splitlines()] == [
        "[1/3] one (2 documents)",
        "[2/3] two (2 documents)",
        "[3/3] three (2 documents)",
    ]
    (log,) = (tmp_path / "logs").glob("*.log")
    assert log.read_text() == "a library prints\n3\n"


@pytest.mark.parametrize(
    ("does", "status", "reason", "exit_code", "number"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "failed", "the worker was killed by SIGKILL", None, 9),
        ("os.abort()", "failed", "the worker was killed by SIGABRT", None, 6),
        ("die(3, 'the last words')", "failed", "the worker exited with code 3: the last words", 3, None),
        ("die(1, 'MemoryError')", "oom", "the worker exited with code 1: MemoryError", 1, None),
    ],
)
def test_a_dead_worker_costs_its_current_cell_only(
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


def test_a_worker_that_cannot_start_fails_every_cell_and_is_not_tried_again(spec: WorkerSpec, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise SystemExit('no such model')")
    statuses, _ = outcome(spec, (sys.executable, str(path)), tmp_path)
    assert statuses == ["failed"] * 3
    assert len(list((tmp_path / "logs").glob("*.log"))) == 1
    reasons = {status.reason for status in latest_status(spec.spool).values()}
    assert reasons == {"the worker exited with code 1: no such model"}


def test_exit_code_0_in_the_middle_of_a_cell_is_a_death_too(spec: WorkerSpec, worker: Worker, tmp_path: Path) -> None:
    statuses, _ = outcome(spec, worker("three", "os._exit(0)"), tmp_path)
    assert statuses == ["ok", "ok", "failed"]


INTERRUPTED = """\
import io, sys
from pathlib import Path
from exitbench.harness import executor
from exitbench.harness.progress import Lines
from exitbench.harness.spec import WorkerSpec

executor.GRACE_S = float(sys.argv[4])
spec = WorkerSpec.from_json(Path(sys.argv[1]).read_text())
try:
    with Lines(3, sys.stdout) as progress:
        executor.run_group(spec, Path(sys.argv[2]), progress, (sys.executable, sys.argv[3]))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("does", "grace_s"),
    [("wait()", 30.0), ("(signal.signal(signal.SIGINT, signal.SIG_IGN), wait())", 0.2)],
    ids=["ends in order", "has to be killed"],
)
def test_ctrl_c_ends_the_worker_and_keeps_what_is_finished(
    spec: WorkerSpec, worker: Worker, tmp_path: Path, does: str, grace_s: float
) -> None:
    _, path = worker("two", does)
    (tmp_path / "spec.json").write_text(spec.to_json())
    arguments = [str(tmp_path / "spec.json"), str(tmp_path / "logs"), path, str(grace_s)]
    parent = subprocess.Popen([sys.executable, "-c", INTERRUPTED, *arguments], stdout=subprocess.PIPE, text=True)
    wait_for(lambda: any("waiting" in log.read_text() for log in (tmp_path / "logs").glob("*.log")))
    parent.send_signal(signal.SIGINT)
    shown, _ = parent.communicate(timeout=20)
    assert parent.returncode == 130
    assert "one (2 documents): ok" in shown and "two (2 documents): interrupted" in shown
    ended = latest_status(spec.spool)
    assert [ended[item.cell.cell_id].status for item in spec.cells[:2]] == ["ok", "interrupted"]
    assert spec.cells[2].cell.cell_id not in ended


def wait_for(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_specification_of_a_worker_is_kept_beside_its_log(spec: WorkerSpec, worker: Worker, tmp_path: Path) -> None:
    outcome(spec, worker("two", "die(3, '')"), tmp_path)
    kept = [json.loads(path.read_text()) for path in sorted((tmp_path / "logs").glob("*.json"))]
    assert [[item["label"] for item in record["cells"]] for record in kept] == [["one", "two", "three"], ["three"]]
