"""A suite that names a model of the hub: planned without a network, run with one, done again without."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exitbench.harness.afterwards.rerun import find_checkpoint, find_stored
from exitbench.harness.cli.main import main
from exitbench.harness.engine.checkpoints.hub import HubName, find
from exitbench.results.database.connection import open_database

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])

NAME = "somebody/tiny-llama"
FIRST = "1" * 40
SUITE = """\
schema = 1
name = "hubs"
seed = 7
[models.tiny]
path = "{path}"
random_weights = true
[tasks.squad]
task = "squad"
source = "builtin"
limit = 2
max_new_tokens = 4
chat_template = true
[[sweep]]
method = "full"
kinds = ["quality"]
"""

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs a command on a suite with a given model; it returns exit code, stdout and stderr."""

    def run(word: str, path: str | Path, *arguments: str) -> tuple[int, str, str]:
        suite = tmp_path / "hubs.toml"
        suite.write_text(SUITE.format(path=path))
        capsys.readouterr()
        code = main([word, str(suite), "--runs", str(tmp_path / "runs"), *arguments])
        return code, *capsys.readouterr()

    return run


def test_plan_downloads_nothing(hub: Any, command: Command, tmp_path: Path) -> None:
    code, stdout, _ = command("plan", f"hub:{NAME}@v1")
    assert code == 0
    assert f"tiny: checkpoint hub:{NAME}@v1, not on this machine (`run --hub` fetches it)" in stdout
    assert "1 cell: 1 new" in stdout
    assert hub.asked == [] and not (tmp_path / "cache").exists()


def test_run_of_an_uncached_model_without_the_hub_option_measures_nothing(
    hub: Any, command: Command, tmp_path: Path
) -> None:
    code, stdout, stderr = command("run", f"hub:{NAME}")
    assert (code, stdout) == (2, "")
    assert stderr.startswith(f"exitbench: hub:{NAME}@main is not on this machine") and "`--hub` fetches it" in stderr
    assert hub.asked == [] and not (tmp_path / "runs" / "spool").exists()


def test_run_without_network_measures_nothing(hub: Any, command: Command, tmp_path: Path) -> None:
    hub.stop()
    code, stdout, stderr = command("run", f"hub:{NAME}", "--hub")
    assert (code, stdout) == (2, "")
    assert stderr.startswith(f"exitbench: hub:{NAME}@main: could not be fetched from {hub.endpoint}")
    assert "Traceback" not in stderr and len(stderr) < 1000
    assert not (tmp_path / "runs" / "spool").exists()


def test_inspect_fetches_with_the_hub_option_and_then_reads_the_cache(
    hub: Any, published: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", f"hub:{NAME}"]) == 2
    assert "`--hub` fetches it" in capsys.readouterr().err and hub.asked == []
    assert main(["inspect", f"hub:{NAME}", "--hub"]) == 0
    assert hub.requested == set(published)
    fetched = capsys.readouterr()
    assert f"of hub:{NAME}@{FIRST}" in fetched.err and "family      llama" in fetched.out
    hub.stop()
    assert main(["inspect", f"hub:{NAME}@{FIRST}"]) == 0
    assert capsys.readouterr().out == fetched.out


def test_invalid_hub_name_is_reported_with_its_line(hub: Any, command: Command, tmp_path: Path) -> None:
    code, _, err = command("plan", "hub:tiny")
    assert code == 2
    assert err.startswith(f"exitbench: {tmp_path / 'hubs.toml'}:5: [models.tiny] path: 'hub:tiny' is not the name")


def test_run_records_the_commit_and_stays_done_for_a_copy_of_the_files(
    hub: Any, published: dict[str, bytes], command: Command, tmp_path: Path
) -> None:
    code, _, stderr = command("run", f"hub:{NAME}", "--hub", "--no-report")
    assert code == 0, stderr
    assert f"of hub:{NAME}@{FIRST}" in stderr
    assert hub.requested == set(published)
    assert not (tmp_path / "RAN").exists()
    with open_database(tmp_path / "runs" / "exitbench.duckdb") as database:
        runs = database.query("SELECT model, model_source, json_exists(generation, 'chat_template_sha256') FROM runs")
        largest = database.query("SELECT max(list_max(output_ids)) AS id FROM answers").to_pylist()[0]["id"]
    assert [tuple(row.values()) for row in runs.to_pylist()] == [("tiny", f"hub:{NAME}@{FIRST}", True)]
    tokens = json.loads(published["tokenizer.json"])
    assert largest >= len(tokens["model"]["vocab"]) + 1  # a row of the embedding that no token has

    hub.stop()
    code, _, stderr = command("run", f"hub:{NAME}", "--no-report")
    assert code == 0 and "Nothing to run: 1 cell is done" in stderr

    located = find(HubName(NAME))
    assert located is not None
    _, stdout, _ = command("plan", shutil.copytree(located.folder, tmp_path / "copied"))
    assert "1 cell: 1 done" in stdout

    stored = find_stored(tmp_path / "runs" / "spool", "tiny/squad/full")
    assert find_checkpoint(stored, tmp_path / "no-models", tmp_path / "no-logs") == located.folder
