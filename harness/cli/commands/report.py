"""``exitbench report``, ``check`` and ``claims``: figures and tables, findings, and claims of papers."""

import shutil
import time
from argparse import Namespace
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Final, NoReturn

from exitbench.errors import UserError, suggestion
from exitbench.harness.cli.commands.common import existing_database
from exitbench.harness.cli.commands.rows import FORMATS
from exitbench.harness.running.environment import available_cores
from exitbench.harness.service.folders import existing_runs
from exitbench.harness.service.outcome import print_broken
from exitbench.reports.claims import (
    COLUMNS,
    VERDICTS,
    Verdict,
    as_row,
    check_claims,
    counted,
    full_entry,
    markdown,
    table,
)
from exitbench.reports.claims.claim import KINDS, LEDGERS, Claim, read_claims
from exitbench.results.database.access import DatabaseInUse
from exitbench.results.database.connection import open_database
from exitbench.terminal import number_of, print_escaped, visible

if TYPE_CHECKING:
    from exitbench.reports import ReportSummary

LOOK_S: Final = 20.0
"""Seconds between two looks of `report --watch` at the database."""


def report(arguments: Namespace) -> int:
    """Write the report and print its path; or draw single figures; or print or write tables as text.

    Returns:
        1 if a figure could not be drawn, else 0.

    Raises:
        UserError: The database cannot be opened, its findings forbid a final report, or the folder cannot be written.
    """
    from exitbench.reports.registry import PAPERS

    if arguments.paper not in (None, *PAPERS):
        raise UserError(f"No paper is called {arguments.paper!r}.{suggestion(arguments.paper, PAPERS)}")
    if arguments.format in ("md", "latex"):
        return _print_tables(arguments)
    if arguments.format != "html" or arguments.only != "*":
        return _draw_figures(arguments)
    if arguments.watch:
        _watch(arguments)
    summary = _page(arguments, arguments.draft, available_cores())
    print(f"Report  {summary.index_html}  (figures as PDF: exitbench report --format pdf)")
    if summary.is_draft:
        print("A draft: see `exitbench check`.")
    if summary.empty:
        print(f"Without data: {', '.join(summary.empty)}")
    print_broken(summary)
    return 1 if summary.broken else 0


def _page(arguments: Namespace, draft: bool, workers: int) -> "ReportSummary":
    from exitbench.reports.current import current_report

    return current_report(
        existing_database(arguments),
        _folder(arguments),
        paper=arguments.paper,
        draft=draft,
        single_file=arguments.single_file,
        workers=workers,
        progress=True,
    )


def _watch(arguments: Namespace) -> NoReturn:
    """Write the report page whenever the database has changed, until the user interrupts.

    Figures are drawn in one process.
    """
    print_escaped(
        f"{_folder(arguments) / 'index.html'} is written again when results are added: reload it. Ctrl-C ends this."
    )
    while True:
        with suppress(DatabaseInUse):
            _page(arguments, draft=True, workers=1)
        time.sleep(LOOK_S)


def _folder(arguments: Namespace) -> Path:
    """Return the folder to write the report to; the report of a single paper is next to the complete report."""
    if arguments.out:
        return Path(arguments.out)
    named: Path | None = arguments.database
    if arguments.snapshot is not None:
        full_report = Path(f"report-{Path(arguments.snapshot).name}")
    elif named is not None:
        full_report = named.parent / "report"
    else:
        full_report = existing_runs(arguments.runs).report
    return full_report if arguments.paper is None else full_report.with_name(f"{full_report.name}-{arguments.paper}")


def _draw_figures(arguments: Namespace) -> int:
    """Draw the requested figures, and print the path and caption of each; return 1 if any could not be drawn."""
    from exitbench.reports import figures
    from exitbench.reports.drawing import KINDS
    from exitbench.reports.material import require_named
    from exitbench.reports.render import write_figures

    require_named(figures, arguments.only, arguments.paper)  # a wrong name is reported even without a database
    drawn = write_figures(
        existing_database(arguments),
        _folder(arguments),
        arguments.only,
        kinds=KINDS if arguments.format == "html" else (arguments.format,),
        paper=arguments.paper,
        draft=arguments.draft,
        workers=available_cores(),
        progress=True,
    )
    for figure in drawn:
        if figure.picture:
            first, *other_files = figure.files
            other_formats = ", ".join(file.suffix[1:] for file in other_files)
            print(f"Figure  {first}  ({other_formats} next to it)\n{figure.caption}\n")
        else:
            reason = f" could not be drawn: {figure.error}" if figure.error else f": {figure.source.empty}"
            print_escaped(figure.source.name + reason)
    return 1 if any(figure.error for figure in drawn) else 0


def _print_tables(arguments: Namespace) -> int:
    from exitbench.reports import tables
    from exitbench.reports.material import read_only, require_named
    from exitbench.reports.tables.columns import fill
    from exitbench.reports.tables.writing import FORMATS
    from exitbench.results.files.atomic import write_whole_file

    require_named(tables, arguments.only, arguments.paper)  # a wrong name is reported even without a database
    chosen = {"paper": arguments.paper, "draft": arguments.draft}
    frames = read_only(existing_database(arguments), tables, arguments.only, **chosen)
    filled = [fill(source, frame) for source, frame in frames if frame.rows]
    text = "\n".join(FORMATS[arguments.format](table) for table in filled) or "No table has rows yet.\n"
    if arguments.out is None:
        print(text, end="")
        return 0
    try:
        write_whole_file(Path(arguments.out), text)
    except OSError as error:
        raise UserError(f"The tables cannot be written to {arguments.out}: {error.strerror}. Give a file.") from error
    return 0


_MEANING = {3: "do not cite", 2: "look before you cite", 1: "remark"}
_WIDTH = 118
_QUERY = """
    SELECT severity, rule, message, count(*) AS runs, min(printf('%s/%s/%s', model, task_label, method)) AS example
    FROM qc WHERE severity >= ? GROUP BY ALL ORDER BY severity DESC, rule, runs DESC, message, example
"""


def check(arguments: Namespace) -> int:
    """Print every finding about the results, the most severe first; return 1 if any forbids a final report.

    Raises:
        UserError: The database cannot be opened.
    """
    from exitbench.reports.material import DO_NOT_CITE

    with open_database(existing_database(arguments)) as database:
        rows = database.query(_QUERY, [arguments.severity]).to_pylist()
    for severity, findings in groupby(rows, lambda row: int(row["severity"])):
        print(f"severity {severity}: {_MEANING[severity]}")
        for row in findings:
            more = f" and {number_of(row['runs'] - 1, 'more run')}" if row["runs"] > 1 else ""
            text = visible(f"{row['rule']}: {row['example']}{more}: {row['message']}")
            print(fill(text, _WIDTH, initial_indent="  ", subsequent_indent="    "))
    severe = sum(row["runs"] for row in rows if row["severity"] >= DO_NOT_CITE)
    conclusion = f"{number_of(severe, 'finding')} forbid{'s' if severe == 1 else ''} a final report."
    print(conclusion if severe else "Nothing forbids a final report.")
    return 1 if severe else 0


_PIPE: Final = (120, 24)
"""Columns and lines that are assumed if the output is not a terminal."""


def claims(arguments: Namespace) -> int:
    """Print the verdict on every selected claim of the papers, or everything about one claim.

    Raises:
        UserError: The claim, paper, kind or verdict does not exist, or a query fails.
    """
    chosen = _chosen(arguments)
    wanted = _wanted(arguments.verdict)
    with open_database(existing_database(arguments)) as database:
        verdicts = check_claims(database, chosen)
    _print([it for it in verdicts if wanted in (None, it.verdict)], arguments)
    return 0


def _chosen(arguments: Namespace) -> tuple[Claim, ...]:
    all_claims = read_claims()
    if arguments.claim is not None:
        if not {arguments.paper, arguments.kind, arguments.verdict} == {None}:
            raise UserError("--paper, --kind and --verdict choose among all; leave them out, or leave out the claim.")
        by_id = {claim.claim_id: claim for claim in all_claims}
        if arguments.claim not in by_id:
            raise UserError(f"There is no claim {arguments.claim!r}.{suggestion(arguments.claim, by_id)}")
        return (by_id[arguments.claim],)
    paper, kind = arguments.paper and arguments.paper.lower(), arguments.kind
    if paper not in (None, *LEDGERS):
        raise UserError(f"--paper {arguments.paper}: there is no such paper.{suggestion(paper, LEDGERS)}")
    if kind not in (None, *KINDS):
        raise UserError(f"--kind {kind}: there is no such kind.{suggestion(kind, KINDS)}")
    return tuple(claim for claim in all_claims if paper in (None, claim.ledger) and kind in (None, claim.kind))


def _wanted(verdict: str | None) -> str | None:
    if verdict is None:
        return None
    words = verdict.replace("-", " ")
    if words not in VERDICTS:
        raise UserError(f"--verdict {verdict}: there is no such verdict.{suggestion(words, VERDICTS)}")
    return words


def _print(verdicts: list[Verdict], arguments: Namespace) -> None:
    width = shutil.get_terminal_size(_PIPE).columns
    if arguments.format in ("csv", "json"):
        FORMATS[arguments.format](COLUMNS, [as_row(verdict) for verdict in verdicts])
    elif arguments.format == "md":
        print(markdown(verdicts))
    elif arguments.claim is not None:
        print(full_entry(verdicts[0], width))
    else:
        print(f"{table(verdicts, width)}\n\n{counted(verdicts)}")
