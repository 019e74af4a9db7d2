"""Instructions in the documentation work as written."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from snippets import Block, Python

from exitbench.errors import UserError
from exitbench.harness.cli import main as cli
from exitbench.harness.conformance import examine
from exitbench.harness.planning.plan import make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.reports import documentation
from exitbench.reports.setting_tables import open_settings, with_settings
from exitbench.results.database.connection import Database, open_database
from exitbench.results.database.schema_doc import described_views
from exitbench.tasks.builtin.words import Kind

ROOT = Path(__file__).parents[2]


ADD_A_METHOD = ROOT / "docs" / "guide" / "add-a-method.md"
DISTRIBUTION = ("sharp_exits/sharp_max_prob.py", "pyproject.toml")


def guide_file(title: str) -> str:
    """Return a file from the guide on adding methods: the code block whose title is this path."""
    fence = rf'```\w+ title="{re.escape(title)}"\n(.*?)```'
    (block,) = re.findall(fence, ADD_A_METHOD.read_text("utf-8"), flags=re.DOTALL)
    return str(block)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder into which pip installs the guide's example distribution, built from its two files."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    (source / "sharp_exits").mkdir()
    (source / "sharp_exits" / "__init__.py").touch()
    for title in DISTRIBUTION:
        (source / title).write_text(guide_file(title), "utf-8")
    alone = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet")
    command = [sys.executable, "-m", "pip", "install", *alone, "--target", site, source]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No module named pip" in process.stderr:
        pytest.skip("pip is not installed here")
    assert process.returncode == 0, process.stderr
    return site


def test_guides_example_distribution_has_a_conforming_method(installed: Path, tmp_path: Path) -> None:
    command = f"""
import os, sys
os.environ["PYTHONPATH"] = {str(installed)!r}  # of the process with the contract tests
sys.path.insert(0, {str(installed)!r})
from exitbench.harness.cli.main import main
assert main(["list", "methods", "sharp-max-prob"]) == 0
"""
    python = Python(tmp_path)
    try:
        lines = python.output_of(Block("list methods", "python", None, command)).splitlines()
    finally:
        python.end()
    assert lines[:2] == ["sharp-max-prob", "  Exit when the most probable token is probable enough."]
    assert "  conformance: conforms" in lines[:5]
    assert "  sharpness = 2.0  factor of the logits [0.1 .. 10.0]" in lines


def test_guides_example_method_inherits_what_its_base_classes_declare(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(installed))
    cls = importlib.import_module("sharp_exits.sharp_max_prob").SharpMaxProb
    method = cls.from_params({"threshold": 0.5, "min_exit": 2, "sharpness": 1.0})
    assert method.parts(6).blocks == {2, 3, 4, 5}
    assert (method.parts(6).score_sql(6), cls().parts(6).score_sql(6)) == ("p1[l]", None)
    assert examine(method).conforms
    with pytest.raises(UserError, match=r"allowed: between 0\.1 and 10\.0"):
        cls.from_params({"sharpness": 11})


def readme_blocks(language: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    return [block for kind, block in blocks if kind == language]


def readme_commands() -> list[str]:
    return [line for block in readme_blocks("") for line in block.splitlines() if line.strip()]


def test_readme_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = readme_blocks("python")
    exec(example, {})
    assert "of 8 blocks on average" in capsys.readouterr().out


def test_readme_queries_return_rows(example_database: Path) -> None:
    queries = [command for command in readme_commands() if command.startswith("exitbench sql")]
    assert queries
    for command in queries:
        query = shlex.split(command)[2]
        with open_database(example_database) as database:
            assert database.query(query).num_rows > 0, query


def test_other_readme_commands_can_be_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    for command in readme_commands():
        words = shlex.split(command)
        if words[0] == "exitbench":
            assert cli.parse_command_line(words[1:])
        else:
            assert command.startswith("python3 -m pip install nox && python3 -m nox -s ")
            assert f"def {words[-1]}(session" in (ROOT / "noxfile.py").read_text()


def test_ci_runs_the_readme_test_command_with_exhaustive_tests_lint_and_types() -> None:
    (command,) = [line for line in readme_commands() if line.endswith("nox -s tests")]
    run = (ROOT / ".ci" / "run").read_text()
    assert f'{command} lint types -- -m ""' in run


def test_every_token_kind_is_defined_in_the_sql_view_and_in_measuring_md() -> None:
    kinds = {*get_args(Kind), "end"}
    (view,) = (view.sql for view in described_views() if view.name == "token_kinds")
    assert kinds == set(re.findall(r"\('(\w+)', '", view))
    section = (ROOT / "docs" / "measuring.md").read_text().partition("## Kinds of word\n")[2].partition("\n## ")[0]
    assert kinds <= {kind for names in re.findall(r"^\| (.*?) \|", section, re.MULTILINE) for kind in names.split(", ")}


def test_readme_table_and_picture_are_up_to_date_with_their_data() -> None:
    table = documentation.readme_table(ROOT)
    assert f"<!-- results -->\n{table}\n<!-- /results -->" in (ROOT / "README.md").read_text("utf-8"), "nox -s readme"
    assert (ROOT / documentation.README_PICTURE).read_bytes() == documentation.readme_picture(ROOT), "nox -s readme"


@pytest.fixture(scope="module")
def settings() -> Iterator[Database]:
    with open_settings() as database:
        yield database


def test_tables_of_real_models_in_the_documentation_are_those_of_the_snapshot(settings: Database) -> None:
    pages = {page: page.read_text("utf-8") for page in documentation.pages(ROOT)}
    changed = [page.name for page, text in pages.items() if with_settings(settings, text) != text]
    assert not changed, "python -m exitbench.reports.documentation"


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("settings: model = 'nothing'", "no setting of the snapshot meets the condition \"model = 'nothing'\""),
        ("settings by model: method = 'full'", "several rows of \"method = 'full'\" are full for model "),
        ("settings: colour = 'red'", "colour"),
        ("settings by colour: model = 'joint'", "misspelled, or not closed"),
    ],
)
def test_a_table_of_settings_is_refused_unless_its_condition_selects_rows(
    table: str, problem: str, settings: Database
) -> None:
    with pytest.raises(UserError, match=problem):
        with_settings(settings, f"<!-- {table} -->\n<!-- /settings -->")


def test_readme_results_belong_to_cells_of_the_current_builtin_suite(tmp_path: Path) -> None:
    rows = json.loads((ROOT / documentation.README_DATA).read_text())["highlights"]
    today = {
        planned.item.cell.cell_id
        for label in {f"{row['model']}/{row['task']}/*" for row in rows}
        for group in make_plan(load_suite("builtin"), tmp_path / "spool", tmp_path / "models", None, only=label).groups
        for planned in group.cells
    }
    cell_ids = {row["cell_id"] for row in rows}
    assert cell_ids and cell_ids <= today, "run `nox -s bench`, then `nox -s readme`"
