"""``exitbench export``: results to hand on: a snapshot of the database, records that others' tools read, or a lake."""

from argparse import Namespace
from pathlib import Path
from typing import Final

from exitbench.errors import UserError
from exitbench.harness.cli.commands.database import existing_database
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.snapshot import left_out, write_snapshot
from exitbench.results.maintenance.every_eval_ever import write_every_eval_ever
from exitbench.tasks.registry import get_task, task_names
from exitbench.terminal import number_of

LAKE: Final = "lake"
"""The word that stands in the place of a folder where a lake follows."""


def export(arguments: Namespace) -> int:
    """Write a folder, or add to a lake.

    Raises:
        UserError: There is no database, the folder exists or cannot be written, or an option is of another format.
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
                print(f"{left_out(tables.texts_left_out_of)} --with-texts keeps all of it.")
    return 0


def _export_lake(arguments: Namespace) -> int:
    """Add to a lake what it lacks of the database."""
    from exitbench.results.lake.export import export_lake

    if arguments.folder != Path(LAKE):
        raise UserError(f"{arguments.lake}: one folder is written. Only `export {LAKE} DIR|URL` takes another word.")
    if arguments.format != "parquet" or arguments.organization or arguments.relationship:
        raise UserError(f"export {LAKE}: takes --with-texts and no other format's options.")
    with open_database(existing_database(arguments)) as database:
        done = export_lake(database.duck, arguments.lake, _redistributable(arguments))
    print(f"{arguments.lake}: {number_of(done.added, 'attempt')} added, {done.there} there already.")
    if done.texts_left_out_of:
        print(f"{left_out(done.texts_left_out_of)} --with-texts keeps all of it.")
    return 0


def _redistributable(arguments: Namespace) -> list[str] | None:
    """Tasks whose texts are handed on; None: those of all."""
    return None if arguments.with_texts else [name for name in task_names() if get_task(name).redistributable]


def _require_used(arguments: Namespace, records: bool) -> None:
    used_by = {"--organization": True, "--relationship": True, "--with-texts": False}
    for option, by_records in used_by.items():
        if getattr(arguments, option[2:].replace("-", "_")) and by_records != records:
            only = "every-eval-ever" if by_records else "parquet"
            raise UserError(f"{option}: only goes with --format {only}.")
