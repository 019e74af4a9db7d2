"""Figures, tables and the HTML page, all regenerated from the result database by SQL. Never imports torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ReportSummary:
    """Result of writing a report: its files and what is missing from it.

    Attributes:
        index_html: Path of the page. Its folder can be moved; a page written as a single file can be sent alone.
        files: Every other file of the report, under figures/ and tables/ next to the page.
        figures: Names of the figures drawn.
        empty: Names of the figures and tables that the database has no rows for.
        broken: Figures that could not be drawn, each with the reason.
        is_draft: Whether findings forbid citing the report; the page says so at its top.
    """

    index_html: Path
    files: tuple[Path, ...]
    figures: tuple[str, ...]
    empty: tuple[str, ...]
    broken: Mapping[str, str]
    is_draft: bool
