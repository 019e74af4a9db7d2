"""Entry point of the command line. Parsing imports no large library; each command imports the modules it needs."""

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from exitbench import __version__
from exitbench.errors import UserError, no_room, suggestion
from exitbench.harness.processes.fork_server import prepare
from exitbench.harness.processes.interrupts import Interruptible
from exitbench.lm_eval_registration import quiet_lm_eval
from exitbench.terminal import one_screen, print_escaped, without_middle

if TYPE_CHECKING:
    from exitbench.harness.cli.arguments.common import Overview

INTERRUPTED = 130
HANDED_OVER = "lm-eval"
"""Name of the command whose arguments are passed on to lm-eval."""
_OF_MATPLOTLIB = ("MPLBACKEND", "MATPLOTLIBRC")
"""Environment variables removed at the start: a notebook's matplotlib backend may not be installed here."""
_WITH_WORKERS = ("run:run", "run:tune", "trying:try_model")
"""Commands that run cells in worker processes."""
_MAX_SHOWN_CHARS = 200
"""Maximum number of characters shown of an overlong path."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code: 0, 1 (some cell failed), 2 (bad input), 130 (interrupted)."""
    command_line = sys.argv[1:] if argv is None else argv
    try:
        with Interruptible():
            return _command(command_line)
    except UserError as error:
        print_escaped(f"exitbench: {one_screen(str(error))}")
        return 2
    except BrokenPipeError:
        # The reader of the pipe (head, less) has exited; redirect stdout so that the final flush does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            print_escaped(f"exitbench: {without_middle(str(error.filename), _MAX_SHOWN_CHARS)}: {error.strerror}.")
            return 2
        if (cause := no_room(error)) is None:
            raise
        place = f"{cause.filename}: " if cause.filename else ""
        print_escaped(f"exitbench: {place}{cause.strerror}. What is finished is kept; the same command goes on.")
        return 2
    except MemoryError:
        print_escaped(
            f"exitbench: {command_line[0]}: not enough memory. Fewer documents (--limit) or smaller files need less."
        )
        return 2
    except RecursionError:
        print_escaped(f"exitbench: {command_line[0]}: something that was read is nested too deep, or refers to itself.")
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def _command(argv: Sequence[str]) -> int:
    for variable in _OF_MATPLOTLIB:  # workers and drawing processes inherit this environment
        os.environ.pop(variable, None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # the encoding may lack characters that models or this project print
            stream.reconfigure(errors="backslashreplace")
    arguments = parse_command_line(argv)
    if getattr(arguments, "plugins", None) is not None:
        _trust(arguments.plugins)
    if arguments.command in _WITH_WORKERS:
        prepare()  # its imports go on while this process imports its own modules
    module, function = arguments.command.split(":")
    command: Callable[[argparse.Namespace], int] = getattr(
        import_module(f"exitbench.harness.cli.commands.{module}"), function
    )
    with ExitStack() as arguments.at_end:
        if module != "lm_eval":  # lm-eval's own command keeps its log level
            arguments.at_end.enter_context(quiet_lm_eval())
        code = command(arguments)
    sys.stdout.flush()
    return code


def _trust(folder: Path) -> None:
    from exitbench.plugins import use_plugins

    files = use_plugins(folder)
    names = ", ".join(path.name for path in files) or "no Python"
    print_escaped(f"Plug-ins of {folder}: {names}. Their code runs with your rights.")


def console() -> NoReturn:
    """Entry point of the console script: run `main`, then end the process without interpreter teardown.

    With torch and DuckDB in one process, teardown would print pages about leaks: DuckDB's binding reports objects that
    torch keeps alive.
    """
    # A scheduler's SIGTERM ends a run like Ctrl-C: finished cells are kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = INTERRUPTED
    try:
        try:
            code = main()
            sys.stderr.flush()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
    except KeyboardInterrupt:  # interrupted while `main` was returning
        pass
    os._exit(code)


def parse_command_line(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; `command` of the result names the implementation as `module:function`.

    Raises:
        UserError: The command or an argument is invalid.
    """
    if len(argv) > 1 and argv[0] == HANDED_OVER and argv[1] not in ("-h", "--help"):
        # The other arguments are passed on unparsed; argparse would interpret those that look like options.
        return argparse.Namespace(command="lm_eval:lm_eval", arguments=list(argv[1:]))
    program, listed = whole_parser()
    if not argv or argv[0] == "help":
        return argparse.Namespace(command="help:print_help", program=program, words=list(argv[1:]))
    if not argv[0].startswith("-") and argv[0] not in program.commands:
        raise UserError(f"there is no command {argv[0]!r}.{suggestion(argv[0], listed)}")
    return program.parse_args(argv)


def whole_parser() -> "tuple[Overview, list[str]]":
    """Return the parser of all commands, and the names of the commands that help lists."""
    # Imported here, within `Interruptible`, so that Ctrl-C during the import is handled.
    from exitbench.harness.cli.arguments import keeping, querying, running
    from exitbench.harness.cli.arguments.common import HIDDEN, Overview, Parser

    parser = Overview("exitbench")
    parser.add_argument("-V", "--version", action="version", version=f"exitbench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for group in (running, querying, keeping):
        group.add_commands(commands)
    parser.commands = commands.choices
    return parser, [name for name in parser.commands if not name.startswith(HIDDEN)]


if __name__ == "__main__":
    console()
