"""Run suites from Python, as `exitbench run` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from exitbench.harness.cells.cell import Kind
from exitbench.harness.planning.retry import Retry
from exitbench.harness.service.folders import Runs
from exitbench.harness.service.options import RunOptions
from exitbench.harness.service.outcome import print_outcome
from exitbench.harness.service.running import run_suite
from exitbench.lm_eval_registration import quiet_lm_eval


@dataclass(frozen=True)
class RunReport:
    """Outcome of `run`: success, and the paths of database and report.

    Attributes:
        ok: Whether every cell that ran succeeded and is in the database.
        database: Path of the result database, for `open_results`.
        report: Path of the report's HTML page; None if no report was requested.
    """

    ok: bool
    database: Path
    report: Path | None


def run(
    suite: str | Path,
    *,
    runs: str | Path = "runs",
    only: str | None = None,
    limit: int | None = None,
    kinds: Sequence[Kind] = (),
    data_dir: str | Path | None = None,
    retry: Retry = "failed",
    threads: int | None = None,
    report: bool = True,
    hub: bool = False,
) -> RunReport:
    """Run the pending cells of a suite, fill the database and draw the report. Print the output of `exitbench run`.

    A cell is one method on one model and one task.

    Args:
        suite: Name of a bundled suite, or path of a TOML file.
        runs: Folder of all run data.
        only: Glob over MODEL/TASK/METHOD/KIND; None runs all cells.
        limit: Maximum number of documents per task; None for all documents.
        kinds: Kinds of cells to run, such as ``quality`` or ``probe``; empty for all kinds.
        data_dir: Root folder of the tasks' local data files.
        retry: Cells to run besides new ones: ``none``, ``stale`` (out of date), ``failed`` (and stale) or ``all``.
        threads: Number of torch threads.
        report: Whether to draw the report.
        hub: Whether models may be downloaded from the hub; otherwise only its local cache is read.

    Raises:
        UserError: Bad input, with the same message as the command.
        KeyboardInterrupt: Interrupted by the user; finished cells are kept.

    Examples:
        >>> import exitbench as eb
        >>> report = eb.run("builtin", only="weighted/squad/static*", kinds=["quality"], limit=2, report=False)
        ... # doctest: +ELLIPSIS
        squad (weighted): full depth, at an allowed loss of 1 %. ...: nothing to recommend.
        ...
        >>> report.ok
        True
    """
    options = RunOptions(
        suite,
        Path(runs),
        only=only,
        limit=limit,
        kinds=tuple(kinds) or None,
        data_dir=None if data_dir is None else Path(data_dir),
        retry=retry,
        threads=threads,
        hub=hub,
    )
    with quiet_lm_eval():
        finished_run = run_suite(options)
        print_outcome(finished_run, options, report=report)
    folders = Runs(options.runs)
    return RunReport(finished_run.ok, folders.database, folders.report / "index.html" if report else None)
