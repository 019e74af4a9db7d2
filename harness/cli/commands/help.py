"""``exitbench help`` prints an overview, all commands, or one command's help. ``open`` opens the report."""

import webbrowser
from argparse import Namespace

from exitbench.errors import UserError, suggestion
from exitbench.harness.cli.arguments.common import Overview
from exitbench.harness.service.folders import existing_runs
from exitbench.terminal import print_escaped


def print_help(arguments: Namespace) -> int:
    """Print the most frequent commands, all commands (`exitbench help all`), or the help of one command.

    Raises:
        UserError: There is no such command.
    """
    program: Overview = arguments.program
    if not arguments.words:
        print(program.format_help(), end="")
    elif arguments.words == ["all"]:
        print(program.format_all(), end="")
    else:
        name = " ".join(arguments.words)
        if name not in program.commands:
            raise UserError(f"there is no command {name!r}.{suggestion(name, program.commands)}")
        print(program.commands[name].format_help(), end="")
    return 0


def open_page(arguments: Namespace) -> int:
    """Open the report's page in a browser, and print its path, for machines without a browser.

    Raises:
        UserError: There is no page yet.
    """
    page = existing_runs(arguments.runs).report / "index.html"
    if not page.is_file():
        raise UserError(f"{page}: there is no page yet. `exitbench report` writes it.")
    print_escaped(str(page))
    webbrowser.open(page.resolve().as_uri())
    return 0
