"""Commands that show what there is: report, sql, list."""

from pathlib import Path

from exitbench.harness.arguments.common import Commands, add_database, command
from exitbench.harness.commands.listing import LISTS


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    _add_report(commands)
    _add_sql(commands)
    _add_list(commands)


def _add_report(commands: Commands) -> None:
    examples = "  exitbench report\n  exitbench report --database other.duckdb --out other-report"
    parser = command(commands, "report", "report:report", "Write every figure and table from the database.", examples)
    add_database(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the report (RUNS/report)")


def _add_sql(commands: Commands) -> None:
    examples = (
        "  exitbench sql 'SELECT model, task, method, value FROM frontier'\n"
        "  exitbench sql --format csv 'SELECT * FROM exit_histogram' > exits.csv\n"
        "  exitbench sql - < query.sql"
    )
    parser = command(commands, "sql", "sql:sql", "Ask the database one read-only SQL query.", examples)
    parser.add_argument("query", metavar="QUERY", help="one DuckDB SELECT; - reads it from standard input")
    add_database(parser)
    parser.add_argument("--format", choices=("table", "csv", "json"), default="table")


def _add_list(commands: Commands) -> None:
    examples = "  exitbench list methods\n  exitbench list suites"
    parser = command(
        commands, "list", "listing:listing", "List what can be named in a suite or on the command line.", examples
    )
    parser.add_argument("what", choices=tuple(LISTS))
