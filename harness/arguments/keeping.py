"""Commands that look after what there is: db, rescore."""

from pathlib import Path

from exitbench.harness.arguments.common import Commands, add_database, command


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    _add_db(commands)
    _add_rescore(commands)


def _add_db(commands: Commands) -> None:
    examples = "  exitbench db rebuild\n  exitbench db rebuild --runs other-runs"
    parser = command(commands, "db", "db:db", "Look after the database: rebuild it from the spool.", examples)
    parser.add_argument("action", choices=("rebuild",), help="rebuild: anew from the spool, put in place when complete")
    add_database(parser)


def _add_rescore(commands: Commands) -> None:
    examples = (
        "  exitbench rescore\n"
        "  exitbench rescore builtin\n"
        "  exitbench rescore 'multi30k-free/multi30k/*' --data-dir ../data"
    )
    about = "Score stored answers under the tasks' current metric versions: no model is loaded, old scores stay."
    parser = command(commands, "rescore", "rescore:rescore_runs", about, examples)
    naming = "suites (name or TOML file), attempt or cell ids, or globs over MODEL/TASK/METHOD; everything without any"
    parser.add_argument("names", nargs="*", metavar="RUN|SUITE", help=naming)
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="root of the local files that were answered")
    add_database(parser)
