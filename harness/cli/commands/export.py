"""``exitbench export``: results to hand on, as a snapshot of the database or as records that others' tools read."""

from argparse import Namespace

from exitbench.errors import UserError
from exitbench.harness.cli.commands.folders import existing_database
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.snapshot import left_out, write_snapshot
from exitbench.results.maintenance.every_eval_ever import write_every_eval_ever
from exitbench.tasks.registry import get_task, task_names
from exitbench.terminal import number_of


def export(arguments: Namespace) -> int:
    """Write a folder.

    Raises:
        UserError: There is no database, the folder exists or cannot be written, or an option is of the other format.
    """
    records = arguments.format == "every-eval-ever"
    _require_used(arguments, records)
    redistributable = (
        None if arguments.with_texts else [name for name in task_names() if get_task(name).redistributable]
    )
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


def _require_used(arguments: Namespace, records: bool) -> None:
    used_by = {"--organization": True, "--relationship": True, "--with-texts": False}
    for option, by_records in used_by.items():
        if getattr(arguments, option[2:].replace("-", "_")) and by_records != records:
            only = "every-eval-ever" if by_records else "parquet"
            raise UserError(f"{option}: only goes with --format {only}.")
