"""Read all inputs of a report from the database in one pass; drawing can start with the first figure's rows."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Final

from exitbench.errors import UserError, suggestion
from exitbench.reports import figures, tables
from exitbench.reports.answers.documents import documents_payload
from exitbench.reports.claims import Verdict, check_claims
from exitbench.reports.claims.claim import read_claims
from exitbench.reports.frame import NAMING_VIEWS, Frame, Row, computed_once
from exitbench.reports.front import Front, read_front
from exitbench.reports.registry import SECTIONS, ReportSource, discover
from exitbench.results.database.connection import Database, open_database
from exitbench.terminal import visible

DO_NOT_CITE: Final = 3
"""Severity of findings that forbid a final report."""

_SEVERE: Final = """
    SELECT printf('%s/%s/%s: %s', model, task_label, method, message) AS finding
    FROM qc WHERE severity >= ? ORDER BY finding, attempt_id
"""


def severe_findings(database: Database) -> tuple[str, ...]:
    """Return, as sentences, the problems in the database because of which a report can only be a draft."""
    return tuple(visible(finding) for finding in database.query(_SEVERE, [DO_NOT_CITE])["finding"].to_pylist())


def require_final(severe: tuple[str, ...], path: Path, draft: bool) -> None:
    """Check that a report may be written: there are no severe findings, or a draft was requested.

    Raises:
        UserError: There are severe findings, and no draft was requested.
    """
    if severe and not draft:
        raise UserError(
            f"{len(severe)} findings say not to cite runs of {path}, for example: {severe[0]}\n"
            "See `exitbench check`. Repeat the runs that it names, or write a draft with --draft."
        )


_ALWAYS = ("findings", "results", "provenance")
# Several queries read each of these; all but the last have one row per run, metric, finding or published number.
_FINDINGS = (*NAMING_VIEWS, "qc")
_SHARED_VIEWS = (
    *_FINDINGS,
    *("trainings", "metric_values", "published", "frontier", "paired", "pareto", "plain_probes", "probe_by_document"),
)


@dataclass(frozen=True)
class Material:
    """Inputs of a report, as read from the database.

    Attributes:
        paper: The paper that the report is limited to; None for everything.
        tables: Every table with its rows, in the order of the page.
        claims: Verdicts on the claims of papers.
        severe: Findings that forbid a final report, as sentences.
        front: Rows for the first screen that no table has.
        documents: Payload of the page's document browser (`reports.answers.documents`); None without answers.
    """

    paper: str | None
    tables: tuple[tuple[ReportSource, Frame], ...]
    claims: tuple[Verdict, ...]
    severe: tuple[str, ...]
    front: Front
    documents: bytes | None

    def rows(self, table: str) -> tuple[Row, ...]:
        """Return the rows of the table with this name; empty if the report has no such table."""
        return next((frame.rows for source, frame in self.tables if source.name == table), ())


def read_material(
    path: Path,
    paper: str | None = None,
    draft: bool = True,
    on_figure: Callable[[ReportSource, Frame], None] = lambda source, frame: None,
    answers: Path | None = None,
) -> Material:
    """Run the query of every figure, table and claim; figures are passed to `on_figure`, all else is returned.

    Args:
        path: The result database, opened read-only.
        paper: Paper to limit figures, tables and claims to; results and provenance are always included.
        draft: Whether to run the queries despite severe findings.
        on_figure: Called with every figure and its rows, in the order of the page, before the next is read.
        answers: Cache folder of packed answers; None to read and pack all of them.

    Raises:
        UserError: The database cannot be opened, DuckDB refuses a query, or severe findings forbid a report that is not
            a draft.
    """
    with open_database(path) as database, computed_once(database, _FINDINGS):
        severe = severe_findings(database)
        require_final(severe, path, draft)
        wanted = {package: _wanted(package, paper) for package in (figures, tables)}
        with computed_once(database, _SHARED_VIEWS):
            for source in wanted[figures]:
                on_figure(source, _ask(database, source))
            return Material(
                paper,
                _query(database, wanted[tables]),
                check_claims(database, [claim for claim in read_claims() if paper in (None, claim.ledger)]),
                severe,
                read_front(database),
                documents_payload(database, kept_in=answers) if paper is None else None,
            )


def read_only(
    path: Path, package: ModuleType, only: str, *, paper: str | None = None, draft: bool = False
) -> tuple[tuple[ReportSource, Frame], ...]:
    """Run the queries of only those figures, or tables, whose names match a glob; return each with its rows.

    Args:
        path: The result database, opened read-only.
        package: `figures` or `tables`.
        only: Glob on their names.
        paper: Paper to limit figures or tables to; None for all.
        draft: Whether to run the queries despite severe findings.

    Raises:
        UserError: The database cannot be opened, DuckDB refuses a query, severe findings forbid all but a draft, or no
            name matches.
    """
    wanted = require_named(package, only, paper)
    with open_database(path) as database:
        require_final(severe_findings(database), path, draft)
        with computed_once(
            database, [view for view in _SHARED_VIEWS if sum(view in source.sql for source in wanted) > 1]
        ):
            return _query(database, wanted)


def require_named(package: ModuleType, only: str, paper: str | None = None) -> list[ReportSource]:
    """Return the figures or tables whose name matches a glob.

    Raises:
        UserError: No name matches.
    """
    candidates = _wanted(package, paper)
    if wanted := [source for source in candidates if fnmatchcase(source.name, only)]:
        return wanted
    kind, other = ("figure", tables) if package is figures else ("table", figures)
    if any(fnmatchcase(source.name, only) for source in _wanted(other, paper)):
        raise UserError(f"{only!r} names no {kind}: tables are printed by --format md or latex, figures by html.")
    raise UserError(f"No {kind} is called {only!r}.{suggestion(only, [source.name for source in candidates])}")


def _wanted(package: ModuleType, paper: str | None) -> list[ReportSource]:
    sections = SECTIONS if paper is None else {paper, *_ALWAYS}
    return [source for source in discover(package) if source.section in sections]


def _query(database: Database, sources: Iterable[ReportSource]) -> tuple[tuple[ReportSource, Frame], ...]:
    return tuple((source, _ask(database, source)) for source in sources)


def _ask(database: Database, source: ReportSource) -> Frame:
    try:
        return Frame.query(database, source.sql).bounded()
    except UserError as error:
        raise UserError(f"{source.name}.sql: {error}") from error
