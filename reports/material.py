"""Reads all that a report is made from in one go, so that the database is free again before anything is drawn."""

from dataclasses import dataclass
from pathlib import Path

from exitbench.reports import figures, tables
from exitbench.reports.claims import Verdict, check_claims
from exitbench.reports.frame import Frame
from exitbench.reports.sources import SECTIONS, Source, discover
from exitbench.results.database import Database, open_database

_ALWAYS = ("findings", "results", "provenance")
_SHARED_VIEW = "probe_by_document"


@dataclass(frozen=True)
class Material:
    """What a report is made from.

    Attributes:
        figures: Every figure with its rows, in the order of the page.
        tables: Every table with its rows, likewise.
        claims: Verdicts on the claims of papers.
    """

    figures: tuple[tuple[Source, Frame], ...]
    tables: tuple[tuple[Source, Frame], ...]
    claims: tuple[Verdict, ...]


def read_material(path: Path, paper: str | None = None) -> Material:
    """Run the query of every figure, table and claim.

    Args:
        path: The result database, opened read-only.
        paper: Only figures, tables and claims of this paper, beside results and where they are from.

    Raises:
        UserError: The database cannot be opened, or DuckDB refuses a query.
    """
    sections = SECTIONS if paper is None else {paper, *_ALWAYS}
    wanted_figures = [source for source in discover(figures) if source.section in sections]
    wanted_tables = [source for source in discover(tables) if source.section in sections]
    with open_database(path) as database:
        _keep_shared_view(database, [*wanted_figures, *wanted_tables])
        return Material(
            tuple((source, Frame.query(database, source.sql)) for source in wanted_figures),
            tuple((source, Frame.query(database, source.sql)) for source in wanted_tables),
            tuple(verdict for verdict in check_claims(database) if paper in (None, verdict.claim.ledger)),
        )


def _keep_shared_view(database: Database, sources: list[Source]) -> None:
    """Compute the view that many queries read once; a temporary table goes before a view of its name."""
    if any(_SHARED_VIEW in source.sql for source in sources):
        database.query(f"CREATE TEMP TABLE {_SHARED_VIEW} AS FROM {_SHARED_VIEW}")
