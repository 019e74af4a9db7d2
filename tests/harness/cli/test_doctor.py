"""`exitbench doctor` lists the environment, changes nothing, and reports problems that would stop a run."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from exitbench.harness.cli.commands import doctor
from exitbench.harness.cli.main import main


def _findings(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """Return the printed findings by subject."""
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()[:-1]]
    return {about: (word, text) for word, about, text in lines}


def test_doctor_lists_the_environment_and_creates_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--runs", str(tmp_path / "runs")]) == 0
    told = _findings(capsys)
    assert {
        "exitbench",
        "packages",
        "cores",
        "memory",
        "energy",
        "GPU",
        "network",
        "folder",
        "disk",
        "database",
    } == set(told)
    assert "torch" in told["packages"][1] and told["folder"][1].endswith("can be made")
    assert list(tmp_path.iterdir()) == []


def test_doctor_summarizes_the_database(example_database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--runs", str(example_database.parent)]) == 0
    word, text = _findings(capsys)["database"]
    assert word == "ok" and text.startswith("120 runs, the last of 2026-01-02") and "2 cells did not succeed" in text


def test_doctor_reports_problems_that_would_stop_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "exitbench.duckdb").write_bytes(b"no database of any kind, nor of any version")
    usage = namedtuple("usage", "total used free")  # as shutil.disk_usage returns
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2, 1, doctor.LEAST_DISK_BYTES - 1))
    monkeypatch.setattr(
        doctor, "requires", lambda name: ["torch>=999", "no-such-package>=1", 'other; extra == "slurm"']
    )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["doctor", "--runs", str(tmp_path)]) == 1
    told = _findings(capsys)
    assert {about for about, (word, _) in told.items() if word == "STOP"} == {
        "torch",
        "no-such-package",
        "disk",
        "database",
    }
    assert "needed: torch>=999" in told["torch"][1] and "HF_HUB_OFFLINE" in told["network"][1]


def test_doctor_reports_a_runs_folder_below_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").write_text("")
    assert main(["doctor", "--runs", str(tmp_path / "runs" / "mine")]) == 1
    assert _findings(capsys)["folder"][0] == "STOP"
