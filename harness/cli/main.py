"""The command line. Reading arguments imports nothing heavy; each command imports what it needs."""

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from exitbench import __version__
from exitbench.errors import UserError, no_room, suggestion
from exitbench.harness.processes.interrupts import Interruptible
from exitbench.lm_eval_registration import quiet_lm_eval
from exitbench.terminal import one_screen, tell, without_middle

if TYPE_CHECKING:
    from exitbench.harness.cli.arguments.common import Overview

INTERRUPTED = 130
HANDED_OVER = "lm-eval"
"""The command whose arguments another program reads."""
_OF_MATPLOTLIB = ("MPLBACKEND", "MATPLOTLIBRC")
"""Settings of the user's plots: a backend that a notebook names is not installed here, and then nothing is drawn."""
_SHOWN = 200
"""Characters of a path that is too long."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 (some cell failed), 2 (bad input), 130 (interrupted)."""
    given = sys.argv[1:] if argv is None else argv
    try:
        with Interruptible():
            return _command(given)
    except UserError as error:
        tell(f"exitbench: {one_screen(str(error))}")
        return 2
    except BrokenPipeError:
        # The reader of a pipe (head, less) has left; keep the interpreter from complaining while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            tell(f"exitbench: {without_middle(str(error.filename), _SHOWN)}: {error.strerror}.")
            return 2
        if (cause := no_room(error)) is None:
            raise
        where = f"{cause.filename}: " if cause.filename else ""
        tell(f"exitbench: {where}{cause.strerror}. What is finished is kept; the same command goes on.")
        return 2
    except MemoryError:
        tell(f"exitbench: {given[0]}: not enough memory. Fewer documents (--limit) or smaller files need less.")
        return 2
    except RecursionError:
        tell(f"exitbench: {given[0]}: something that was read is nested too deep, or refers to itself.")
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def _command(given: Sequence[str]) -> int:
    for variable in _OF_MATPLOTLIB:  # workers and processes that draw inherit this process's environment
        os.environ.pop(variable, None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # an encoding may lack what models write, and what we do
            stream.reconfigure(errors="backslashreplace")
    arguments = parsed(given)
    if getattr(arguments, "plugins", None) is not None:
        _trust(arguments.plugins)
    module, function = arguments.command.split(":")
    command: Callable[[argparse.Namespace], int] = getattr(
        import_module(f"exitbench.harness.cli.commands.{module}"), function
    )
    with nullcontext() if module == "lm_eval" else quiet_lm_eval():  # lm-eval's own command is as loud as it is told
        code = command(arguments)
    sys.stdout.flush()
    return code


def _trust(folder: Path) -> None:
    from exitbench.plugins import use_plugins

    files = use_plugins(folder)
    names = ", ".join(path.name for path in files) or "no Python"
    tell(f"Plug-ins of {folder}: {names}. Their code runs with your rights.")


def console() -> NoReturn:
    """The console script: `main`, then the end of the process.

    Ends without tearing the interpreter down: where torch and DuckDB meet in one process, DuckDB's binding
    takes what torch keeps alive for leaks and prints pages about it.
    """
    # A scheduler's SIGTERM ends a run as Ctrl-C does: what is finished stays.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = INTERRUPTED
    try:
        try:
            code = main()
            sys.stderr.flush()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
    except KeyboardInterrupt:  # as `main` ended
        pass
    os._exit(code)


def parsed(given: Sequence[str]) -> argparse.Namespace:
    """Read the arguments.

    Raises:
        UserError: They are not a command's.
    """
    if len(given) > 1 and given[0] == HANDED_OVER and given[1] not in ("-h", "--help"):
        # Every other argument is lm-eval's; argparse would take those that look like options for its own.
        return argparse.Namespace(command="lm_eval:lm_eval", arguments=list(given[1:]))
    program, listed = whole_parser()
    if not given or given[0] == "help":
        return argparse.Namespace(command="help:print_help", program=program, words=list(given[1:]))
    if not given[0].startswith("-") and given[0] not in program.commands:
        raise UserError(f"there is no command {given[0]!r}.{suggestion(given[0], listed)}")
    return program.parse_args(given)


def whole_parser() -> "tuple[Overview, list[str]]":
    """Return what reads the arguments of every command, and the commands that people type."""
    # Imported here, where an interrupt is taken care of.
    from exitbench.harness.cli.arguments import asking, keeping, running
    from exitbench.harness.cli.arguments.common import HIDDEN, Overview, Parser

    parser = Overview("exitbench")
    parser.add_argument("-V", "--version", action="version", version=f"exitbench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for group in (running, asking, keeping):
        group.add_commands(commands)
    parser.commands = commands.choices
    return parser, [name for name in parser.commands if not name.startswith(HIDDEN)]


if __name__ == "__main__":
    console()
