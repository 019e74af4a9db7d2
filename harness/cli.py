"""The command line. Reading arguments imports nothing heavy; each command imports what it needs."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from exitbench import __version__
from exitbench.errors import UserError
from exitbench.harness.cell import KINDS
from exitbench.harness.commands.listing import LISTS
from exitbench.harness.retry import RETRIED

INTERRUPTED = 130

Parser = argparse.ArgumentParser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 (some cell failed), 2 (bad input), 130 (interrupted)."""
    arguments = _parser().parse_args(argv)
    module, function = arguments.command.split(":")
    try:
        command: Callable[[argparse.Namespace], int] = getattr(
            import_module(f"exitbench.harness.commands.{module}"), function
        )
        code = command(arguments)
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"exitbench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe (head, less) has left; keep the interpreter from complaining while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def console() -> NoReturn:
    """The console script: `main`, then the end of the process.

    Ends without tearing the interpreter down: where torch and DuckDB meet in one process, DuckDB's binding
    takes what torch keeps alive for leaks and prints pages about it.
    """
    # A scheduler's SIGTERM ends a run as Ctrl-C does: what is finished stays.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = main()
    sys.stderr.flush()
    os._exit(code)


def _parser() -> Parser:
    parser = Parser("exitbench", description="Benchmark early-exit methods and ask the results in SQL.")
    parser.add_argument("--version", action="version", version=f"exitbench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_plan(commands)
    _add_run(commands)
    _add_train(commands)
    _add_fit(commands)
    _add_calibrate(commands)
    _add_report(commands)
    _add_sql(commands)
    _add_list(commands)
    _add_cell(commands)
    return parser


def _add(commands: "argparse._SubParsersAction[Parser]", name: str, command: str, about: str, examples: str) -> Parser:
    parser = commands.add_parser(
        name,
        help=about,
        description=about,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=command)
    return parser


def _add_selection(parser: Parser, kinds: tuple[str, ...] | None = None) -> None:
    parser.add_argument("suite", metavar="SUITE", help="name of a shipped suite, or path of a TOML file")
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="root of the local files that tasks and recipes name"
    )
    _add_runs(parser)
    parser.add_argument(
        "--only", metavar="GLOB", help="cells whose name MODEL/TASK/METHOD/KIND matches, and what they need"
    )
    parser.add_argument(
        "--limit", type=_positive, metavar="N", help="at most N documents a task (other cells, labelled)"
    )
    if kinds is None:
        about = f"only these kinds of cells: {', '.join(KINDS)}"
        parser.add_argument("--kinds", type=_kinds, metavar="KIND,..", help=about)
    else:
        parser.set_defaults(kinds=kinds)
    parser.add_argument(
        "--retry",
        choices=tuple(RETRIED),
        default="failed",
        help="beside new cells, run stale ones (stale), also failed ones (failed, the default), or all again (all)",
    )


def _add_runs(parser: Parser) -> None:
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of all run data (runs)")


def _add_plan(commands: "argparse._SubParsersAction[Parser]") -> None:
    examples = "  exitbench plan builtin\n  exitbench plan builtin --only '*/squad/*' --limit 10"
    parser = _add(
        commands, "plan", "plan:plan", "Show every cell of a suite: new, done, stale (and why) or failed.", examples
    )
    _add_selection(parser)


def _add_run(commands: "argparse._SubParsersAction[Parser]") -> None:
    examples = (
        "  exitbench run builtin\n"
        "  exitbench run builtin --only '*/static*' --kinds quality --limit 20\n"
        "  exitbench run multi30k-en-fr --data-dir ../data"
    )
    about = "Run a suite: train missing models, run cells that are not done, fill the database, report."
    parser = _add(commands, "run", "run:run", about, examples)
    _add_selection(parser)
    _add_threads(parser)


def _add_train(commands: "argparse._SubParsersAction[Parser]") -> None:
    examples = (
        "  exitbench train builtin\n"
        "  exitbench train builtin-free\n"
        "  exitbench train my-recipe.toml --data-dir ../data --models-dir models"
    )
    about = "Train the models of a suite, or one recipe. Interrupted, the same command goes on where it stopped."
    parser = _add(commands, "train", "train:train", about, examples)
    parser.add_argument("what", metavar="SUITE", help="name or TOML file of a suite, or of a recipe")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="root of the local files that recipes name")
    _add_runs(parser)
    parser.add_argument("--models-dir", type=Path, metavar="DIR", help="folder of the models (RUNS/models)")
    _add_threads(parser)


def _add_fit(commands: "argparse._SubParsersAction[Parser]") -> None:
    examples = "  exitbench fit builtin\n  exitbench fit multi30k-en-fr --data-dir ../data --only '*/mee-lstm*'"
    about = "Fit what the methods of a suite train (classifiers, thresholds by block): its fit cells only."
    parser = _add(commands, "fit", "run:run", about, examples)
    _add_selection(parser, kinds=("fit",))
    _add_threads(parser)


def _add_calibrate(commands: "argparse._SubParsersAction[Parser]") -> None:
    examples = "  exitbench calibrate builtin\n  exitbench calibrate my-suite.toml --data-dir ../data"
    about = "Choose thresholds with a guarantee by real decodes (Learn then Test): a suite's calibration cells only."
    parser = _add(commands, "calibrate", "run:run", about, examples)
    _add_selection(parser, kinds=("calibration",))
    _add_threads(parser)


def _add_threads(parser: Parser) -> None:
    parser.add_argument(
        "--threads", type=_positive, metavar="N", help="threads of torch (default: all available cores)"
    )


def _add_report(commands: "argparse._SubParsersAction[Parser]") -> None:
    examples = "  exitbench report\n  exitbench report --database other.duckdb --out other-report"
    parser = _add(commands, "report", "report:report", "Write every figure and table from the database.", examples)
    _add_runs(parser)
    parser.add_argument("--database", type=Path, metavar="FILE", help="result database (RUNS/exitbench.duckdb)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the report (RUNS/report)")


def _add_sql(commands: "argparse._SubParsersAction[Parser]") -> None:
    examples = (
        "  exitbench sql 'SELECT model, task, method, value FROM frontier'\n"
        "  exitbench sql --format csv 'SELECT * FROM exit_histogram' > exits.csv\n"
        "  exitbench sql - < query.sql"
    )
    parser = _add(commands, "sql", "sql:sql", "Ask the database one read-only SQL query.", examples)
    parser.add_argument("query", metavar="QUERY", help="one DuckDB SELECT; - reads it from standard input")
    _add_runs(parser)
    parser.add_argument("--database", type=Path, metavar="FILE", help="result database (RUNS/exitbench.duckdb)")
    parser.add_argument("--format", choices=("table", "csv", "json"), default="table")


def _add_list(commands: "argparse._SubParsersAction[Parser]") -> None:
    examples = "  exitbench list methods\n  exitbench list suites"
    parser = _add(
        commands, "list", "listing:listing", "List what can be named in a suite or on the command line.", examples
    )
    parser.add_argument("what", choices=tuple(LISTS))


def _add_cell(commands: "argparse._SubParsersAction[Parser]") -> None:
    examples = "  exitbench _cell runs/logs/20260101T000000-vanilla.json --spool runs/spool"
    parser = _add(
        commands, "_cell", "cell:cell", "Run one worker's specification, events on standard output.", examples
    )
    parser.add_argument("spec", type=Path, metavar="SPEC.json", help="as `run` leaves it in RUNS/logs")
    parser.add_argument("--spool", type=Path, metavar="DIR", help="write the attempts here instead")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def _kinds(text: str) -> tuple[str, ...]:
    words = tuple(text.split(","))
    for word in words:
        if word not in KINDS:
            raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(KINDS)}")
    return words


if __name__ == "__main__":
    console()
