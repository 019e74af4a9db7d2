"""Repeated `kill -9` at random moments: no finished cell is lost or run twice.

    python -m pytest tests/faults/test_kill.py -s        EXITBENCH_KILLS=100 EXITBENCH_SEED=1

The suite is run and killed until it is finished, then again in a new folder, until the number of kills is reached. The
ingester is the process of `exitbench run` while it has the database open.
"""

import fcntl
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

from exitbench.results.spool.attempts import latest_status, scan_spool

KILLS = int(os.environ.get("EXITBENCH_KILLS", "100"))
SEED = int(os.environ.get("EXITBENCH_SEED", "1"))
LONGEST_S = 6.0
ORPHAN_S = 20.0
"""A worker ends with its parent, however busy the machine."""


def worker_of(parent: int) -> int | None:
    """Return the process id of a run's worker, or None if it has none now."""
    children = Path(f"/proc/{parent}/task").glob("*/children")
    try:
        ids = [int(child) for path in children for child in path.read_text().split()]
    except OSError:
        return None
    return next((child for child in ids if b"exitbench.harness.running.worker" in command_of(child)), None)


def command_of(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def holds_database(runs: Path) -> bool:
    """Return whether a process has the database open for writing; only the run writes here."""
    try:
        with (runs / ".exitbench.duckdb.lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def kill_at_random(running: "subprocess.Popen[str]", runs: Path, victim: str, rng: random.Random) -> bool:
    """Kill the victim at a random moment of its life; return False if the run ended before."""
    if victim == "parent":
        time.sleep(rng.uniform(0, LONGEST_S))
    while running.poll() is None:
        target: int | None = running.pid
        if victim == "worker":
            target = worker_of(running.pid)
        elif victim == "ingester" and not holds_database(runs):
            target = None
        if target is None:
            time.sleep(0.002)
            continue
        if victim != "parent":
            time.sleep(rng.uniform(0, 3.0 if victim == "worker" else 0.5))
        try:
            os.kill(target, signal.SIGKILL)
        except ProcessLookupError:
            continue
        return True
    return False


def orphan_s(runs: Path) -> float:
    """Return for how many seconds the workers of a runs folder outlive their parent."""
    started = time.monotonic()
    while any(
        b"exitbench.harness.running.worker" in (command := command_of(int(process.name)))
        and bytes(runs / "logs") in command
        for process in Path("/proc").glob("[0-9]*")
    ):
        assert time.monotonic() - started < ORPHAN_S, "a worker goes on without its parent"
        time.sleep(0.02)
    return time.monotonic() - started


def test_repeated_kills_lose_no_finished_cell_and_repeat_none(bench: Any, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    undisturbed = tmp_path / "undisturbed"
    assert bench.run(undisturbed).returncode == 0
    expected = bench.digests(undisturbed)
    kills, states, longest_orphan_s, folders = Counter[str](), Counter[str](), 0.0, 0
    while kills.total() < KILLS:
        runs = tmp_path / f"runs-{folders}"
        folders += 1
        ended = False
        while not ended and kills.total() < KILLS:
            victim = rng.choice(("worker", "ingester", "parent"))
            with bench.start(bench.run_command(runs)) as running:
                killed = kill_at_random(running, runs, victim, rng)
                if victim != "worker" and killed:
                    longest_orphan_s = max(longest_orphan_s, orphan_s(runs))
                running.communicate()
            ended = not killed and running.returncode == 0
            kills[victim] += killed
        before = {attempt.attempt_id for attempt in scan_spool(runs / "spool")}
        missing = expected.keys() - bench.digests(runs).keys()
        last = bench.run(runs)
        assert last.returncode == 0, last.stderr
        added = [attempt for attempt in scan_spool(runs / "spool") if attempt.attempt_id not in before]
        assert sorted(attempt.cell_id for attempt in added) == sorted(missing)
        assert bench.digests(runs) == expected
        assert {status.status for status in latest_status(runs / "spool").values()} == {"ok"}
        bench.check(runs)
        print(f"{kills.total()} kills, {len(added)} cells left", flush=True)
        states.update("finished" if attempt.finished else "killed" for attempt in scan_spool(runs / "spool"))
    print(
        f"seed {SEED}: kills {dict(kills)} in {folders} folders, attempts {dict(states)}, "
        f"a worker without its parent ended within {longest_orphan_s:.1f} s"
    )
