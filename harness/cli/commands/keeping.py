"""``exitbench db``, ``gc``, ``export`` and ``import``: maintain the database, free space, and exchange results."""

import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Final

from exitbench.errors import UserError
from exitbench.harness.cli.commands.common import data_size, existing_database
from exitbench.harness.service.folders import Runs, existing_runs
from exitbench.progress import counting
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.importing import merge
from exitbench.results.ingest.ingest import rebuild
from exitbench.results.ingest.snapshot import omission_note, write_snapshot
from exitbench.results.maintenance.every_eval_ever import write_every_eval_ever
from exitbench.results.maintenance.gc import find_garbage, remove_garbage
from exitbench.results.maintenance.integrity import check, require_whole_spool
from exitbench.tasks.registry import get_task, task_names
from exitbench.terminal import number_of, print_escaped


def db(arguments: Namespace) -> int:
    """Check the database, or rebuild it from the spool (files of all runs); return 1 if there were problems, else 0.

    Raises:
        UserError: The database is in use or cannot be written, or would lose rows.
    """
    runs = existing_runs(arguments.runs)
    path = arguments.database or runs.database
    if arguments.action == "check":
        if arguments.force:
            raise UserError("--force: only goes with rebuild.")
        return _check(runs.spool, path)
    if not arguments.force:
        require_whole_spool(runs.spool, path)
    return _rebuild(runs.spool, path, arguments.force)


def _check(spool: Path, path: Path) -> int:
    with counting("check") as on_attempt:
        report = check(spool, path, on_attempt)
    for problem in report.problems:
        print_escaped(problem)
    problems_text = number_of(len(report.problems), "problem") if report.problems else "no problem"
    spool_text = f"{number_of(report.attempts, 'attempt')}, {number_of(report.files, 'file')}"
    print(f"{path}: {number_of(report.rows, 'row')}; {spool}: {spool_text}; {problems_text}.")
    return 1 if report.problems else 0


def _rebuild(spool: Path, path: Path, forget: bool) -> int:
    with counting("rebuild") as on_attempt:
        report = rebuild(spool, path, on_attempt, forget=forget)
    for message in report.quarantined:
        print_escaped(f"left out of the database: {message}")
    added, n_left_out = number_of(report.added, "attempt"), len(report.quarantined)
    print(f"{path}: {added}, {report.unfinished} unfinished, {n_left_out} left out.")
    return 1 if report.quarantined else 0


def gc(arguments: Namespace) -> int:
    """Print the files and rows that can be deleted and their sizes, and delete them if ``--yes`` is given.

    Raises:
        UserError: The folder of runs does not exist, the database is missing, in use or unreadable, or a file cannot be
            removed.
    """
    runs = existing_runs(arguments.runs)
    path = arguments.database or runs.database
    garbage = find_garbage(runs.spool, path, superseded=arguments.superseded, traces=arguments.spool)
    counts, sizes = Counter[str](), Counter[str]()
    for item in garbage:
        counts[item.kind] += 1
        sizes[item.kind] += item.size_bytes
        print_escaped(f"{data_size(item.size_bytes):>10}  {item.kind:18}  {item.path}", sys.stdout)
    summary = "; ".join(f"{kind}: {counts[kind]}, {data_size(sizes[kind])}" for kind in sorted(counts))
    if not garbage:
        print("Nothing to free.")
    elif not arguments.yes:
        print(f"\nTo free: {summary}. Nothing was removed; the same command with --yes does it.")
    else:
        with counting("freeing") as on_item:
            remove_garbage(garbage, path, on_item)
        print(f"\nFreed: {summary}.")
    return 0


LAKE: Final = "lake"
"""Word given in place of the folder when the next argument is a lake."""


def export(arguments: Namespace) -> int:
    """Write the results to a new folder, as Parquet tables or JSON records; or add them to a lake.

    A lake is a folder or S3 prefix that collects results of many machines.

    Raises:
        UserError: There is no database, the folder exists or cannot be written, or an option belongs to another format.
    """
    if arguments.lake is not None:
        return _export_lake(arguments)
    records = arguments.format == "every-eval-ever"
    _require_used(arguments, records)
    redistributable = _redistributable(arguments)
    with open_database(existing_database(arguments)) as database:
        if records:
            organization, relationship = arguments.organization or "unknown", arguments.relationship or "other"
            count = write_every_eval_ever(database, arguments.folder, organization, relationship)
            print(f"{arguments.folder}: {number_of(count, 'record')}.")
        else:
            tables = write_snapshot(database.engine, arguments.folder, redistributable)
            rows = number_of(sum(tables.rows.values()), "row")
            print(f"{arguments.folder}: {rows} in {number_of(len(tables.rows), 'table')}.")
            if tables.texts_left_out_of:
                print(f"{omission_note(tables.texts_left_out_of)} --with-texts keeps all of it.")
    return 0


def _export_lake(arguments: Namespace) -> int:
    """Add to a lake (results of many machines) those attempts (runs of cells) that it does not contain yet."""
    from exitbench.results.lake.export import export_lake

    if arguments.folder != Path(LAKE):
        raise UserError(f"{arguments.lake}: one folder is written. Only `export {LAKE} DIR|URL` takes another word.")
    if arguments.format != "parquet" or arguments.organization or arguments.relationship:
        raise UserError(f"export {LAKE}: takes --with-texts and no other format's options.")
    with open_database(existing_database(arguments)) as database:
        export_report = export_lake(database.duck, arguments.lake, _redistributable(arguments))
    print(
        f"{arguments.lake}: {number_of(export_report.added, 'attempt')} added, {export_report.existing} there already."
    )
    if export_report.texts_left_out_of:
        print(f"{omission_note(export_report.texts_left_out_of)} --with-texts keeps all of it.")
    return 0


def _redistributable(arguments: Namespace) -> list[str] | None:
    """Return the names of the tasks whose texts are exported; None exports the texts of all tasks."""
    return None if arguments.with_texts else [name for name in task_names() if get_task(name).redistributable]


def _require_used(arguments: Namespace, records: bool) -> None:
    used_by = {"--organization": True, "--relationship": True, "--with-texts": False}
    for option, by_records in used_by.items():
        if getattr(arguments, option[2:].replace("-", "_")) and by_records != records:
            only = "every-eval-ever" if by_records else "parquet"
            raise UserError(f"{option}: only goes with --format {only}.")


_KINDS = {"spool": "a spool", "snapshot": "an export", "benchmarks": "benchmark results"}


def import_results(arguments: Namespace) -> int:
    """Import a spool, snapshot or benchmark file into the spool and the database; return 1 if anything was left out.

    Raises:
        UserError: The source cannot be imported, or contradicts results that exist here.
    """
    runs = Runs(arguments.runs)
    report = merge(arguments.source, runs.spool, arguments.database or runs.database)
    for problem in report.problems:
        print_escaped(f"left out: {problem}")
    added = number_of(report.added, "file" if report.kind == "benchmarks" else "attempt")
    known_text = (
        ""
        if report.kind == "benchmarks"
        else f", {report.existing} {'was' if report.existing == 1 else 'were'} here already"
    )
    scores = (
        f"; {number_of(report.rescored, 'rescore')} of those {_are(report.rescored)} new" if report.rescored else ""
    )
    print_escaped(
        f"{arguments.source}: {_KINDS[report.kind]}; {added} {_are(report.added)} new{known_text}{scores}.", sys.stdout
    )
    return 1 if report.problems else 0


def _are(n: int) -> str:
    return "is" if n == 1 else "are"
