"""Access lock of the database: one writer or several readers; later processes cannot overtake a waiting one forever."""

import threading
import time
from pathlib import Path

import pytest

from exitbench.results.database import access
from exitbench.results.database.access import AccessLock, acquire, has_waiters, yield_to_waiters


def now(path: Path, *, exclusive: bool) -> AccessLock | None:
    return acquire(path, exclusive=exclusive, deadline=time.monotonic())


def test_readers_share_the_lock_and_a_writer_holds_it_exclusively(tmp_path: Path) -> None:
    path = tmp_path / "x.duckdb"
    first, second = now(path, exclusive=False), now(path, exclusive=False)
    assert first is not None and second is not None
    assert now(path, exclusive=True) is None
    first.release()
    second.release()
    writer = now(path, exclusive=True)
    assert writer is not None
    assert now(path, exclusive=False) is None
    writer.release()


def test_returning_writer_yields_to_a_waiting_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exitbench.results.database.access._LONGEST_S", 300.0)
    path = tmp_path / "x.duckdb"
    for _ in range(5):
        came: list[AccessLock | None] = []
        writer = now(path, exclusive=True)
        assert writer is not None
        reader = threading.Thread(
            target=lambda: came.append(acquire(path, exclusive=False, deadline=time.monotonic() + 300))  # noqa: B023
        )
        reader.start()
        while not has_waiters(path):
            time.sleep(0.001)
        writer.release()
        yield_to_waiters(path)
        assert len(came) == 1 or not has_waiters(path)
        reader.join()
        assert came[0] is not None
        came[0].release()


def test_yielding_to_waiters_is_bounded_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept_s: list[float] = []
    monkeypatch.setattr("exitbench.results.database.access.has_waiters", lambda path: True)
    monkeypatch.setattr(time, "monotonic", lambda: sum(slept_s))
    monkeypatch.setattr(time, "sleep", slept_s.append)
    yield_to_waiters(tmp_path / "x.duckdb")
    assert access._LONGEST_S <= sum(slept_s) <= access._LONGEST_S + access.POLL_S + 1e-9
