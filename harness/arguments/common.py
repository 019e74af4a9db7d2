"""What the arguments of several commands have in common."""

import argparse
from pathlib import Path
from typing import TypeAlias

from exitbench.harness.cell import KINDS
from exitbench.harness.retry import RETRIED

Parser = argparse.ArgumentParser
Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def command(commands: Commands, name: str, function: str, about: str, examples: str) -> Parser:
    """Add a command.

    Args:
        commands: The commands so far.
        name: What the user types.
        function: What runs, as `module:function` within `harness.commands`.
        about: One sentence.
        examples: Lines to copy, each indented by two spaces.
    """
    parser = commands.add_parser(
        name,
        help=about,
        description=about,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=function)
    return parser


def add_selection(parser: Parser, kinds: tuple[str, ...] | None = None) -> None:
    """Add a suite and which of its cells; `kinds` fixes the kinds that may otherwise be chosen."""
    parser.add_argument("suite", metavar="SUITE", help="name of a shipped suite, or path of a TOML file")
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="root of the local files that tasks and recipes name"
    )
    add_runs(parser)
    parser.add_argument(
        "--only", metavar="GLOB", help="cells whose name MODEL/TASK/METHOD/KIND matches, and what they need"
    )
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="at most N documents a task (other cells, labelled)"
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


def add_executor(parser: Parser) -> None:
    """Add where cells run."""
    parser.add_argument(
        "--executor", choices=("local", "slurm"), default="local", help="run here (local), or as jobs of Slurm (slurm)"
    )
    parser.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a long option of sbatch, e.g. partition=gpu; may be repeated (docs/cluster.md)",
    )


def add_runs(parser: Parser) -> None:
    """Add the folder in which everything lies."""
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of all run data (runs)")


def add_database(parser: Parser) -> None:
    """Add the folder in which everything lies, and a way to name another database."""
    add_runs(parser)
    parser.add_argument("--database", type=Path, metavar="FILE", help="result database (RUNS/exitbench.duckdb)")


def add_threads(parser: Parser) -> None:
    """Add the number of threads."""
    parser.add_argument("--threads", type=positive, metavar="N", help="threads of torch (default: all available cores)")


def positive(text: str) -> int:
    """Read a whole number of 1 or more."""
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
