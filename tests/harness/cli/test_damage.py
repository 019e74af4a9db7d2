"""Torn, emptied and overwritten files of the spool: commands that read it continue, and the cell is run again."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from exitbench.harness.cli.main import main
from exitbench.harness.planning.plan import PlannedCell, make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.running.cell_lock import outcome
from exitbench.results.ingest.ingest import ingest
from exitbench.results.spool.attempts import AttemptWriter, scan_spool
from exitbench.results.spool.schema import ENV_KEYS, TABLES

ENV = {section: dict.fromkeys(keys) for section, keys in ENV_KEYS.items() if section}
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "torn": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "garbage": lambda content: bytes(255 - byte for byte in content),
}
FILES = ("DONE", "cell.json", "env.json", "status.json", "metrics.parquet")
SUITE = '[[sweep]]\nmethod = "static"\ngrid = { exit_layer = [1] }\nkinds = ["quality"]\n'
METRIC = {"metric": "f1", "metric_version": "1", "role": "headline", "value": 1.0, "n": 4}


@pytest.fixture
def suite(write_suite: Callable[..., Path], data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a suite of one cell; its runs are in the working folder."""
    monkeypatch.chdir(tmp_path)
    return write_suite(SUITE)


@pytest.fixture
def plan(suite: Path, data_dir: Path, tmp_path: Path) -> Callable[[], PlannedCell]:
    """Return a function that plans the suite and returns its cell."""

    def make() -> PlannedCell:
        return (
            make_plan(load_suite(suite), tmp_path / "runs" / "spool", tmp_path / "models", data_dir).groups[0].cells[0]
        )

    return make


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=DAMAGES)
def damage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def damaged(file: str, damage: str, plan: Callable[[], PlannedCell], tmp_path: Path) -> Iterator[Path]:
    """Yield the damaged file of an attempt that had ended successfully."""
    with AttemptWriter(tmp_path / "runs" / "spool", plan().item.cell_record(), ENV) as writer:
        writer.write("metrics", pa.Table.from_pylist([METRIC], schema=TABLES["metrics"]))
        writer.finish("ok")
    assert plan().state == "done"
    path = writer.path / file
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    yield path


@pytest.mark.sampled(3)
def test_plan_and_status_succeed_on_a_damaged_spool(damaged: Path, suite: Path) -> None:
    for command in (
        ["plan", str(suite), "--data-dir", "data"],
        ["status"],
        ["status", str(suite), "--data-dir", "data"],
    ):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(command) == 0
        if damaged.name == "status.json":
            assert str(damaged.relative_to(Path.cwd())) in printed.getvalue()


@pytest.mark.sampled(3)
def test_cell_with_a_damaged_status_file_is_planned_as_new(
    damaged: Path, plan: Callable[[], PlannedCell], tmp_path: Path
) -> None:
    """Damage of other files is found by the import: planning reads the status file alone."""
    is_read = damaged.name == "status.json"
    assert plan().state == ("new" if is_read else "done")
    unseen = dataclasses.replace(plan().item, seen=None)
    assert outcome(tmp_path / "runs" / "spool", unseen) == (None if is_read else "ok")


@pytest.mark.sampled(3)
def test_ingest_quarantines_a_damaged_attempt_and_its_cell_is_new(
    damaged: Path, plan: Callable[[], PlannedCell], tmp_path: Path
) -> None:
    spool = tmp_path / "runs" / "spool"
    (message,) = ingest(spool, tmp_path / "runs" / "exitbench.duckdb").quarantined
    assert str(damaged) in message
    assert plan().state == "new"


@pytest.mark.sampled(3)
def test_stale_state_ignores_attempts_with_a_damaged_cell_file(
    damaged: Path, plan: Callable[[], PlannedCell], suite: Path
) -> None:
    suite.write_text(suite.read_text().replace("max_new_tokens = 4", "max_new_tokens = 3"))
    assert plan().state == ("new" if damaged.name == "cell.json" else "stale")


def test_one_run_detects_a_damaged_attempt_and_repeats_its_cell(
    suite: Path, checkpoint: Path, worded_model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    suite.write_text(suite.read_text().replace(str(checkpoint), str(worded_model)))
    command = ["run", str(suite), "--data-dir", "data", "--no-report"]
    assert main(command) == 0
    before = {attempt.cell_id: attempt for attempt in scan_spool(Path("runs/spool"))}
    cell_id, torn = before.popitem()
    Path("runs/exitbench.duckdb").unlink()
    (torn.path / "samples.parquet").write_bytes((torn.path / "samples.parquet").read_bytes()[:100])
    capfd.readouterr()
    assert main(command) == 0
    assert "samples.parquet: was changed after it was written" in capfd.readouterr().err
    after = {attempt.cell_id: attempt for attempt in scan_spool(Path("runs/spool"))}
    assert after.pop(cell_id).attempt_id > torn.attempt_id
    assert after == before
    assert main(command) == 0
    assert "Nothing to run" in capfd.readouterr().err


def test_run_with_results_the_database_rejects_exits_with_1(
    suite: Path, checkpoint: Path, worded_model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    suite.write_text(suite.read_text().replace(str(checkpoint), str(worded_model)))
    command = ["run", str(suite), "--data-dir", "data", "--no-report"]
    assert main(command) == 0
    (attempt, *_) = scan_spool(Path("runs/spool"))
    cell = json.loads((attempt.path / "cell.json").read_text())
    (attempt.path / "cell.json").write_text(json.dumps({**cell, "seed": 10**22}))
    digests = json.loads((attempt.path / "DONE").read_text())
    digests["cell.json"] = hashlib.sha256((attempt.path / "cell.json").read_bytes()).hexdigest()
    (attempt.path / "DONE").write_text(json.dumps(digests))
    Path("runs/exitbench.duckdb").unlink()
    capfd.readouterr()
    assert main(command) == 1
    messages = capfd.readouterr().err
    assert "left out of the database: " in messages and "key 'seed' is 1000" in messages
    assert main(["db", "check"]) == 1


def test_every_command_that_opens_a_damaged_database_says_how_to_rebuild_it(
    suite: Path, plan: Callable[[], PlannedCell], capfd: pytest.CaptureFixture[str]
) -> None:
    with AttemptWriter(Path("runs/spool"), plan().item.cell_record(), ENV) as writer:
        writer.finish("failed")
    database = Path("runs/exitbench.duckdb")
    ingest(Path("runs/spool"), database)
    with database.open("r+b") as file:
        file.truncate(database.stat().st_size // 2)
    query = ["sql", "SELECT count(*) AS n FROM failures", "--format", "csv"]
    for command in (query, ["report"], ["compare", "a", "b"], ["run", str(suite), "--data-dir", "data"]):
        assert main(command) == 2, command
        message = capfd.readouterr().err
        assert "is damaged" in message, command
        assert "exitbench db rebuild" in message, command
    assert main(["db", "rebuild"]) == 0
    capfd.readouterr()
    assert main(query) == 0
    assert capfd.readouterr().out.split() == ["n", "1"]
