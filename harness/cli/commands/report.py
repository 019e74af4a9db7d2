"""``exitbench report``: every figure and table from the database; loads no model."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from exitbench.errors import UserError, suggestion
from exitbench.harness.cli.commands.database import existing_database
from exitbench.harness.running.environment import available_cores
from exitbench.harness.service.folders import existing_runs
from exitbench.harness.service.outcome import print_broken
from exitbench.terminal import tell

if TYPE_CHECKING:  # matplotlib is not loaded to print tables
    from exitbench.reports.drawing import DrawnFigure


def report(arguments: Namespace) -> int:
    """Write the report and say where it lies, or print tables as text.

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
    from exitbench.reports.current import current_report

    summary = current_report(
        existing_database(arguments),
        _folder(arguments),
        paper=arguments.paper,
        draft=arguments.draft,
        single_file=arguments.single_file,
        workers=available_cores(),
        progress=True,
    )
    print(f"Report  {summary.index_html}  (figures as PDF: exitbench report --format pdf)")
    if summary.is_draft:
        print("A draft: see `exitbench check`.")
    if summary.empty:
        print(f"Without data: {', '.join(summary.empty)}")
    print_broken(summary)
    return 1 if summary.broken else 0


def _folder(arguments: Namespace) -> Path:
    """A paper's report lies beside the whole one."""
    if arguments.out:
        return Path(arguments.out)
    named: Path | None = arguments.database
    whole = named.parent / "report" if named else existing_runs(arguments.runs).report
    return whole if arguments.paper is None else whole.with_name(f"{whole.name}-{arguments.paper}")


def _draw_figures(arguments: Namespace) -> int:
    """Draw the figures that are asked for, and say where each lies and what it shows."""
    from exitbench.reports import figures
    from exitbench.reports.drawing import KINDS
    from exitbench.reports.material import require_named
    from exitbench.reports.render import write_figures

    require_named(figures, arguments.only, arguments.paper)  # before a database is looked for
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
            first, *others = figure.files
            beside = ", ".join(file.suffix[1:] for file in others)
            print(f"Figure  {first}  ({beside} beside it)\n{figure.caption}\n")
        else:
            tell(f"{figure.source.name} could not be drawn: {figure.error}" if figure.error else _without_data(figure))
    return 1 if any(figure.error for figure in drawn) else 0


def _without_data(figure: "DrawnFigure") -> str:
    return f"{figure.source.name}: {figure.source.empty}"


def _print_tables(arguments: Namespace) -> int:
    from exitbench.reports import tables
    from exitbench.reports.material import read_only, require_named
    from exitbench.reports.tables.columns import fill
    from exitbench.reports.tables.writing import FORMATS
    from exitbench.results.files.whole_file import write_whole_file

    require_named(tables, arguments.only, arguments.paper)  # before a database is looked for
    chosen = {"paper": arguments.paper, "draft": arguments.draft}
    asked = read_only(existing_database(arguments), tables, arguments.only, **chosen)
    filled = [fill(source, frame) for source, frame in asked if frame.rows]
    text = "\n".join(FORMATS[arguments.format](table) for table in filled) or "No table has rows yet.\n"
    if arguments.out is None:
        print(text, end="")
        return 0
    try:
        write_whole_file(Path(arguments.out), text)
    except OSError as error:
        raise UserError(f"The tables cannot be written to {arguments.out}: {error.strerror}. Give a file.") from error
    return 0
