"""Write the whole report: a page, its pictures, and the data of all figures and tables. The page may embed the rest."""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from exitbench.errors import UserError
from exitbench.reports import ReportSummary, figures
from exitbench.reports.drawing import KINDS, PAGE, Drawings, DrawnFigure, plotted
from exitbench.reports.frame import Frame
from exitbench.reports.material import read_material, read_only, require_final, require_named, severe_findings
from exitbench.reports.page import page
from exitbench.reports.plotting.style import ReportFigure
from exitbench.reports.tables.columns import FilledTable, fill
from exitbench.results.database.connection import Database
from exitbench.results.files.atomic import write_whole_file

_ANSWERS: Final = ".answers"
"""Cache folder of packed answers next to the page. The page embeds them and does not need it."""
_PICTURE_NAME: Final = re.compile(r"\w+\.[0-9a-f]{12}\.svg")
_PICTURE: Final = re.compile(rf'src="figures/{PAGE}/({_PICTURE_NAME.pattern})"')


def write_report(
    database: Path,
    output_folder: Path,
    *,
    paper: str | None = None,
    draft: bool = False,
    single_file: bool = False,
    workers: int = 1,
    progress: bool = False,
) -> ReportSummary:
    """Write the report of `database` to the folder `output_folder`; one database always gives the same bytes.

    PDF and other files for papers are written by `write_figures`; those that exist are redrawn with the page.

    Args:
        database: The result database, opened read-only.
        output_folder: Folder for index.html, figures/ and tables/, created if it does not exist. Other files are left
            alone.
        paper: One of `registry.PAPERS`, to write only figures, tables and claims of this paper; None for all. Results
            and provenance are always included.
        draft: Whether to write the report, marked as a draft, despite severe findings about runs.
        single_file: Whether the page embeds its pictures and data, which are also written as files in either case.
        workers: Number of drawing processes.
        progress: Whether to show a progress bar on a terminal.

    Returns:
        Summary of the written files.

    Raises:
        UserError: If the database cannot be opened, its findings forbid a final report, or `output_folder` cannot be
            written.

    Examples:
        >>> summary = write_report(Path("runs/exitbench.duckdb"), Path("runs/report"), draft=True)
        >>> summary.index_html
        PosixPath('runs/report/index.html')
    """
    folder = output_folder / "figures"
    with _naming_folder(output_folder), Drawings(folder, workers) as drawings:
        material = read_material(database, paper, draft, drawings.add, output_folder / _ANSWERS)
        drawn = drawings.finish(progress)
        filled = tuple(fill(source, frame) for source, frame in material.tables)
        tables = _write_tables(filled, output_folder / "tables")
        index = output_folder / "index.html"
        last = _pictures_of(index)
        write_whole_file(index, page(material, drawn, filled, single_file))
        _forget_pictures(folder / PAGE, {*last, *(it.picture.name for it in drawn if it.picture)})
    broken = {figure.source.name: figure.error for figure in drawn if figure.error}
    return ReportSummary(index, _files(drawn) + tables, *_names(drawn, filled), broken, bool(material.severe))


def write_figures(
    database: Path,
    output_folder: Path,
    only: str = "*",
    *,
    kinds: Collection[str] = KINDS,
    paper: str | None = None,
    draft: bool = False,
    workers: int = 1,
    progress: bool = False,
) -> tuple[DrawnFigure, ...]:
    """Draw the figures whose names match the glob `only`, as files for papers of the given `kinds` (pdf, svg, png).

    Files are written to `output_folder`/figures; other files there are left alone. The other arguments and the errors
    are those of `write_report`; it is also an error if no name matches.
    """
    with _naming_folder(output_folder), Drawings(output_folder / "figures", workers, kinds) as drawings:
        for source, frame in read_only(database, figures, only, paper=paper, draft=draft):
            drawings.add(source, frame)
        return drawings.finish(progress)


@contextmanager
def _naming_folder(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"The report cannot be written to {folder}: {error.strerror}. Give another folder.") from error


def _pictures_of(index: Path) -> list[str]:
    """Return the file names of the SVG pictures that an existing page refers to; empty if there is no page.

    `write_report` does not remove them yet, because that page may be open in a browser.
    """
    return _PICTURE.findall(index.read_text("utf-8", "replace")) if index.is_file() else []


def _forget_pictures(folder: Path, keep: Collection[str]) -> None:
    for picture in folder.glob("*.svg"):
        if picture.name not in keep and _PICTURE_NAME.fullmatch(picture.name):
            picture.unlink(missing_ok=True)


def _write_tables(filled: tuple[FilledTable, ...], folder: Path) -> tuple[Path, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    files = tuple(folder / f"{table.source.name}.csv" for table in filled)
    for table, file in zip(filled, files, strict=True):
        write_whole_file(file, table.frame.csv())
    return files


def _files(drawn: tuple[DrawnFigure, ...]) -> tuple[Path, ...]:
    pictures = tuple(figure.picture for figure in drawn if figure.picture)
    return pictures + tuple(file for figure in drawn for file in figure.files)


def _names(drawn: tuple[DrawnFigure, ...], filled: tuple[FilledTable, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the figures drawn, and the names of the figures and tables whose queries return no rows."""
    figures = tuple(figure.source.name for figure in drawn if figure.picture)
    empty = (figure.source.name for figure in drawn if not figure.frame.rows)
    return figures, (*empty, *(table.source.name for table in filled if not table.rows))


def one_figure(database: Database, name: str, *, draft: bool = False) -> ReportFigure:
    """Return one figure, drawn from the rows that its query returns.

    Args:
        database: An open database.
        name: Name of the figure, one of `exitbench list figures`.
        draft: Whether to draw it despite severe findings.

    Raises:
        UserError: No figure has that name, its query returns no rows, or severe findings forbid it.
    """
    sources = require_named(figures, name)
    if len(sources) > 1:
        raise UserError(f"{name!r} names {len(sources)} figures: {', '.join(it.name for it in sources)}. Name one.")
    (source,) = sources
    require_final(severe_findings(database), database.path, draft)
    frame = Frame.query(database, source.sql).bounded()
    if not frame.rows:
        raise UserError(f"Figure {source.name} has no rows here. {source.empty}")
    figure, finding = plotted(source, frame)
    figure.caption = f"{finding} {source.module.CAPTION}".lstrip()
    return figure
