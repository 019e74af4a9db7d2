"""`exitbench status`: its view of a spool while other processes write to it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import duckdb
import pytest

from exitbench.harness.cli.commands.common import data_size, duration
from exitbench.harness.cli.main import main
from exitbench.harness.planning.plan import make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.running.environment import environment_and_hardware
from exitbench.results.spool import heartbeat as owner
from exitbench.results.spool.attempts import AttemptWriter

Writer = Callable[..., Path]


def test_status_shows_running_and_failed_cells_while_the_database_is_locked(
    tmp_path: Path, example: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "BEAT_S", 0.0)
    cells = [
        example.cell_json(
            example.MODELS[0], example.TASKS[0], example.Method("static", {"exit_layer": layer}), "quality"
        )
        for layer in (1, 2, 3)
    ]
    for cell, outcome, reason in zip(cells, ("ok", "oom"), (None, "OutOfMemoryError: 3 GiB"), strict=False):
        with AttemptWriter(tmp_path / "spool", cell, example.ENV) as writer:
            writer.finish(outcome, reason)
    writing = AttemptWriter(tmp_path / "spool", cells[2], example.ENV)
    writing.progress(3, 12)
    with duckdb.connect(str(tmp_path / "exitbench.duckdb")):  # a writer's lock
        assert main(["status", "--runs", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert output.startswith("3 cells: 1 ok, 1 oom, 1 running; 3 attempts, ")
    assert "running\n  world-t5/squad/static exit_layer=3/quality: " in output
    assert "3 of 12 done" in output
    assert "static exit_layer=2/quality\n    oom: OutOfMemoryError: 3 GiB" in output
    writing.finish("ok")


def test_status_imports_neither_torch_nor_duckdb(tmp_path: Path) -> None:
    code = (
        "import sys; from exitbench.harness.cli import main as cli\n"
        f"cli.main(['status', '--runs', {str(tmp_path)!r}])\n"
        "print({'torch', 'duckdb', 'transformers'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "set()"


def test_status_without_a_spool_succeeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "0 cells: none; 0 attempts, 0 bytes\n"
    assert list(tmp_path.iterdir()) == []


def test_status_without_a_spool_mentions_the_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "exitbench.duckdb").touch()
    assert main(["status", "--runs", str(tmp_path)]) == 0
    assert f"{tmp_path / 'exitbench.duckdb'} is not read; `exitbench sql` queries it." in capsys.readouterr().out


def test_status_of_a_suite_shows_remaining_cells_and_time_left(
    write_suite: Writer, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_suite()
    (group,) = make_plan(load_suite(path), tmp_path / "spool", tmp_path / "models", data_dir).groups
    show = ["status", str(path), "--data-dir", str(data_dir), "--runs", str(tmp_path)]
    assert main(show) == 0
    first_estimate = capsys.readouterr().out.partition("time left, one cell after the other: ")[2].strip()
    assert first_estimate[0].isdigit() and "unknown" not in first_estimate, "from bytes per token: nothing has run"
    first = group.cells[0].item.cell
    with AttemptWriter(tmp_path / "spool", first.to_json(), environment_and_hardware(1)) as writer:
        writer.finish("ok")
    assert main(show) == 0
    output = capsys.readouterr().out
    assert output.startswith("3 cells: 1 ok, 2 new; 1 attempt, ")
    assert "time left, one cell after the other: " in output and first_estimate not in output, "one cell less"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.5, "9.5 s"), (45, "45 s"), (725, "12 min 5 s"), (12_000, "3 h 20 min"), (187_200, "2 d 4 h")],
)
def test_durations_are_abbreviated(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(12, "12 bytes"), (1_234, "1.23 kB"), (9.8e6, "9.8 MB"), (2e12, "2 TB")])
def test_data_sizes_are_abbreviated(count: float, text: str) -> None:
    assert data_size(count) == text
