"""The gallery has every figure with its texts, query and command, and a picture if the figure was drawn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exitbench.harness.planning.suite import load_suite
from exitbench.reports import figures
from exitbench.reports.documentation import drawn_pictures, gallery
from exitbench.reports.drawing import Drawing, note_of, remember_drawn
from exitbench.reports.registry import PAPERS, ReportSource, discover

SOURCES = discover(figures)


def parts(page: str) -> dict[str, str]:
    """Return the page's section on each figure, by the anchor of its heading."""
    _, *sections = re.split(r"^### .* \{ #(\w+) \}$", page, flags=re.MULTILINE)
    return dict(zip(sections[::2], sections[1::2], strict=True))


@pytest.fixture(scope="module")
def without_pictures() -> dict[str, str]:
    return parts(gallery(Path("no such folder")))


def test_gallery_has_every_figure_once_in_report_order(without_pictures: dict[str, str]) -> None:
    assert list(without_pictures) == [source.name for source in SOURCES]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_gallery_shows_command_and_full_query_of_every_figure(
    source: ReportSource, without_pictures: dict[str, str]
) -> None:
    section = without_pictures[source.name]
    assert f"$ exitbench report --only {source.name}\n" in section
    query = section.partition("    ```sql\n")[2].partition("\n    ```")[0]
    assert [line.removeprefix("    ") for line in query.splitlines()] == source.sql.rstrip().splitlines()


def test_a_papers_section_names_the_paper_and_its_suite() -> None:
    page = gallery(Path("no such folder"))
    references = (Path(__file__).parents[2] / "docs" / "references.md").read_text("utf-8")
    for paper in PAPERS:
        assert f"[The paper](references.md#{paper}), and all that its figures need: `exitbench run {paper}`." in page
        assert f"\n### {paper.upper()}\n" in references
        assert load_suite(paper)


def test_gallery_shows_drawn_figures_with_findings_and_marks_missing_pictures(tmp_path: Path) -> None:
    first, other = SOURCES[0], SOURCES[1]
    picture = tmp_path / f"{first.name}.svg"
    for file in (picture, *(tmp_path / f"{first.name}.{kind}" for kind in ("pdf", "png"))):
        file.write_text("a picture")
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / f"{first.name}.{'a' * 12}.svg").write_text("a picture")
    remember_drawn(tmp_path, Drawing(first.name, picture, "Exits at <b> save *most*."), "a" * 64, ())
    assert note_of(tmp_path, first.name).is_file()
    page = parts(gallery(tmp_path))
    assert drawn_pictures(tmp_path) == {first.name: picture}
    assert f"](figures/{first.name}.svg)" in page[first.name]
    assert r"Exits at &lt;b&gt; save \*most\*." in page[first.name]
    assert ".svg)" not in page[other.name]
    assert "*No picture here.*" in page[other.name]
