"""``exitbench compare`` and ``replay``: compare runs on the same documents, or recompute exits from a stored probe."""

import sys
import tomllib
from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from exitbench.errors import UserError
from exitbench.harness.cli.commands.common import existing_database
from exitbench.harness.cli.commands.rows import FORMATS
from exitbench.harness.service import comparing
from exitbench.results.analysis.comparison import Comparison
from exitbench.results.database.connection import open_database
from exitbench.terminal import print_escaped

if TYPE_CHECKING:
    import pyarrow as pa


def compare_runs(arguments: Namespace) -> int:
    """Print the comparison of run A with each run B, one row per metric; warnings go to standard error.

    Raises:
        UserError: The name of a run matches no run or too many, or the runs have different documents.
    """
    with open_database(existing_database(arguments)) as database:
        comparison = comparing.compare_runs(database, arguments.a, arguments.b)
    for warning in comparison.warnings:
        print_escaped(f"warning: {warning}")
    _print(comparison, arguments.format)
    return 0


def _print(comparison: Comparison, form: str) -> None:
    rows = [asdict(contrast) for contrast in comparison.contrasts]
    names = list(rows[0])
    if form == "table":
        rows = [
            {name: f"✗ {value}" if value in comparison.broken else value for name, value in row.items()} for row in rows
        ]
        # The names of runs are long: a name that is the same in every row is printed only once.
        print_escaped(f"a: {rows[0]['run_a']}", sys.stdout)
        same = {"run_a"} if len({row["run_b"] for row in rows}) > 1 else {"run_a", "run_b"}
        if "run_b" in same:
            print_escaped(f"b: {rows[0]['run_b']}", sys.stdout)
        print()
        names = [name for name in names if name not in same]
    FORMATS[form](names, [[row[name] for name in names] for row in rows])


_PICTURES: Final = (".pdf", ".png", ".svg")


def replay(arguments: Namespace) -> int:
    """Recompute a method's exits at several thresholds from a stored probe, without decoding; print a row for each.

    A probe records what each block would predict, per token. A row has the mean exit layer, and the share of tokens
    equal to full depth's.

    Raises:
        UserError: The model and task match no probe or several, a parameter is unknown, or the method's score cannot be
            computed from a probe.
    """
    from exitbench.harness.afterwards import replaying  # loads torch
    from exitbench.methods.registry import get_method

    params = _params(arguments.param)
    if arguments.figure is not None and arguments.figure.suffix not in _PICTURES:
        raise UserError(f"--figure {arguments.figure}: its name must end in {', '.join(_PICTURES)}.")
    method = get_method(arguments.method).from_params(params)
    with open_database(existing_database(arguments)) as database:
        probe = replaying.stored_probe(database, arguments.probe, method)
    swept = replaying.replay(probe, arguments.method, arguments.thresholds, **params)
    print_escaped(f"simulated: {swept.num_rows} thresholds over {probe.table.num_rows} tokens of full depth's answers")
    if arguments.figure is not None:
        _draw(arguments, swept, probe.n_blocks)
    FORMATS[arguments.format](swept.column_names, [list(row.values()) for row in swept.to_pylist()])
    return 0


def _draw(arguments: Namespace, swept: "pa.Table", n_blocks: int) -> None:
    from exitbench.reports.plotting.panels import sweep_picture
    from exitbench.results.files.atomic import write_whole_file

    thresholds, depths, matches = (swept[name].to_pylist() for name in ("threshold", "mean_exit_layer", "token_match"))
    title, kind = f"{arguments.method} on {arguments.probe}", arguments.figure.suffix.removeprefix(".")
    picture = sweep_picture(title, thresholds, depths, matches, n_blocks, kind)
    try:
        write_whole_file(arguments.figure, picture)
    except OSError as error:
        raise UserError(f"--figure {arguments.figure}: {error.strerror}.") from None


def _params(assignments: list[str]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"--param {assignment}: allowed: NAME=VALUE, such as --param min_exit=2.")
        params[name] = _value(text)
    return params


def _value(text: str) -> Any:
    """Parse the value of a method's parameter as TOML; text that is not valid TOML is returned as a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
