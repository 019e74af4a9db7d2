"""``exitbench replay``: many thresholds of a method over a stored probe, in one pass."""

import tomllib
from argparse import Namespace
from typing import TYPE_CHECKING, Any, Final

from exitbench.errors import UserError
from exitbench.harness.cli.commands.database import existing_database
from exitbench.harness.cli.commands.rows import FORMATS
from exitbench.results.database.connection import open_database
from exitbench.terminal import tell

if TYPE_CHECKING:
    import pyarrow as pa

_PICTURES: Final = (".pdf", ".png", ".svg")


def replay(arguments: Namespace) -> int:
    """Print a row a threshold: mean exit layer, and the share of tokens that full depth emits.

    Raises:
        UserError: The name fits no probe or several, a parameter is unknown, or a probe does not tell the score.
    """
    from exitbench.harness.afterwards import replaying  # loads torch
    from exitbench.methods.registry import get_method

    params = _params(arguments.param)
    if arguments.figure is not None and arguments.figure.suffix not in _PICTURES:
        raise UserError(f"--figure {arguments.figure}: its name must end in {', '.join(_PICTURES)}.")
    method = get_method(arguments.method).from_params(params)
    with open_database(existing_database(arguments)) as database:
        probe = replaying.stored_probe(database, arguments.probe, method)
    found = replaying.replay(probe, arguments.method, arguments.thresholds, **params)
    tell(f"simulated: {found.num_rows} thresholds over {probe.table.num_rows} tokens of full depth's answers")
    if arguments.figure is not None:
        _draw(arguments, found, probe.n_blocks)
    FORMATS[arguments.format](found.column_names, [list(row.values()) for row in found.to_pylist()])
    return 0


def _draw(arguments: Namespace, found: "pa.Table", n_blocks: int) -> None:
    from exitbench.reports.plotting.panels import sweep_picture
    from exitbench.results.files.whole_file import write_whole_file

    thresholds, depths, matches = (found[name].to_pylist() for name in ("threshold", "mean_exit_layer", "token_match"))
    title, kind = f"{arguments.method} on {arguments.probe}", arguments.figure.suffix.removeprefix(".")
    picture = sweep_picture(title, thresholds, depths, matches, n_blocks, kind)
    try:
        write_whole_file(arguments.figure, picture)
    except OSError as error:
        raise UserError(f"--figure {arguments.figure}: {error.strerror}.") from None


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
