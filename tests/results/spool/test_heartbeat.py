"""Heartbeat of attempts: a running attempt is distinguished from one whose process has ended for any reason."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from exitbench.results.spool import heartbeat
from exitbench.results.spool.heartbeat import OWNER_FILE, Heartbeat, Owner, owner_of

HOLD = """
import sys, time
from pathlib import Path
from exitbench.results.spool.heartbeat import Heartbeat
lock = Heartbeat(Path(sys.argv[1]))
print("locked", flush=True)
time.sleep(600)
"""


def test_a_process_owns_the_attempt_until_it_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            owner = owner_of(tmp_path)
            assert owner is not None
            assert (owner.pid, owner.host, owner.total) == (process.pid, socket.gethostname(), None)
        finally:
            process.send_signal(signal.SIGKILL)
    assert (tmp_path / OWNER_FILE).exists()
    assert owner_of(tmp_path) is None


def test_progress_is_visible_but_writes_are_rate_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = Heartbeat(tmp_path)
    monkeypatch.setattr(heartbeat, "BEAT_S", 1e9)
    lock.progress(1, 10)
    assert _owner(tmp_path).done == 0
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.0)
    lock.progress(2, 10)
    assert (_owner(tmp_path).done, _owner(tmp_path).total) == (2, 10)
    lock.release()
    assert owner_of(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_attempt_without_owner_file_has_no_owner(tmp_path: Path) -> None:
    assert owner_of(tmp_path) is None
    assert owner_of(tmp_path / "missing") is None


@pytest.mark.parametrize(("silent_s", "runs"), [(0, True), (heartbeat.SILENT_S + 60, False)])
def test_remote_attempt_without_visible_lock_is_running_while_its_heartbeat_is_recent(
    tmp_path: Path, silent_s: float, runs: bool
) -> None:
    file = _left_behind(tmp_path, "another-host")
    then = file.stat().st_mtime - silent_s
    os.utime(file, (then, then))
    assert (owner_of(tmp_path) is not None) == runs


def test_local_attempt_without_a_lock_has_no_owner(tmp_path: Path) -> None:
    _left_behind(tmp_path, socket.gethostname())
    assert owner_of(tmp_path) is None


def test_truncated_owner_file_has_no_owner(tmp_path: Path) -> None:
    (tmp_path / OWNER_FILE).write_text('{"pid": 1')
    assert owner_of(tmp_path) is None


def _owner(folder: Path) -> Owner:
    owner = owner_of(folder)
    assert owner is not None
    return owner


def _left_behind(folder: Path, host: str) -> Path:
    file = folder / OWNER_FILE
    file.write_text(json.dumps({"pid": 1, "host": host, "started_s": 0.0, "done": 3, "total": 9}))
    return file
