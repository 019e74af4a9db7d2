"""Findings that forbid citing the results precede them."""

import shutil
from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.harness.cli import main as cli
from exitbench.reports import material, tables
from exitbench.reports.frame import Frame
from exitbench.reports.material import read_material, read_only
from exitbench.reports.registry import ReportSource
from exitbench.reports.render import write_report


def test_severe_findings_refuse_a_final_report_and_label_the_draft(incomplete_database: Path, tmp_path: Path) -> None:
    output = tmp_path / "report"
    with pytest.raises(UserError, match=r"(?s)findings say not to cite runs of .*--draft"):
        write_report(incomplete_database, output, paper="heads")
    assert not output.exists()
    draft = write_report(incomplete_database, output, paper="heads", draft=True)
    assert draft.is_draft
    assert '<p class="draft"><strong>Draft.</strong>' in draft.index_html.read_text("utf-8")


def test_refused_report_runs_no_figure_or_table_query(
    incomplete_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queried: list[ReportSource] = []
    monkeypatch.setattr(material, "_ask", lambda database, source: queried.append(source) or Frame((), ()))
    with pytest.raises(UserError, match="say not to cite"):
        read_material(incomplete_database, paper="heads", draft=False)
    assert queried == []
    read_material(incomplete_database, paper="heads", draft=True)
    assert {source.name for source in queried} > {"heads_fig1_training", "summary"}


def test_draft_option_without_severe_findings_gives_a_final_report(small_database: Path, tmp_path: Path) -> None:
    final = write_report(small_database, tmp_path / "report", paper="heads", draft=True)
    assert not final.is_draft
    assert "Draft." not in final.index_html.read_text("utf-8")


def test_severe_findings_refuse_printing_a_table_without_draft(incomplete_database: Path) -> None:
    with pytest.raises(UserError, match="say not to cite"):
        read_only(incomplete_database, tables, "summary")
    assert read_only(incomplete_database, tables, "summary", draft=True)


def test_check_lists_the_most_severe_findings_first_and_fails(
    incomplete_database: Path, small_database: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", "--database", str(incomplete_database)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "severity 3: do not cite" and lines[1].startswith("  trace_incomplete: ")
    assert lines[-1].endswith("findings forbid a final report.")
    assert cli.main(["check", "--database", str(small_database), "--severity", "3"]) == 0
    assert capsys.readouterr().out == "Nothing forbids a final report.\n"


def test_report_is_written_next_to_a_named_database(small_database: Path, tmp_path: Path) -> None:
    path = tmp_path / "elsewhere" / "exitbench.duckdb"
    path.parent.mkdir()
    shutil.copy(small_database, path)
    assert cli.main(["report", "--database", str(path), "--paper", "heads"]) == 0
    assert (path.parent / "report-heads" / "index.html").is_file()
