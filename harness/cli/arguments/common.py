"""Arguments shared by several commands, and the overview printed by `exitbench --help`."""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NoReturn, TypeAlias

from exitbench.errors import UserError
from exitbench.harness.cells.cell import KINDS
from exitbench.harness.planning.retry import RETRIED
from exitbench.harness.running.shard import Shard
from exitbench.harness.service.options import MOST_DOCUMENTS, MOST_THREADS

HIDDEN: Final = "_"
"""Prefix of the names of commands meant for other programs, which help does not list."""
_SHARD_DIGITS: Final = 4


class Parser(argparse.ArgumentParser):
    """Argument parser that raises a one-line `UserError` for invalid arguments, instead of exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message about invalid arguments as a `UserError`.

        Args:
            message: argparse's message.

        Raises:
            UserError: Always.
        """
        raise UserError(f"{message.removeprefix('argument ').removesuffix('.')}. See `{self.prog} --help`.")


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def command(commands: Commands, name: str, function: str, about: str, examples: str) -> Parser:
    """Add a command to the parser; return the command's own parser, to which its arguments are added.

    Args:
        commands: argparse's object to which commands are added.
        name: Name that the user types.
        function: Implementation, as `module:function` in `harness.cli.commands`.
        about: Description; its beginning, up to a bracket, colon or full stop, is shown in the overview.
        examples: Command lines to copy, each indented by two spaces.
    """
    parser = commands.add_parser(
        name,
        description=about,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=function)
    return parser


def brief(about: str) -> str:
    """Return the beginning of a command's description, up to a bracket, colon or full stop, for a list of commands."""
    return re.split(r" \(|[:;.] |\.$", about)[0]


def add_selection(parser: Parser) -> None:
    """Add the arguments that name a suite and select its cells, such as `--only` and `--limit`."""
    parser.add_argument("suite", metavar="SUITE", help="name of a bundled suite, or path of a TOML file")
    add_data_dir(parser, "that tasks and recipes name")
    add_plugins(parser)
    add_runs(parser)
    parser.add_argument(
        "--only", metavar="GLOB", help="only cells whose name MODEL/TASK/METHOD/KIND matches, with what they need"
    )
    parser.add_argument(
        "--limit",
        type=up_to(MOST_DOCUMENTS),
        metavar="N",
        help="at most N documents of each task: cells of their own, labelled as limited",
    )
    about = "only part K of N of it: for a suite split over N machines by hand (docs/guide/many-machines.md)"
    parser.add_argument("--shard", type=_shard, action="append", default=[], metavar="K/N", help=about)
    about = f"only these kinds of cells: {', '.join(KINDS)}"
    parser.add_argument("--kinds", type=_kinds, metavar="KIND,..", help=about)
    parser.add_argument(
        "--retry",
        choices=tuple(RETRIED),
        default="failed",
        help="which cells to run besides new ones: stale; failed, the default (stale ones too); all; or none",
    )


def add_plugins(parser: Parser) -> None:
    """Add the option `--plugins`: a folder of plug-ins, which run with the user's rights."""
    about = "folder of Python files with tasks and methods: they run with your rights, so trust who wrote them"
    parser.add_argument("--plugins", type=Path, metavar="DIR", help=about)


def add_unsafe_code(parser: Parser) -> None:
    """Add the option `--confirm-run-unsafe-code`, which allows executing code that a model wrote."""
    about = "let tasks such as MBPP run the code that a model wrote: in a process with limits and no network"
    parser.add_argument("--confirm-run-unsafe-code", action="store_true", help=about)


def add_executor(parser: Parser) -> None:
    """Add the options `--executor` and `--slurm`: where cells run, on this machine or as Slurm jobs."""
    parser.add_argument(
        "--executor", choices=("local", "slurm"), default="local", help="run here (local), or as jobs of Slurm (slurm)"
    )
    parser.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a long option of sbatch, e.g. partition=gpu; may be repeated (docs/guide/cluster.md)",
    )


def add_data_dir(parser: Parser, which: str) -> None:
    """Add the option `--data-dir`, the root folder of local data files.

    Args:
        parser: The command's parser.
        which: End of the help text: which files these are.
    """
    parser.add_argument("--data-dir", type=_folder, metavar="DIR", help=f"root of the local files {which}")


def add_runs(parser: Parser) -> None:
    """Add the option `--runs`, the folder of all run data."""
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of all results (default: runs)"
    )


def add_database(parser: Parser) -> None:
    """Add the option `--runs`, and the option `--database` for a database outside of this folder."""
    add_runs(parser)
    parser.add_argument(
        "--database", type=Path, metavar="FILE", help="result database (default: RUNS/exitbench.duckdb)"
    )


def add_results(parser: Parser) -> None:
    """Add `--runs`, `--database` and `--snapshot`, which select the results that a command reads."""
    add_database(parser)
    about = "read a snapshot in place of a database: real (comes with ExitBench), or a folder that `export` wrote"
    parser.add_argument("--snapshot", metavar="NAME|DIR", help=about)


def add_lake(parser: Parser, help_text: str) -> None:
    """Add the option `--lake`: results of many machines in one place, read instead of local results."""
    parser.add_argument("--lake", metavar="DIR|URL", help=help_text)


def add_threads(parser: Parser, default: str = "all available cores") -> None:
    """Add the option `--threads`, the number of torch threads; `default` describes the default in the help text."""
    about = f"threads of torch (default: {default})"
    parser.add_argument("--threads", type=up_to(MOST_THREADS), metavar="N", help=about)


def up_to(most: int) -> Callable[[str], int]:
    """Return an argparse type for integers from 1 to `most`."""

    def read(text: str) -> int:
        # Check the length first: Python refuses to parse thousands of digits.
        if text.isascii() and text.isdigit() and len(text) <= len(str(most)) and 1 <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"{_quoted(text)} is not a whole number from 1 to {most}")

    return read


def _shard(text: str) -> Shard:
    words = text.split("/")
    if len(words) != 2 or not all(word.isascii() and word.isdigit() and len(word) <= _SHARD_DIGITS for word in words):
        raise argparse.ArgumentTypeError(f"{_quoted(text)} is not K/N, such as 2/5")
    number, count = map(int, words)
    if not 1 <= number <= count:
        raise argparse.ArgumentTypeError(f"{_quoted(text)}: K is a number from 1 to N")
    return Shard(number, count)


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {_quoted(text)}")
    return Path(text)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}…")


def _kinds(text: str) -> tuple[str, ...]:
    words = tuple(text.split(","))
    for word in words:
        if word not in KINDS:
            raise argparse.ArgumentTypeError(f"{_quoted(word)} is not one of {', '.join(KINDS)}")
    return words


DAILY: Final = ("try", "run", "status", "report", "sql", "show", "compare", "tune", "list", "inspect", "new", "doctor")
"""Commands on the first help screen, in the order in which a new user needs them."""
PURPOSES: Final[Mapping[str, tuple[str, ...]]] = {
    "Run": ("plan", "run", "status", "train", "lm-eval"),
    "Query and compare": ("report", "open", "sql", "show", "compare", "try", "tune", "replay", "claims"),
    "Models, tasks, methods": ("list", "inspect", "convert", "show-prompts", "new"),
    "Keep and share": ("export", "import", "rescore", "annotate", "db", "gc"),
    "Check": ("check", "verify", "doctor", "env"),
}
"""All commands by purpose, for `exitbench help all`."""
_START: Final = """\
usage: exitbench COMMAND ...

Benchmark early-exit methods of language models, and query the results in SQL.

Start here:
  exitbench run builtin --limit 20    small models, generated data: a first run
  exitbench sql                       questions that the results answer
"""
_END: Final = """\
A suite is a TOML file, or the name of a bundled one (list suites).
exitbench help COMMAND explains a command, with examples.
exitbench help all lists every command.
"""


class Overview(Parser):
    """Parser of the command `exitbench`. Its help lists the most frequent commands, or all commands by purpose."""

    commands: Mapping[str, Parser]

    def format_help(self) -> str:
        """Return the text of `exitbench help`: an introduction, and the most frequent commands."""
        return "\n".join((_START, self._listed("Commands", DAILY), _END))

    def format_all(self) -> str:
        """Return the text of `exitbench help all`: all commands by purpose."""
        return "\n".join(self._listed(heading, names) for heading, names in PURPOSES.items())

    def _listed(self, heading: str, names: tuple[str, ...]) -> str:
        lines = [f"  {name:<14}{brief(self.commands[name].description or '')}" for name in names]
        return "\n".join((f"{heading}:", *lines, ""))
