"""Writes the whole report: one self-contained page, and every figure and table as files beside it."""

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from exitbench.errors import UserError
from exitbench.reports import figures, tables
from exitbench.reports.drawing import DrawnFigure, data_uri, draw
from exitbench.reports.frame import Frame
from exitbench.reports.sources import Source, discover
from exitbench.reports.tables.columns import Cell, Column
from exitbench.results.database import open_database

_PAGE = Path(__file__).parent / "page"


@dataclass(frozen=True)
class ReportSummary:
    """What was written.

    Attributes:
        index_html: The page; it can be moved or mailed alone.
        files: Every other file, under figures/ and tables/ beside the page.
        figures: Names of the figures drawn.
        empty: Names of the figures and tables that the database has no rows for.
    """

    index_html: Path
    files: tuple[Path, ...]
    figures: tuple[str, ...]
    empty: tuple[str, ...]


@dataclass(frozen=True)
class _FilledTable:
    """A table as the page needs it; `agreed` says what is the same in all rows and so has no column."""

    source: Source
    columns: tuple[Column, ...]
    agreed: str
    rows: tuple[tuple[Cell, ...], ...]
    csv_uri: str
    file: Path


def write_report(database: Path, out: Path) -> ReportSummary:
    """Regenerate the report of `database` in the folder `out`; one database always gives the same bytes.

    Args:
        database: The result database, opened read-only.
        out: Folder for index.html, figures/ and tables/; made where it does not exist, its other files are left alone.

    Returns:
        What was written.

    Raises:
        UserError: If the database cannot be opened or `out` cannot be a folder.
    """
    folders = {name: _folder(out / name) for name in ("figures", "tables")}
    with open_database(database) as connected:
        drawn = [draw(one, Frame.query(connected, one.sql), folders["figures"]) for one in discover(figures)]
        filled = [_fill(one, Frame.query(connected, one.sql), folders["tables"]) for one in discover(tables)]
    index = out / "index.html"
    index.write_text(_page(drawn, filled), "utf-8")
    return ReportSummary(
        index,
        tuple(file for one in drawn for file in one.files) + tuple(table.file for table in filled),
        tuple(one.source.name for one in drawn if one.frame.rows),
        tuple(one.source.name for one in drawn if not one.frame.rows)
        + tuple(table.source.name for table in filled if not table.rows),
    )


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The report cannot be written to {path}: {error.strerror}. Give a folder.") from error
    return path


def _fill(source: Source, frame: Frame, folder: Path) -> _FilledTable:
    file = folder / f"{source.name}.csv"
    file.write_text(frame.csv(), "utf-8")
    rows = [{column: column.cell(row) for column in source.module.COLUMNS} for row in frame.rows]
    agreed = {c: rows[0][c].text for c in source.module.COLUMNS if c.collapses and len({row[c] for row in rows}) == 1}
    columns = tuple(column for column in source.module.COLUMNS if column not in agreed)
    return _FilledTable(
        source,
        columns,
        "; ".join(f"{column.heading}: {text}" for column, text in agreed.items()),
        tuple(tuple(row[column] for column in columns) for row in rows),
        _csv_uri(frame),
        file,
    )


def _page(drawn: list[DrawnFigure], filled: list[_FilledTable]) -> str:
    environment = Environment(
        loader=FileSystemLoader(_PAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["marked"] = _marked
    style, script = ((_PAGE / name).read_text("utf-8") for name in ("page.css", "page.js"))
    first, *others = filled
    return environment.get_template("page.html").render(
        style=Markup(style),  # our own files, not data: the only text that is not escaped
        script=Markup(script),
        style_hash=_integrity(style),
        script_hash=_integrity(script),
        results=first,
        tables=others,
        figures=drawn,
        csv_uri=_csv_uri,
    )


def _csv_uri(frame: Frame) -> str:
    return data_uri("text/csv;charset=utf-8", frame.csv().encode("utf-8"))


def _marked(text: str) -> Markup:
    """Return `text` escaped, with what stands in backticks as code."""
    parts = [Markup("<code>{}</code>" if i % 2 else "{}").format(part) for i, part in enumerate(text.split("`"))]
    return Markup("").join(parts)


def _integrity(text: str) -> str:
    """Return the hash by which the page's policy allows this inline text, and so no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
