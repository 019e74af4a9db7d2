"""`exitbench report`: `--only` draws the chosen figures and writes nothing else; `--watch` writes the page again."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from exitbench.harness.cli.commands import report
from exitbench.harness.cli.main import main

CHOSEN = "mee_fig1_no_change"


@pytest.fixture
def runs(few_database: Path, tmp_path: Path) -> Path:
    shutil.copyfile(few_database, tmp_path / "exitbench.duckdb")
    return tmp_path


def test_only_option_draws_one_figure_and_nothing_else(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = runs / "report" / "index.html"
    page.parent.mkdir()
    page.write_text("as it was")
    assert main(["report", "--runs", str(runs), "--only", CHOSEN, "--draft"]) == 0
    names = {path.name for path in (runs / "report").rglob("*") if path.is_file() and path.parent.name != "page"}
    assert names == {"index.html", f".{CHOSEN}.drawn", *(f"{CHOSEN}.{kind}" for kind in ("svg", "pdf", "png", "csv"))}
    (for_the_page,) = (runs / "report" / "figures" / "page").iterdir()
    assert for_the_page.name.startswith(f"{CHOSEN}.")
    assert page.read_text() == "as it was"
    printed = capsys.readouterr().out
    assert f"{CHOSEN}.pdf" in printed and "Halfway through the blocks" in printed


def test_format_option_draws_figures_in_one_file_format(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--runs", str(runs), "--only", CHOSEN, "--format", "pdf", "--draft"]) == 0
    assert {path.name for path in (runs / "report" / "figures").glob(f"{CHOSEN}.*")} == {
        f"{CHOSEN}.pdf",
        f"{CHOSEN}.csv",
    }
    assert f"{CHOSEN}.pdf  (csv next to it)" in capsys.readouterr().out


def test_watch_rewrites_the_page_only_if_the_database_changes(
    runs: Path, example_database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, seen = runs / "report-heads" / "index.html", []

    def look(seconds: float) -> None:
        seen.append(page.read_bytes())
        if len(seen) == 1:
            shutil.copyfile(example_database, runs / "exitbench.duckdb")
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(report, "time", SimpleNamespace(sleep=look))
    assert main(["report", "--runs", str(runs), "--watch", "--paper", "heads"]) == 130
    assert seen[0] != seen[1] == seen[2]
    assert "index.html is written again when results are added" in capsys.readouterr().err


def test_figure_bytes_do_not_depend_on_matplotlib_settings(runs: Path, tmp_path: Path) -> None:
    """Compare figures made with matplotlib's defaults and with settings from a file and a notebook's environment."""
    (tmp_path / "matplotlibrc").write_text(
        "text.usetex: True\naxes.facecolor: pink\nfont.size: 20\nsavefig.bbox: tight\npath.simplify: False\n"
    )
    asked = ["report", "--runs", str(runs), "--only", CHOSEN, "--draft", "--format", "svg"]
    assert main(asked) == 0
    file = runs / "report" / "figures" / f"{CHOSEN}.svg"
    expected = file.read_bytes()
    shutil.rmtree(runs / "report")
    settings = {"MPLBACKEND": "of-a-notebook", "MATPLOTLIBRC": str(tmp_path / "matplotlibrc")}
    command = [sys.executable, "-m", "exitbench.harness.cli.main", *asked]
    completed = subprocess.run(command, cwd=tmp_path, env={**os.environ, **settings}, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    assert file.read_bytes() == expected


def test_figure_without_data_names_the_command_that_produces_it(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--runs", str(runs), "--only", "heads_fig1_training", "--draft"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "heads_fig1_training: No data yet: run `nox -s paper -- heads`" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "frontir"], "No figure is called 'frontir'. Did you mean 'frontier'?"),
        (["--only", "summary"], "tables are printed by --format md or latex"),
        (["--only", "frontier", "--format", "md"], "'frontier' names no table"),
        (["--only", "sumary", "--format", "latex"], "Did you mean 'summary'?"),
        (["--only", "heads*", "--paper", "mee"], "No figure is called 'heads*'"),
    ],
)
def test_unknown_name_is_refused_with_a_short_message(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--runs", str(tmp_path), *arguments]) == 2
    messages = capsys.readouterr().err
    assert message in messages and messages.count("\n") < 10 and "Traceback" not in messages
