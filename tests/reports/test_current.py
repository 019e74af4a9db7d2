"""A report that would be the same is not written again; any change of its inputs writes it again."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from exitbench.reports import ReportSummary, current, render
from exitbench.reports.current import NOTE, current_report

Rerun = Callable[..., tuple[bool, ReportSummary]]


@pytest.fixture
def database(small_database: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(small_database, tmp_path / "exitbench.duckdb"))


@pytest.fixture
def request_report(database: Path, report: ReportSummary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rerun:
    """Return a function that requests the report in a copy of its folder and returns whether it was written, and
    the summary.
    """
    output = Path(shutil.copytree(report.index_html.parent, tmp_path / "report"))
    written: list[Path] = []

    def write(path: Path, folder: Path, **_: object) -> ReportSummary:
        """Replace `write_report`: copy the finished report, which equals a newly written one (test_render)."""
        written.append(path)
        shutil.copytree(report.index_html.parent, folder, dirs_exist_ok=True)
        files = tuple(folder / file.relative_to(report.index_html.parent) for file in report.files)
        return ReportSummary(folder / "index.html", files, report.figures, report.empty, {}, report.is_draft)

    monkeypatch.setattr(render, "write_report", write)

    def rerun(**options: object) -> tuple[bool, ReportSummary]:
        written.clear()
        summary = current_report(database, output, **options)  # type: ignore[arg-type]
        return bool(written), summary

    assert rerun()[0]
    return rerun


def test_unchanged_report_is_not_rewritten(request_report: Rerun, report: ReportSummary) -> None:
    written, summary = request_report()
    assert not written
    assert (summary.figures, summary.empty, summary.is_draft) == (report.figures, report.empty, report.is_draft)
    assert summary.index_html.read_bytes() == report.index_html.read_bytes()
    assert [file.name for file in summary.files] == [file.name for file in report.files]


@pytest.mark.parametrize("options", [{"paper": "mee"}, {"draft": True}, {"single_file": True}])
def test_other_options_rewrite_the_report(request_report: Rerun, options: dict[str, object]) -> None:
    assert request_report(**options)[0]
    assert not request_report(**options)[0]


def test_changed_row_rewrites_the_report(request_report: Rerun, database: Path) -> None:
    times = os.stat(database)
    with duckdb.connect(str(database)) as duck:
        duck.execute("UPDATE metric SET value = value / 2 WHERE metric = 'token_match'")
    os.utime(database, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert request_report()[0]
    assert not request_report()[0]


def test_write_ahead_log_rewrites_the_report(request_report: Rerun, database: Path) -> None:
    database.with_name(f"{database.name}.wal").write_bytes(b"what is not in the file yet")
    assert request_report()[0] and request_report()[0]


def test_modified_or_missing_output_file_rewrites_the_report(request_report: Rerun) -> None:
    folder = request_report()[1].index_html.parent
    for name in ("index.html", "tables/summary.csv", "figures/frontier.csv"):
        (folder / name).write_text("mine")
        assert request_report()[0] and not request_report()[0], name
    next(folder.glob("figures/page/*.svg")).unlink()
    assert request_report()[0]
    (folder / NOTE).write_text("[" * 100_000)
    assert request_report()[0]


def test_changed_code_rewrites_the_report(request_report: Rerun, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {path.name for path in current._sources()}
    assert {"page.html", "summary.sql", "mee.toml", "terminal.py", "views.sql", "documents.js"} <= names
    monkeypatch.setattr(current, "_code", lambda: "other")
    assert request_report()[0]


def test_database_changed_during_writing_rewrites_the_report_next_time(
    request_report: Rerun, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = render.write_report

    def written_into(path: Path, folder: Path, **options: object) -> ReportSummary:
        path.touch()
        return write(path, folder, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(render, "write_report", written_into)
    assert request_report(draft=True)[0] and request_report(draft=True)[0]


def test_report_with_a_broken_figure_is_rewritten(request_report: Rerun, monkeypatch: pytest.MonkeyPatch) -> None:
    write = render.write_report

    def broken(path: Path, folder: Path, **options: object) -> ReportSummary:
        complete_write = write(path, folder, **options)  # type: ignore[arg-type]
        return ReportSummary(
            complete_write.index_html,
            complete_write.files,
            complete_write.figures,
            complete_write.empty,
            {"frontier": "no room"},
            False,
        )

    monkeypatch.setattr(render, "write_report", broken)
    assert request_report(draft=True)[0] and request_report(draft=True)[0]
