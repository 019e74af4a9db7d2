"""Print the outcome of a suite's run, and draw its report."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from exitbench.harness.running.environment import available_cores
from exitbench.harness.service.folders import Runs
from exitbench.results.database.access import retry_while_in_use
from exitbench.results.database.connection import open_database
from exitbench.terminal import number_of, print_escaped, without_middle

if TYPE_CHECKING:
    from exitbench.harness.planning.plan import Plan
    from exitbench.harness.service.options import RunOptions
    from exitbench.harness.service.running import SuiteRun
    from exitbench.reports import ReportSummary


EXAMPLE_QUERY = "SELECT model, task_label, method, params, round(value, 1) AS value FROM frontier ORDER BY ALL"
LEFT_OUT_QUERY = """
    SELECT DISTINCT model, task_label, value AS dropped, n, metric FROM metric_values
    WHERE metric IN ('documents_dropped', 'documents_unscorable') AND kind = 'quality' AND suite = ? ORDER BY ALL
"""
_NO_GIST = "No quality was measured: nothing to recommend."
FAILURES_QUERY = "SELECT model, task_label, method, params, kind, status, reason FROM failures"


def print_outcome(run: SuiteRun, options: RunOptions, *, every_setting: bool = False, report: bool = True) -> None:
    """Print one sentence per task, the paths of all outputs, and the reasons of failed cells.

    Args:
        run: The finished run.
        options: Options of the run.
        every_setting: Whether to also print a table of every setting.
        report: Whether to draw the report.
    """
    runs = Runs(options.runs)
    _print_results(runs, run.plan, every_setting=every_setting)
    if report:
        _print_report(runs)
    print(f"Database  {runs.database}")
    print(f'Query     exitbench sql --database {runs.database} "{EXAMPLE_QUERY}"')
    _print_failures(run, runs, options)


def print_broken(summary: ReportSummary) -> None:
    """Print the names of figures that could not be drawn, and the errors."""
    for name, error in summary.broken.items():
        print_escaped(f"{name} could not be drawn: {error}")


def print_left_out(path: Path, suite: str) -> None:
    """Print how many documents the quality runs of a suite left out, and why; nothing for runs with all documents.

    `path` is the database.
    """
    with open_database(path) as database:
        rows = database.query(LEFT_OUT_QUERY, [suite]).to_pylist()
    for row in rows:
        label, dropped = f"{row['model']} on {row['task_label']}", f"{row['dropped']:.0f} of {row['n']} documents"
        why = "prompts are too long" if row["metric"] == "documents_dropped" else "texts cannot be scored"
        print_escaped(f"{label}: {dropped} left out, whose {why}", sys.stdout)


def _print_results(runs: Runs, plan: Plan, *, every_setting: bool) -> None:
    """Print one sentence per task, and a table of every setting if requested."""
    if every_setting:
        from exitbench.reports.tables.text import calibration_text, summary_text

        print(retry_while_in_use(lambda: summary_text(runs.database), print_escaped))
        if calibrations := retry_while_in_use(lambda: calibration_text(runs.database), print_escaped):
            print(calibrations)
    print("\n".join(retry_while_in_use(lambda: _gist(runs.database, plan), print_escaped)) + "\n")
    print_left_out(runs.database, plan.suite.name)


def _gist(path: Path, plan: Plan) -> list[str]:
    from exitbench.reports.tables.text import recommendation_lines

    with open_database(path) as database:
        return recommendation_lines(database, plan.cell_ids) or [_NO_GIST]


def _print_report(runs: Runs) -> None:
    from exitbench.reports.current import current_report

    options: dict[str, Any] = {"draft": True, "workers": available_cores(), "progress": True}
    report = retry_while_in_use(lambda: current_report(runs.database, runs.report, **options), print_escaped)
    print(f"Report    {report.index_html}{' (a draft: see `exitbench check`)' if report.is_draft else ''}")
    print("          each setting next to the others: #frontier; every number: #results")
    print_broken(report)


def _print_failures(run: SuiteRun, runs: Runs, options: RunOptions) -> None:
    if bad := run.failed:
        counts = Counter(run.statuses[cell_id] for cell_id in bad)
        print_escaped("\n" + ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) + ":")
        for line in failure_lines(runs.database, bad):
            print_escaped(f"  {line}")
        print_escaped(f'More: exitbench sql --database {runs.database} "{FAILURES_QUERY}"')
    elif not run.statuses:
        n_done = run.plan.states()["done"]
        verb = "is" if n_done == 1 else "are"
        print_escaped(f"\nNothing to run: {number_of(n_done, 'cell')} {verb} done (--retry {options.retry}).")


_MOST: Final = 8
"""Maximum number of failure reasons that are printed; the database contains all of them."""
_WIDTH: Final = 300
_REASONS: Final = """
    SELECT status, coalesce(reason, 'no reason given') AS reason, count(*) AS cells,
        min(printf('%s/%s/%s/%s', model, task_label, method, kind)) AS example
    FROM failures WHERE list_contains($cell_ids, cell_id)
    GROUP BY ALL ORDER BY cells DESC, status, reason
"""


def failure_lines(database: Path, cell_ids: Sequence[str]) -> list[str]:
    """Return one line per distinct reason of failure, the most frequent first: number of cells, example, reason.

    Args:
        database: The result database, with the cells' attempts.
        cell_ids: Ids of failed cells.

    Raises:
        UserError: The database cannot be opened.
    """
    with open_database(database) as connected:
        rows = connected.query(_REASONS, {"cell_ids": list(cell_ids)}).to_pylist()
    lines = []
    for row in rows[:_MOST]:
        reason = without_middle(" ".join(row["reason"].split()), _WIDTH)
        which = row["example"] if row["cells"] == 1 else f"{number_of(row['cells'], 'cell')}, such as {row['example']}"
        lines.append(f"{which}: {row['status']}: {reason}")
    return [*lines, *([f"and {number_of(len(rows) - _MOST, 'other reason')}"] if len(rows) > _MOST else [])]
