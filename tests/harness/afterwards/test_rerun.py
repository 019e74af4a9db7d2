"""`exitbench verify`: a stored run is decoded again with a real model, and compared."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from exitbench.harness.afterwards import rerun as verifying
from exitbench.harness.cli.main import main
from exitbench.results.ingest.ingest import ingest
from exitbench.results.spool.attempts import Attempt, cell_attempts, scan_spool

Show = Callable[..., tuple[int, str]]


@pytest.fixture
def show(runs: Path, capsys: pytest.CaptureFixture[str]) -> Show:
    """Return a function that runs `verify` and returns exit code and printed text."""

    def run(*words: str) -> tuple[int, str]:
        code = main(["verify", *words, "--runs", str(runs)])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def stored(runs: Path, kind: str, method: str) -> Attempt:
    for attempt in scan_spool(runs / "spool"):
        cell = json.loads((attempt.path / "cell.json").read_text())
        if (cell["kind"], cell["method"]["name"]) == (kind, method):
            return attempt
    raise LookupError(kind, method)


@pytest.mark.parametrize(
    ("kind", "method", "files"),
    [
        ("quality", "random", ["samples", "tokens"]),
        ("quality", "calm-softmax", ["samples", "tokens"]),
        ("probe", "full", ["probe"]),
        ("replay", "calm-softmax", ["tokens"]),
        ("fit", "calm-classifier", ["fit_curve", "fitted"]),
        ("calibration", "calm-softmax", ["calibration"]),
    ],
)
def test_verify_reproduces_a_stored_run(kind: str, method: str, files: list[str], runs: Path, show: Show) -> None:
    attempt = stored(runs, kind, method)
    code, output = show(attempt.attempt_id)
    assert (code, output.count(": equal")) == (0, len(files))
    assert all(f"{file}." in output for file in files)
    assert "\nequal\nthe repetition is " in output
    assert list(cell_attempts(runs / "spool", attempt.cell_id)) == [attempt]
    assert len(list(cell_attempts(runs / "repetitions", attempt.cell_id))) == 1


def test_verify_by_name_selects_the_latest_attempt(runs: Path, show: Show) -> None:
    """The name fits full depth's quality cell, which has two attempts, and its probe."""
    first = stored(runs, "quality", "full")
    latest = first.path.with_name("99991231T000000000000Z-00000000")
    shutil.copytree(first.path, latest)
    code, output = show("*/*/full")
    assert code == 0
    assert latest.name in output


def test_verify_reports_differing_rows_and_exits_with_1(runs: Path, show: Show) -> None:
    attempt = stored(runs, "quality", "full")
    ingest(runs / "spool", runs / "exitbench.duckdb")
    _rewrite(attempt.path, "SELECT * REPLACE (if(position = 1, exit_layer - 1, exit_layer)::SMALLINT AS exit_layer)")
    code, output = show(attempt.cell_id[:16])
    assert code == 1
    assert "samples.parquet: equal, 4 rows" in output
    assert "tokens.parquet: 4 of " in output
    assert "rows differ, in 4 documents or steps; first document " in output
    assert "position 1: exit_layer 3 -> 4" in output
    assert ingest(runs / "spool", runs / "exitbench.duckdb").added == 0


def test_verify_lists_software_differences_next_to_an_equal_result(runs: Path, show: Show) -> None:
    attempt = stored(runs, "quality", "full")
    env = json.loads((attempt.path / "env.json").read_text())
    env["environment"]["packages"]["torch"] = "1.0.0"
    (attempt.path / "env.json").write_text(json.dumps(env))
    _seal(attempt.path)
    code, output = show(attempt.attempt_id)
    assert code == 0
    assert "they differ, then -> now\n" in output
    assert "  environment.packages.torch: 1.0.0 -> 2" in output


def test_verify_refuses_a_changed_method_revision_before_decoding(
    runs: Path, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = stored(runs, "quality", "full")
    monkeypatch.setattr(verifying, "revision", lambda cls: "2")
    code, output = show(attempt.attempt_id)
    assert code == 2
    assert "the cell would not be the same" in output
    assert "method.revision: 1 -> 2" in output
    assert len(list(cell_attempts(runs / "spool", attempt.cell_id))) == 1


def test_verify_refuses_another_checkpoint(runs: Path, show: Show, checkpoint: Path) -> None:
    code, output = show(stored(runs, "quality", "full").attempt_id, "--model", str(checkpoint))
    assert (code, "model.weights_sha256: " in output) == (2, True)


def test_verify_asks_for_model_if_the_checkpoint_is_not_found(runs: Path, show: Show, worded_model: Path) -> None:
    attempt = stored(runs, "quality", "full")
    (runs / "logs" / "one.json").unlink()
    code, output = show(attempt.attempt_id)
    assert (code, "Name its folder by --model" in output) == (2, True)
    assert show(attempt.attempt_id, "--model", str(worded_model))[0] == 0


def test_verify_refuses_timing_runs(runs: Path, show: Show) -> None:
    code, output = show(stored(runs, "timing", "calm-softmax").attempt_id)
    assert (code, "no repeatable run is named" in output) == (2, True)


def _rewrite(folder: Path, select: str) -> None:
    """Change an attempt's tokens by a query, and its DONE file accordingly."""
    tokens, beside = folder / "tokens.parquet", folder.parent / "tokens.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({select} FROM '{tokens}') TO '{beside}' (FORMAT parquet)")
    beside.replace(tokens)
    _seal(folder)


def _seal(folder: Path) -> None:
    """Write DONE again with the digests of the changed files."""
    done = folder / "DONE"
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in json.loads(done.read_text())}
    done.write_text(json.dumps(digests))
