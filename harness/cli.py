"""The command line. Reading arguments imports nothing heavy; each command imports what it needs."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import NoReturn

from exitbench import __version__
from exitbench.errors import UserError, no_room
from exitbench.harness.interrupts import Interruptible

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 (some cell failed), 2 (bad input), 130 (interrupted)."""
    try:
        with Interruptible():
            return _command(argv)
    except UserError as error:
        print(f"exitbench: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of a pipe (head, less) has left; keep the interpreter from complaining while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if (cause := no_room(error)) is None:
            raise
        where = f"{cause.filename}: " if cause.filename else ""
        print(
            f"exitbench: {where}{cause.strerror}. What is finished is kept; the same command goes on.", file=sys.stderr
        )
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED


def _command(argv: Sequence[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # an encoding may lack what models write, and what we do
            stream.reconfigure(errors="backslashreplace")
    arguments = _parser().parse_args(argv)
    module, function = arguments.command.split(":")
    command: Callable[[argparse.Namespace], int] = getattr(
        import_module(f"exitbench.harness.commands.{module}"), function
    )
    code = command(arguments)
    sys.stdout.flush()
    return code


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


def _parser() -> argparse.ArgumentParser:
    # Imported here, where an interrupt is taken care of.
    from exitbench.harness.arguments import asking, keeping, running

    parser = argparse.ArgumentParser(
        "exitbench", description="Benchmark early-exit methods and ask the results in SQL."
    )
    parser.add_argument("--version", action="version", version=f"exitbench {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for group in (running, asking, keeping):
        group.add_commands(commands)
    return parser


if __name__ == "__main__":
    console()
