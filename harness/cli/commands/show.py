"""``exitbench show``: an answer token by token, each in the colour of its exit layer."""

from argparse import Namespace

from exitbench.harness.cli.commands.database import existing_database
from exitbench.results.database.connection import open_database


def show(arguments: Namespace) -> int:
    """Print the answer of one run, or of two, to one document.

    Raises:
        UserError: A name fits no run or too many, or there is no such document or token.
    """
    from rich.console import Console

    from exitbench.reports.answers.answer import HeatMap, find_answers

    names = [name for name in (arguments.run, arguments.against) if name is not None]
    with open_database(existing_database(arguments)) as database:
        answers = find_answers(database, names, arguments.doc)
    heat_map = HeatMap(Console())
    heat_map.print_answers(answers)
    if arguments.token is not None:
        for answer in answers:
            heat_map.print_token(answer, arguments.token)
    return 0
