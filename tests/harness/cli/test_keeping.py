"""`db check`, `gc` and `db rebuild` as commands: printed text and exit codes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from exitbench.harness.cli.main import main
from exitbench.results.ingest.ingest import ingest


@pytest.fixture(autouse=True)
def runs(example_spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a runs folder in the working folder, with a part of the example's attempts."""
    monkeypatch.chdir(tmp_path)
    for prefix in sorted(example_spool.iterdir())[:12]:
        shutil.copytree(prefix, Path("runs/spool") / prefix.name)
    ingest(Path("runs/spool"), Path("runs/exitbench.duckdb"))
    return Path("runs")


def test_db_check_names_changed_files_and_exits_with_1(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "check"]) == 0
    assert "no problem." in capsys.readouterr().out
    changed = next((runs / "spool").glob("*/*/*/samples.parquet"))
    changed.write_bytes(b"")
    assert main(["db", "check"]) == 1
    captured = capsys.readouterr()
    assert str(changed) in captured.err
    assert "1 problem." in captured.out
    assert main(["db", "check", "--runs", "none"]) == 2
    assert main(["db", "check", "--force"]) == 2


def test_gc_requires_yes_and_a_lossy_rebuild_requires_force(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = list((runs / "spool").glob("*/*/*/tokens.parquet"))
    assert main(["gc"]) == 0
    assert "Nothing to free." in capsys.readouterr().out
    assert main(["gc", "--spool"]) == 0
    assert "Nothing was removed; the same command with --yes does it." in capsys.readouterr().out
    assert all(path.exists() for path in traces)
    assert main(["gc", "--spool", "--yes"]) == 0
    assert "Freed: traces: " in capsys.readouterr().out
    assert not all(path.exists() for path in traces)
    assert main(["db", "check"]) == 0
    assert main(["db", "rebuild"]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["db", "rebuild", "--force"]) == 0
