"""Table of exit layers, and of blocks from which predictions are stable, by kind of word, such as `copy` or `hop5`."""

from exitbench.reports.frame import Row
from exitbench.reports.tables.columns import ABSENT, TableCell, TableColumn, method, number, settings, text

ORDER = 20
TITLE = "Depth by kind of token"
CAPTION = (
    "On the built-in data, in which every word has a kind. Probes: first match is the first block whose most probable "
    "token is the final one, stable from is the first block from which it stays so. Real decodes: the exit layer, and "
    "the share of the run's own tokens that equal full depth's at the same position (in the results table it is a "
    "share of full depth's tokens). ± is half a 95 % interval, clustered by document."
)
EMPTY = "No data yet: run `nox -s bench`, or any suite with `probe` cells on the built-in data."


def _mean(heading: str, name: str, half: str, form: str = "{:.2f}") -> TableColumn:
    """Return a table column ``mean ± half the width of its interval``, from the frame's columns `name` and `half`."""

    def cell(row: Row) -> TableCell:
        if row[name] is None:
            return TableCell(ABSENT, None)
        around = "" if row[half] is None else f" ± {form.format(row[half])}"
        return TableCell(form.format(row[name]) + around, row[name])

    return TableColumn(heading, cell, numeric=True)


COLUMNS = (
    text("Model", "model"),
    text("Task", "task"),
    text("Cells", "kind"),
    method("Method"),
    settings("Parameters"),
    text("KV policy", "kv_policy", collapses=True),
    text("Kind of token", "token_kind"),
    number("Tokens", "n", "{:,}"),
    _mean("First match", "mean_first_match", "first_match_half"),
    _mean("Stable from", "mean_stable_from", "stable_from_half"),
    _mean("Exit layer", "mean_exit_layer", "exit_layer_half"),
    _mean("Of own tokens = full", "share_equal_full", "equal_full_half", "{:.1%}"),
)
