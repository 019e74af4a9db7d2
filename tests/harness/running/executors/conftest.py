"""Fixtures of a group of three cells, and of a worker with a configurable behaviour."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exitbench.harness.cells.cell import Cell, GenerationSettings, MethodRef, ModelRef, TaskRef
from exitbench.harness.cells.job import CellJob, DataRequest, WorkerSpec

CELL = Cell(
    suite="suite",
    kind="quality",
    method=MethodRef("gate", {"threshold": 0.0}, "1"),
    engine_version=1,
    kv_policy="state-copy",
    model=ModelRef("small", "b" * 64, "c" * 64, "d" * 64, "seq2seq", 8, 4, 1000),
    task=TaskRef("squad", "squad", "test", "builtin", 2, "e" * 64, "f" * 64, "1"),
    generation=GenerationSettings(16),
    dtype="float32",
    device="cpu",
    batch_size=1,
    seed=0,
)

WORKER = """\
import json, os, signal, sys, time
from pathlib import Path
from exitbench.harness.cells.job import WorkerSpec
from exitbench.results.spool.schema import ENV_KEYS
from exitbench.results.spool.attempts import AttemptWriter

ENV = {section: dict.fromkeys(keys) for section, keys in ENV_KEYS.items() if section}
spec = WorkerSpec.from_json(Path(sys.argv[1]).read_text())

def say(event, item, **more):
    tell(json.dumps({"event": event, "cell": item.cell.cell_id, **more}))

def tell(line):
    os.write(int(sys.argv[2]), line.encode() + b"\\n")

def run(item):
    say("start", item, label=item.label, documents=2, cells=1)
    with AttemptWriter(spec.spool, item.cell.to_json(), ENV) as writer:
        if HOW[0] in (item.label, "*"):
            HOW[1]()
        say("progress", item, done=2)
        writer.finish("ok")
    say("end", item, status="ok")

def chatter():
    print("a library prints", flush=True)
    os.write(1, b'{"event": "x"}\\n')

def leave_child(*descriptors):
    # A process of the worker's that outlives it, with copies of some of its descriptors.
    if os.fork() == 0:
        for descriptor in {0, 1, 2, int(sys.argv[2]), int(sys.argv[3])} - set(descriptors):
            os.close(descriptor)
        time.sleep(600)
        os._exit(0)

def forget_signals():
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)

def note(*words):
    folder = Path(__file__).parent / "notes"
    folder.mkdir(exist_ok=True)
    (folder / "-".join([*words, str(os.getpid())])).touch()

def meet(number):
    # Returns once so many workers have been here.
    note("here")
    deadline = time.monotonic() + 300
    while len(list((Path(__file__).parent / "notes").glob("here-*"))) < number:
        assert time.monotonic() < deadline
        time.sleep(0.02)

def alone():
    (Path(__file__).parent / "busy").touch(exist_ok=False)
    time.sleep(0.2)
    (Path(__file__).parent / "busy").unlink()

def wait():
    print("waiting", file=sys.stderr, flush=True)
    time.sleep(600)

def die(code, last):
    print(last, file=sys.stderr, flush=True)
    os._exit(code)

"""


@pytest.fixture(autouse=True)
def _workers_are_forks(forked: type[subprocess.Popen[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", forked)


@pytest.fixture
def spec(tmp_path: Path) -> WorkerSpec:
    """Return the specification of a worker with three cells, labeled one, two and three."""
    items = tuple(
        CellJob(replace(CELL, seed=seed), label, DataRequest("squad", "builtin", "test"))
        for seed, label in enumerate(("one", "two", "three"))
    )
    return WorkerSpec(items, tmp_path, None, tmp_path / "spool", "cpu", 1)


@pytest.fixture
def worker(tmp_path: Path) -> Callable[[str, str], tuple[str, ...]]:
    """Return a function that gives a worker's command, with special behaviour in one cell."""

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
