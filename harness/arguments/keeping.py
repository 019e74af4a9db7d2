"""Commands that look after what there is: db."""

from exitbench.harness.arguments.common import Commands, add_database, command


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    _add_db(commands)


def _add_db(commands: Commands) -> None:
    examples = "  exitbench db rebuild\n  exitbench db rebuild --runs other-runs"
    parser = command(commands, "db", "db:db", "Look after the database: rebuild it from the spool.", examples)
    parser.add_argument("action", choices=("rebuild",), help="rebuild: anew from the spool, put in place when complete")
    add_database(parser)
