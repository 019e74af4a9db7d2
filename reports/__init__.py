"""Figures, tables and the HTML page, all regenerated from the result database by SQL. Never imports torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ReportSummary:
    """What was written.

    Attributes:
        index_html: The page; its folder can be moved, and as a single file it can be sent alone.
        files: Every other file of the report, under figures/ and tables/ beside the page.
        figures: Names of the figures drawn.
        empty: Names of the figures and tables that the database has no rows for.
        broken: Figures that could not be drawn, and why.
        is_draft: Whether findings say not to cite it, which the page says first.
    """

    index_html: Path
    files: tuple[Path, ...]
    figures: tuple[str, ...]
    empty: tuple[str, ...]
    broken: Mapping[str, str]
    is_draft: bool
