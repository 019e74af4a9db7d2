"""``exitbench replay``: many thresholds of a method over a stored probe, in one pass."""

import tomllib
from argparse import Namespace
from typing import Any

from exitbench.errors import UserError
from exitbench.harness.cli.commands.folders import existing_database
from exitbench.harness.cli.commands.rows import FORMATS
from exitbench.results.database.connection import open_database
from exitbench.terminal import tell


def replay(arguments: Namespace) -> int:
    """Print a row a threshold: mean exit layer, and the share of tokens that full depth emits.

    Raises:
        UserError: The name fits no probe or several, a parameter is unknown, or a probe does not tell the score.
    """
    from exitbench.harness.afterwards import replaying  # loads torch

    with open_database(existing_database(arguments)) as database:
        probe = replaying.stored_probe(database, arguments.probe)
    found = replaying.replay(probe, arguments.method, arguments.thresholds, **_params(arguments.param))
    tell(f"simulated: {found.num_rows} thresholds over {probe.table.num_rows} tokens of full depth's answers")
    FORMATS[arguments.format](found.column_names, [list(row.values()) for row in found.to_pylist()])
    return 0


def _params(given: list[str]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not equals:
            raise UserError(f"--param {one}: allowed: NAME=VALUE, such as --param min_exit=2.")
        params[name] = _value(text)
    return params


def _value(text: str) -> Any:
    """A value as a suite writes it; what is no TOML is a word without its quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
