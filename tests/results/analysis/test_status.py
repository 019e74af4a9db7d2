"""Status of a spool while it grows: outcomes, running and failed cells, size."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from exitbench.results.analysis import status
from exitbench.results.analysis.status import spool_status
from exitbench.results.spool import heartbeat as owner
from exitbench.results.spool.attempts import AttemptWriter, cell_attempts, scan_spool

Json = dict[str, Any]


@pytest.fixture
def cells(example: ModuleType) -> list[Json]:
    return [
        example.cell_json(example.MODELS[0], example.TASKS[0], example.Method("static", {"exit_layer": layer}), kind)
        for layer in (1, 2, 3)
        for kind in ("quality", "timing")
    ]


def end(spool: Path, cell: Json, env: Json, outcome: str, reason: str | None = None) -> None:
    with AttemptWriter(spool, cell, env) as writer:
        writer.finish(outcome, reason)


def kill(spool: Path, cell: Json, env: Json) -> None:
    """Write the files that a killed process leaves."""
    writer = AttemptWriter(spool, cell, env)
    (writer.path / owner.OWNER_FILE).unlink()


def test_a_spool_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    status = spool_status(tmp_path / "spool")
    assert (status.counts, status.running, status.failures, status.size_bytes) == ({}, (), (), 0)


def test_every_cell_has_the_state_of_its_latest_attempt_that_ended(
    tmp_path: Path, cells: list[Json], env: Json
) -> None:
    end(tmp_path, cells[0], env, "failed")
    end(tmp_path, cells[0], env, "ok")
    end(tmp_path, cells[1], env, "skipped")
    kill(tmp_path, cells[0], env)
    kill(tmp_path, cells[2], env)
    writing = AttemptWriter(tmp_path, cells[3], env)
    status = spool_status(tmp_path)
    assert [status.states[cell["cell_id"]] for cell in cells[:4]] == ["ok", "skipped", "lost", "running"]
    assert (status.counts["lost"], status.attempts) == (1, 6)
    writing.finish("ok")
    assert spool_status(tmp_path).states[cells[3]["cell_id"]] == "ok"


def test_repeated_cell_is_running_and_keeps_its_previous_outcome(tmp_path: Path, cells: list[Json], env: Json) -> None:
    end(tmp_path, cells[0], env, "ok")
    writing = AttemptWriter(tmp_path, cells[0], env)
    status = spool_status(tmp_path)
    assert [running.attempt.attempt_id for running in status.running] == [writing.attempt_id]
    assert status.counts == {"ok": 1}
    writing.finish("ok")


def test_remaining_time_is_extrapolated_from_finished_documents(
    tmp_path: Path, cells: list[Json], env: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "BEAT_S", 0.0)
    writing = AttemptWriter(tmp_path, cells[0], env)
    (running,) = spool_status(tmp_path).running
    assert running.left_s(running.owner.started_s + 6) is None
    writing.progress(2, 6)
    (running,) = spool_status(tmp_path).running
    assert running.cell["cell_id"] == cells[0]["cell_id"]
    assert running.left_s(running.owner.started_s + 6) == pytest.approx(12)
    writing.finish("ok")


def test_failures_are_shown_newest_first_with_their_reason(
    tmp_path: Path, cells: list[Json], env: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "SHOWN_FAILURES", 2)
    for number, cell in enumerate(cells[:3]):
        end(tmp_path, cell, env, "oom", f"reason {number}")
    end(tmp_path, cells[3], env, "ok")
    failures = spool_status(tmp_path).failures
    assert [failure.status.reason for failure in failures] == ["reason 2", "reason 1"]
    assert failures[0].cell == cells[2]


def test_spool_size_is_the_sum_over_all_files(example_spool: Path) -> None:
    expected = sum(file.stat().st_size for attempt in scan_spool(example_spool) for file in attempt.path.iterdir())
    assert spool_status(example_spool).size_bytes == expected > 0


def test_damaged_attempt_is_named_and_the_others_are_reported(tmp_path: Path, cells: list[Json], env: Json) -> None:
    end(tmp_path, cells[0], env, "ok")
    end(tmp_path, cells[1], env, "ok")
    (damaged,) = cell_attempts(tmp_path, cells[1]["cell_id"])
    (damaged.path / "status.json").write_text('{"status"')
    status = spool_status(tmp_path)
    assert status.states == {cells[0]["cell_id"]: "ok"}
    (message,) = status.damaged
    assert str(damaged.path / "status.json") in message


def test_status_reads_only_selected_cells(tmp_path: Path, cells: list[Json], env: Json) -> None:
    for cell in cells[:2]:
        end(tmp_path, cell, env, "ok")
    status = spool_status(tmp_path, {cells[0]["cell_id"]}.__contains__)
    assert (set(status.states), status.attempts) == ({cells[0]["cell_id"]}, 1)
