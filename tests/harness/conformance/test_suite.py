"""A suite with methods that break their contract: output of plan, run, check, reports and lists."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from exitbench.harness.cli.main import main
from exitbench.results.database.connection import open_database
from exitbench.tasks import builtin

SUITE = """\
schema = 1
name = "broken"
seed = 1

[defaults]
dtype = "float32"
batch_size = 1
kinds = ["quality"]
device = "cpu"

[models.weighted]
recipe = "builtin-weighted"

[tasks.wmt]
task = "wmt-en-fr"
source = "local"
files = { en = "text.en", fr = "text.fr" }
max_new_tokens = 12

[[sweep]]
method = "full"
kinds = ["quality", "probe"]

[[sweep]]
method = "broken"
grid = { how = ["Honest", "HalvesState", "WrongSql"], threshold = [0.9] }
kinds = ["quality", "replay"]
"""


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def exitbench(snippets: ModuleType, site: Path, tmp_path: Path) -> Command:
    """Return a function that runs a command in a process that finds the installed distribution.

    The function returns exit code and printed texts.
    """
    return partial(snippets.run_installed, tmp_path, site)


def test_broken_method_is_marked_in_plan_run_check_reports_and_database(
    tmp_path: Path, exitbench: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.toml").write_text(SUITE)
    (tmp_path / "data").mkdir()
    for role in ("en", "fr"):
        pairs = builtin.documents("wmt-en-fr", "test", 8)
        (tmp_path / "data" / f"text.{role}").write_text("".join(f"{pair.fields[role]}\n" for pair in pairs))
    (tmp_path / "runs").mkdir()  # where verdicts are kept
    code, planned, stderr = exitbench("plan", "broken.toml", "--data-dir", "data")
    assert code == 0, stderr
    assert "Contracts: weighted/wmt/broken:how=HalvesState,threshold=0.9/quality fails: score() changes" in planned
    assert "Contracts: weighted/wmt/broken:how=WrongSql,threshold=0.9/quality fails: score_sql() =" in planned
    assert "Contracts: broken conforms\n" in planned

    code, printed, stderr = exitbench(
        "run", "broken.toml", "--data-dir", "data", "--threads", "1", "--no-report", "--table"
    )
    assert code == 0, stderr
    assert "so that its runs are not to be cited: weighted/wmt/broken:how=HalvesState" in stderr
    lines = printed.splitlines()
    assert sum(line.startswith("broken how=Honest") for line in lines) == 1
    assert sum(line.startswith("✗ broken how=") for line in lines) == 2
    assert "✗: the method breaks its contract" in printed

    # What reads results needs no plug-in, and so no process that finds it.
    monkeypatch.chdir(tmp_path)

    def here(*arguments: str) -> tuple[int, str, str]:
        return main(arguments), *capsys.readouterr()

    code, checked, _ = here("check")
    assert code == 1
    assert "not_conforming: weighted/wmt/broken and 1 more run: the method breaks its contract: score()" in checked
    assert "4 findings forbid a final report." in checked
    code, _, refused = here("report")
    assert (code, "4 findings say not to cite runs of" in refused) == (2, True)
    _, table, _ = here("report", "--format", "md", "--only", "summary", "--draft")
    assert table.count("| ✗ broken | how=") == 4
    assert "| broken | how=Honest" in table
    assert "✗: the method breaks its contract" in table.partition("|")[0]
    _, _, warned = here("compare", "weighted/wmt/full", "weighted/wmt/broken:how=HalvesState")
    assert "its method breaks its contract" in warned
    here("report", "--paper", "prune", "--draft")
    assert (tmp_path / "runs/report-prune/index.html").read_text().count("✗ broken") >= 4

    with open_database(tmp_path / "runs/exitbench.duckdb") as database:
        conforms = "SELECT params ->> 'how' AS how, conforms, count(*) AS runs FROM frontier GROUP BY ALL ORDER BY ALL"
        assert [tuple(row.values()) for row in database.query(conforms).to_pylist()] == [
            ("HalvesState", False, 2),
            ("Honest", True, 2),
            ("WrongSql", False, 2),
            (None, True, 1),
        ]
        # The wrong SQL is also found by what it does, and the honest one and the merely broken one are not.
        differ = "SELECT DISTINCT params ->> 'how' AS how, severity FROM qc WHERE rule = 'replay_differs'"
        assert database.query(differ).to_pylist() == [{"how": "WrongSql", "severity": 2}]

    cells = [json.loads(path.read_text()) for path in (tmp_path / "runs/spool").rglob("cell.json")]
    (stored, _) = [cell["conformance"] for cell in cells if cell["method"]["params"].get("how") == "HalvesState"]
    assert (stored["verdict"], len(stored["problems"])) == ("fails", 1)


def test_unusable_methods_are_listed_with_the_error_and_do_not_affect_others(
    exitbench: Command, tmp_path: Path
) -> None:
    code, listed, _ = exitbench("list", "methods")
    assert code == 0
    plain = next(line for line in listed.splitlines() if line.startswith("plain "))
    assert (
        "cannot be used: exit_broken:UndeclaredField: TypeError: parameter 'mine' of method 'plain' is a plain field"
        in plain
    )
    assert 'write mine: float = param(3.0, "what it means"), with param from exitbench.methods.base' in plain
    absent = next(line for line in listed.splitlines() if line.startswith("absent "))
    assert "cannot be used: exit_broken:Absent: AttributeError: " in absent
    unmade = next(line for line in listed.splitlines() if line.startswith("unmade "))
    assert "Conformance: fails: LookupError: no such gate (exit_broken.py, line" in unmade
    assert "\nstatic  " in listed and "\nbroken  " in listed
    (tmp_path / "plain.toml").write_text(SUITE.replace('method = "broken"', 'method = "plain"'))
    code, _, stderr = exitbench("plan", "plain.toml")
    assert (code, "method 'plain' cannot be used: " in stderr) == (2, True)
