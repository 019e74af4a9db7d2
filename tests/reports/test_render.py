"""The report: one self-contained page, reproducible to the byte, and safe with any names in results."""

import base64
import functools
import gzip
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from exitbench.errors import UserError
from exitbench.reports import ReportSummary, drawing, figures, render, tables
from exitbench.reports.drawing import PAGE, digest, note_of
from exitbench.reports.figures.mee import mee_fig1_no_change
from exitbench.reports.frame import Frame
from exitbench.reports.material import Material, read_material
from exitbench.reports.plotting.style import LETTERS, LIGHT
from exitbench.reports.registry import ReportSource, discover
from exitbench.reports.render import write_figures, write_report

Rows = Callable[[Path, ModuleType, str], Frame]

VOID = {"meta", "link", "img", "input", "source", "br"}


class Page(HTMLParser):
    """Parser that collects a page's tags, attributes and texts; it fails on tags that do not close in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str, attribute: str) -> list[str]:
        return [attrs[attribute] or "" for name, attrs in self.tags if name == tag and attribute in attrs]


def read(summary: ReportSummary) -> str:
    return summary.index_html.read_text("utf-8")


def pictures_of(summary: ReportSummary) -> list[str]:
    """Return the page's pictures in their order."""
    return [
        (summary.index_html.parent / address).read_text("utf-8") for address in Page(read(summary)).all("img", "src")
    ]


def unpacked(text: str) -> str:
    return gzip.decompress(base64.b64decode(text)).decode("utf-8")


FIGURES = discover(figures)
SmallRows = Callable[[ModuleType, str], Frame]


@pytest.fixture
def report_copy(report: ReportSummary, tmp_path: Path) -> Path:
    """Return a copy of the report's folder that a test may write to."""
    return Path(shutil.copytree(report.index_html.parent, tmp_path / "report"))


@dataclass
class ReportInput:
    """Input of a report: what was read from the database. A test may change it."""

    material: Material
    figures: list[tuple[ReportSource, Frame]]

    def read(
        self, database: Path, paper: str | None, draft: bool, on_figure: Callable[[ReportSource, Frame], None], _: Path
    ) -> Material:
        """Replace `read_material`."""
        for figure_input in self.figures:
            on_figure(*figure_input)
        return self.material


@pytest.fixture(scope="module")
def single_file(drawn_report: Any, small_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same report written as one file."""
    written = drawn_report.summary.index_html.parent
    folder = Path(shutil.copytree(written, tmp_path_factory.mktemp("single") / "report"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render, "read_material", ReportInput(drawn_report.material, drawn_report.frames).read)
        return write_report(small_database, folder, single_file=True).index_html


@pytest.fixture(scope="module")
def small_rows(small_database: Path, rows_of: Rows) -> SmallRows:
    """Return a function that returns a figure's or table's rows on the small database."""
    return functools.partial(rows_of, small_database)


def test_every_figure_is_drawn_for_the_page_and_written_with_its_data(
    report: ReportSummary, small_rows: SmallRows
) -> None:
    # The others need cells or logs that the small database has not; each paper's tests make their own.
    names = [source.name for source in discover(figures) if small_rows(figures, source.name).rows]
    assert {"frontier", "exit_histogram", "mee_fig1_no_change", "mee_blog_quality_speed"} <= set(names)
    assert list(report.figures) == names
    assert report.broken == {}
    folder = report.index_html.parent / "figures"
    for name in names:
        assert (folder / f"{name}.csv").read_text("utf-8") == small_rows(figures, name).csv()
    paths = {path for path in report.index_html.parent.rglob("*.*") if not path.name.startswith(".")}
    assert {*report.files, report.index_html} == paths
    assert len(list((folder / PAGE).iterdir())) == len(names)


def test_page_shows_each_query_and_links_its_data(report: ReportSummary, small_rows: SmallRows) -> None:
    page = Page(read(report))
    packed = {attrs["download"]: attrs for tag, attrs in page.tags if tag == "a" and "download" in attrs}
    for package, folder in ((figures, "figures"), (tables, "tables")):
        for source in discover(package):
            rows = small_rows(package, source.name)
            assert (report.index_html.parent / folder / f"{source.name}.csv").read_text("utf-8") == rows.csv()
            if rows.rows:
                assert source.sql in page.texts
                assert packed[f"{source.name}.csv"]["href"] == f"{folder}/{source.name}.csv"
                assert "data-gzip" not in packed[f"{source.name}.csv"]


def test_single_file_report_embeds_pictures_and_data(
    single_file: Path, report: ReportSummary, small_rows: SmallRows
) -> None:
    page = Page(single_file.read_text("utf-8"))
    pictures = [unquote(uri.removeprefix("data:image/svg+xml,")) for uri in page.all("img", "src")]
    assert pictures == pictures_of(report)
    packed = {attrs["download"]: attrs for tag, attrs in page.tags if tag == "a" and "download" in attrs}
    for name in ("frontier", "mee_fig1_no_change"):
        link = packed[f"{name}.csv"]
        assert unpacked(link["data-gzip"] or "") == small_rows(figures, name).csv()
        assert link["href"] == f"figures/{name}.csv", "without its script the page leads to the file"


def test_caption_is_preceded_by_the_finding_of_its_figure(report: ReportSummary, small_rows: SmallRows) -> None:
    texts = [text for text in Page(read(report)).texts if text.strip()]
    for source in (source for source in FIGURES if source.name in report.figures):
        finding = source.module.finding(small_rows(figures, source.name))
        (place,) = (n for n, text in enumerate(texts) if text.startswith(source.module.CAPTION[:60]))
        assert texts[place - 1] == finding and len(finding) < 250, source.name
        assert finding.endswith(".") and not finding.startswith(" "), source.name


def test_the_finding_of_the_frontier_is_the_fastest_recommended_setting(small_rows: SmallRows) -> None:
    rows = small_rows(figures, "frontier")
    timed = [row for row in rows.rows if row["speedup"] is not None and not row["is_full_depth"]]
    fast = {"speedup": 7.25, "speedup_low": 7.0, "speedup_high": 7.5}

    def finding_with(row: Mapping[str, Any], **change: Any) -> str:
        changed = tuple({**source_row, **change} if source_row is row else source_row for source_row in rows.rows)
        return str(
            next(source for source in FIGURES if source.name == "frontier").module.finding(Frame(rows.columns, changed))
        )

    assert f"({timed[0]['model']}) at 7.25× [7.00, 7.50]" in finding_with(timed[0], **fast, is_recommended=True)
    assert "7.25×" not in finding_with(timed[0], **fast, is_recommended=False)


def test_page_makes_no_network_requests(report: ReportSummary) -> None:
    page = Page(read(report))
    targets = page.all("img", "src") + page.all("a", "href")
    assert [target for target in targets if not target.startswith(("#", "figures/", "tables/"))] == []
    assert not page.all("script", "src") and "link" not in {tag for tag, _ in page.tags}
    addresses = re.findall(r"@import|url\((?!#)|https?:[^'\" ]*", "".join([read(report), *pictures_of(report)]))
    assert set(addresses) <= {f"http://www.w3.org/{name}" for name in ("2000/svg", "1999/xlink")}, "namespaces only"


def test_content_security_policy_forbids_network_and_other_scripts(report: ReportSummary, single_file: Path) -> None:
    for path, source in ((report.index_html, "'self'"), (single_file, "data:")):
        (policy,) = (text for text in Page(path.read_text("utf-8")).all("meta", "content") if "default-src" in text)
        assert policy.startswith(f"default-src 'none'; img-src {source};")
        assert "unsafe" not in policy


def test_internal_and_relative_links_have_existing_targets(report: ReportSummary) -> None:
    page = Page(read(report))
    identifiers = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    for target in page.all("a", "href"):
        if target.startswith("#"):
            assert target[1:] in identifiers
        elif not target.startswith("data:"):
            assert (report.index_html.parent / target).exists()


def test_each_picture_follows_the_readers_color_scheme(report: ReportSummary) -> None:
    assert len(pictures_of(report)) == len(report.figures)
    for picture in pictures_of(report):
        assert ElementTree.fromstring(picture).tag.endswith("svg")
        assert "@media(prefers-color-scheme:dark)" in picture
        drawn = re.sub(r"<style>.*?</style>", "", picture)
        assert not re.findall(f"{LIGHT.paper}|{LIGHT.ink}|{LIGHT.grid}|{LIGHT.quiet}", drawn)


def test_text_in_pictures_uses_only_theme_or_cell_contrast_colors(report: ReportSummary) -> None:
    """A theme's inks have the contrast that text needs (see `test_style`); colors of series and lines do not."""
    fills = set()
    for picture in pictures_of(report):
        rules = dict(re.findall(r"\.(s\d+){([^}]*)}", picture))
        texts = re.findall(r"<text [^>]*>", picture)
        assert all("class='" in tag for tag in texts)
        styles = [rules[name] for tag in texts for name in re.findall(r"class='(s\d+)'", tag)]
        assert len(styles) == len(texts) > 0
        fills |= {re.findall(r"fill:([^;}]+)", style)[0] for style in styles}
    assert {"var(--ink)", "var(--quiet)"} <= fills <= {"var(--ink)", "var(--quiet)", *LETTERS}


def test_columns_equal_in_all_rows_are_stated_once(report: ReportSummary) -> None:
    assert "In all rows: Setting: float32, cpu, batch 1" in read(report)
    assert ">Setting<" not in read(report)
    assert ">Kind<" in read(report), "real and simulated rows differ"


def test_failures_and_provenance_are_on_the_page(report: ReportSummary) -> None:
    page = read(report)
    for text in ("OutOfMemoryError: &lt;3 GiB&gt; asked", "0123456789ab", "torch=2.13.0", "Test CPU", "8 GiB"):
        assert text in page


def test_names_are_text_and_never_markup(
    tmp_path: Path,
    example: ModuleType,
    world: Any,
    make_database: Callable[[Any], Path],
    report: ReportSummary,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def with_two_figures(
        database: Path, paper: str | None, draft: bool, on_figure: Callable[[ReportSource, Frame], None], answers: Path
    ) -> Material:
        """Read everything, but draw two figures only: names in pictures are tested in `security/test_reports.py`."""

        def on_few(source: ReportSource, frame: Frame) -> None:
            if source.name in ("frontier", "exit_histogram"):
                on_figure(source, frame)

        return read_material(database, paper, draft, on_few, answers)

    monkeypatch.setattr(render, "read_material", with_two_figures)
    name, long = "<script>alert(1)</script>", "A" * 900
    models = (example.Model(name, "causal", 4, 0),)
    swept = (example.Method("calm-softmax", {"threshold": 0.3, "note": long}),)
    page = Page(read(write_report(make_database(replace(world, models=models, swept=swept)), tmp_path / "report")))
    scripts = [[tag for tag, _ in tree.tags].count("script") for tree in (page, Page(read(report)))]
    assert scripts[0] == scripts[1]
    assert name in page.texts
    assert f"threshold=0.3, note={long}" in page.texts or f"note={long}, threshold=0.3" in page.texts


WRITE = """
import sys
from pathlib import Path
from exitbench.reports.render import write_report
write_report(Path(sys.argv[1]), Path(sys.argv[2]), paper="mee")
sys.exit("torch" in sys.modules)
"""


def test_one_database_gives_the_same_bytes_in_any_process_and_needs_no_torch(
    report: ReportSummary, report_copy: Path, small_database: Path, tmp_path: Path
) -> None:
    """The files of one paper's report equal those in the complete report."""
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", WRITE, str(small_database), str(tmp_path / "b")], check=True, env=environment)
    here = write_report(small_database, report_copy, paper="mee")  # of the pictures that this process drew
    complete, first, second = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*") if ".answers" not in path.parts}
        for folder in (report.index_html.parent, report_copy, tmp_path / "b")
    )
    assert len(here.figures) > 5
    names = {file.relative_to(report_copy) for file in (*here.files, here.index_html)}
    notes = {note_of(Path("figures"), name) for name in here.figures}
    assert set(second) == names | notes
    assert [name for name in second if first[name] != second[name]] == []
    assert [name for name in second if second[name] != complete[name]] == [Path("index.html")]


def test_empty_report_names_commands_and_deletes_old_pictures(tmp_path: Path, empty_database: Path) -> None:
    old = tmp_path / "report" / "figures" / "frontier.svg"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    summary = write_report(empty_database, tmp_path / "report")
    assert summary.figures == ()
    assert set(summary.empty) == {source.name for package in (figures, tables) for source in discover(package)}
    assert not old.exists()
    page = Page(read(summary))
    assert not page.all("img", "src")
    for package in (figures, tables):
        for source in discover(package):
            if source.name not in ("failures", "qc"):  # none of these is no gap
                command = r"`(nox -s (bench|paper -- \w+)|exitbench (run|train|annotate) .+?)`"
                assert re.search(command, source.empty), source.name


def test_broken_figure_is_reported_and_does_not_affect_others(
    report_copy: Path, small_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mee_fig1_no_change, "plot", lambda frame: frame.rows[0]["<no such column>"])
    for name in ("mee_fig1_no_change", "mee_fig2_final_confidence"):  # one before, one after; the others were drawn
        note_of(report_copy / "figures", name).unlink()
    summary = write_report(small_database, report_copy, paper="mee")
    assert summary.broken == {"mee_fig1_no_change": "KeyError: '<no such column>'"}
    assert "mee_fig2_final_confidence" in summary.figures and "frontier" not in summary.figures
    assert "mee_fig1_no_change" not in (*summary.figures, *summary.empty)
    assert "could not be drawn: KeyError: &#39;&lt;no such column&gt;&#39;" in read(summary)


def test_report_path_occupied_by_a_file_is_a_user_error(tmp_path: Path, empty_database: Path) -> None:
    (tmp_path / "report").write_text("mine")
    with pytest.raises(UserError, match=r"cannot be written to .*report"):
        write_report(empty_database, tmp_path / "report", paper="heads")


def test_missing_database_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.duckdb"):
        write_report(tmp_path / "none.duckdb", tmp_path / "report")


# ------------------------------------------------------------------------------------------ what was drawn before


@pytest.fixture
def rendered_input(drawn_report: Any) -> ReportInput:
    """Return the input of the report, which a test may change."""
    return ReportInput(drawn_report.material, list(drawn_report.frames))


@pytest.fixture
def render_again(
    small_database: Path, rendered_input: ReportInput, report_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], tuple[set[str], ReportSummary]]:
    """Return a function that writes the report again into a copy of its folder.

    It returns the names of the figures drawn, and the summary.
    """
    draw, names = drawing.draw, set()

    def noted(name: str, frame: Frame, folder: Path, kinds: Collection[str]) -> drawing.Drawing:
        names.add(name)
        return draw(name, frame, folder, kinds)

    monkeypatch.setattr(drawing, "draw", noted)
    monkeypatch.setattr(render, "read_material", rendered_input.read)

    def write() -> tuple[set[str], ReportSummary]:
        names.clear()
        summary = write_report(small_database, report_copy, draft=True)
        return set(names), summary

    return write


RenderAgain = Callable[[], tuple[set[str], ReportSummary]]


def test_unchanged_figures_are_not_redrawn_and_the_page_is_identical(
    render_again: RenderAgain, report: ReportSummary
) -> None:
    drawn, summary = render_again()
    assert drawn == set() and summary.figures == report.figures
    assert summary.index_html.read_bytes() == report.index_html.read_bytes()
    assert {path.name for path in summary.files} == {path.name for path in report.files}


def test_modified_or_missing_pictures_are_redrawn(render_again: RenderAgain, report_copy: Path) -> None:
    folder = report_copy / "figures"
    next(folder.glob(f"{PAGE}/frontier.*")).unlink()
    next(folder.glob(f"{PAGE}/exit_histogram.*")).write_text("<svg/>")
    note_of(folder, "mee_fig1_no_change").write_text("{")
    assert render_again()[0] == {"frontier", "exit_histogram", "mee_fig1_no_change"}
    assert render_again()[0] == set()


def change_a_number(rendered_input: ReportInput, name: str) -> Frame:
    """Halve a number in the last row of a figure, and return the figure's changed rows."""
    place = next(n for n, (source, _) in enumerate(rendered_input.figures) if source.name == name)
    source, frame = rendered_input.figures[place]
    last = frame.rows[-1]
    column = next(column for column, value in last.items() if isinstance(value, float))
    rendered_input.figures[place] = (
        source,
        Frame(frame.columns, (*frame.rows[:-1], {**last, column: last[column] / 2})),
    )
    return rendered_input.figures[place][1]


def test_changed_row_redraws_only_its_figure(
    render_again: RenderAgain, rendered_input: ReportInput, report_copy: Path
) -> None:
    frame = change_a_number(rendered_input, "mee_fig1_no_change")
    before = {path: path.read_bytes() for path in report_copy.glob(f"figures/{PAGE}/*")}
    assert render_again()[0] == {"mee_fig1_no_change"}
    written = {path: path.read_bytes() for path in report_copy.glob(f"figures/{PAGE}/*")}
    assert {path.name.partition(".")[0] for path, _ in written.items() ^ before.items()} == {"mee_fig1_no_change"}
    assert (report_copy / "figures" / "mee_fig1_no_change.csv").read_text("utf-8") == frame.csv()


def test_requested_pdf_files_are_kept_up_to_date_with_the_page(
    render_again: RenderAgain, rendered_input: ReportInput, small_database: Path, report_copy: Path
) -> None:
    folder, name = report_copy / "figures", "mee_fig1_no_change"
    assert not any(folder.glob("*.pdf"))
    (figure,) = write_figures(small_database, report_copy, name, kinds=("pdf",))
    pdf = folder / f"{name}.pdf"
    assert figure.files == (pdf, folder / f"{name}.csv") and pdf.read_bytes().startswith(b"%PDF")
    assert render_again()[0] == set(), "the page's picture is as it was"
    (figure,) = write_figures(small_database, report_copy, name)
    begins = {file.suffix: file.read_bytes()[:4] for file in figure.files}
    assert begins[".png"] == b"\x89PNG" and begins[".svg"].startswith(b"<?xm") and begins[".pdf"] == b"%PDF"
    before = pdf.read_bytes()
    change_a_number(rendered_input, name)
    drawn, summary = render_again()
    assert drawn == {name} and pdf in summary.files and pdf.read_bytes() != before
    pdf.write_bytes(b"of other rows")
    assert render_again()[0] == {name} and pdf.read_bytes().startswith(b"%PDF")
    pdf.unlink()
    assert render_again()[0] == set() and not pdf.exists(), "what somebody took away is not missed"


def test_figure_digest_changes_with_name_rows_columns_and_code(
    small_rows: SmallRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = small_rows(figures, "frontier")
    fewer, renamed = Frame(frame.columns, frame.rows[:-1]), Frame((*frame.columns, "more"), frame.rows)
    digests = {drawing.digest("frontier", rows_drawn) for rows_drawn in (frame, fewer, renamed)} | {
        drawing.digest("other", frame)
    }
    assert len(digests) == 4 and drawing.digest("frontier", frame) in digests
    monkeypatch.setattr(drawing, "_code", lambda: "changed")
    assert drawing.digest("frontier", frame) not in digests


def test_pictures_of_the_previous_page_survive_one_rewrite(
    render_again: RenderAgain, report_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pictures() -> set[Path]:
        html = (report_copy / "index.html").read_text("utf-8")
        return {report_copy / address for address in Page(html).all("img", "src")}

    pages = [pictures()]
    for version in ("b" * 64, "c" * 64):
        of_rows = lambda name, frame, version=version: version if name == "frontier" else digest(name, frame)  # noqa: E731
        monkeypatch.setattr(drawing, "digest", of_rows)
        assert render_again()[0] == {"frontier"}
        pages.append(pictures())
    (first,), (second,), (third,) = (page - pages[n - 1] for n, page in enumerate(pages))
    assert second.exists() and third.exists(), "the page before may still be read"
    assert not first.exists()
    other = report_copy / "figures" / PAGE / "mine.svg"
    other.write_text("mine")
    render_again()
    assert other.exists()


def test_page_with_many_results_shows_the_first_of_every_model_and_task() -> None:
    from exitbench.reports.page import _shown_results

    names = {"task": "squad", "setting": "cpu", "metric": "f1", "execution": "real"}
    rows = [{"model": f"m{number // 20}", **names} for number in range(300 * 20)]
    shown = _shown_results(rows)
    assert shown == sorted(shown) and len(shown) <= 700
    assert {rows[place]["model"] for place in shown} == {row["model"] for row in rows}
    assert {place % 20 for place in shown} == {0, 1}, "the first two of each"
    assert _shown_results(rows[:700]) == list(range(700)), "all, if there are no more"
