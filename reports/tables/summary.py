"""Results table: every setting of every method, compared with full depth of the same checkpoint."""

from dataclasses import replace

from exitbench.reports.frame import Row
from exitbench.reports.labels import NOT_MEASURABLE, OTHER_LENGTH, against_float32
from exitbench.reports.tables.columns import (
    ABSENT,
    DECODING_NOTE,
    LENGTH_NOTE,
    TableCell,
    TableColumn,
    format_number,
    method,
    metric_digits,
    number,
    settings,
    text,
    with_interval,
)

SECTION = "results"
FACETS = {"Task": "task", "Model": "model", "Method": "method", "KV policy": "kv_policy"}
ORDER = 10
TITLE = "Results"
CAPTION = (
    "Δ is the difference to full depth, paired by document; its color shows which direction is better. Brackets are "
    "95 % intervals over documents. For each model and task, settings shown to lose at most 1 % of full depth's "
    "quality come first, the fastest of them at the top. Exit layer: block after which tokens exit. Blocks run: "
    "blocks executed per token; more than the exit layer if skipped blocks are run later. Ideal speed-up: full depth's "
    "bytes read over the method's, for decoding all answers. Speed-up: wall time of full depth over the method's in "
    "the same run, of whole requests; ≈ and gray: its interval is not beyond the noise floor, full depth timed against "
    f"itself; {NOT_MEASURABLE}: one of the two is wider than a factor of 10, on a busy machine or with very few "
    f"documents. {LENGTH_NOTE} {DECODING_NOTE} Realised is the first over the second. Tokens = full: agreement, the "
    "share of full depth's tokens that the method has at the same position. Simulated rows are replays: they have a "
    "cost, but no time. Against float32: effect of another number format on full depth, on at most 50 documents. It "
    "lists the mean difference of log-probabilities, that of differences between two choices, and the share of equal "
    "choices or tokens. It is not measured if the weights do not fit into memory twice, or for numbers in place of "
    "labels. n: documents. Timed: timed documents × rounds. If the machine has energy counters, joules are per token "
    "of whole requests, gross (net: without idle power), next to full depth's; energy: full depth's over the "
    "method's."
)
EMPTY = "No data yet: run `nox -s bench`, or any suite with `quality` and `timing` cells."


def quality(row: Row) -> TableCell:
    """Return the cell of the task's headline metric with its 95 % interval."""
    return TableCell(with_interval(row["value"], row["ci_low"], row["ci_high"], metric_digits(row)), row["value"])


def delta(row: Row) -> TableCell:
    """Return the cell of the headline metric's difference to full depth, with its sign."""
    return TableCell(format_number(row["delta"], f"{{:+.{metric_digits(row)}f}}"), row["delta"])


def change(row: Row) -> TableCell:
    """Return the cell of the headline metric's difference to full depth, coloured if its interval excludes 0."""
    low, high = row["delta_low"], row["delta_high"]
    if low is None:
        return delta(row)
    digits = metric_digits(row)
    label = f"{delta(row).text} [{low:+.{digits}f}, {high:+.{digits}f}]"
    if low <= 0 <= high:
        return TableCell(label, row["delta"], muted=True)
    return TableCell(label, row["delta"], tone="better" if (high < 0) == row["lower_is_better"] else "worse")


def speedup(row: Row) -> TableCell:
    """Return the cell of the measured speed-up with its interval.

    ``≈`` marks one inside the noise floor (full depth timed against itself).
    """
    if row["is_full_depth"]:
        return TableCell("1", 1.0)
    if row.get("speed_status") == "not measurable":  # rows of the table highlights lack the column: all are measurable
        return TableCell(NOT_MEASURABLE, None, muted=True)
    return _against_full_depth(row, "speedup", row["inside_noise_floor"])


def marked(column: TableColumn) -> TableColumn:
    """Return a column of times, with a mark at those of answers that are longer or shorter than full depth's."""

    def cell(row: Row) -> TableCell:
        unmarked = column.cell(row)
        is_marked = row["is_other_length"] and unmarked.key is not None
        return replace(unmarked, text=f"{OTHER_LENGTH} {unmarked.text}") if is_marked else unmarked

    return replace(column, cell=cell)


def energy(row: Row) -> TableCell:
    """Return the cell of full depth's energy over the method's, with its interval.

    ``≈`` marks one inside the noise floor (full depth measured against itself).
    """
    return _against_full_depth(row, "energy_ratio", row["inside_energy_floor"])


def _against_full_depth(row: Row, name: str, inside: bool) -> TableCell:
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    label = with_interval(value, low, high, 2)
    if inside or low is None:
        return TableCell(f"≈ {label}" if inside else label, value, muted=inside)
    return TableCell(label, value, tone="worse" if high < 1 else "better" if low > 1 else "")


def joules(row: Row) -> TableCell:
    """Return the cell ``'0.42 of 0.61'``: joules per token of the method and of full depth."""
    spent = row["joules_per_token"]
    label = ABSENT if spent is None else f"{spent:.3g} of {row['full_joules_per_token']:.3g}"
    return TableCell(label, spent)


def exit_layer(row: Row) -> TableCell:
    """Return the cell of the mean exit layer, ``'5.20 of 8'`` blocks."""
    return _of_blocks(row, "mean_exit_layer")


def blocks_run(row: Row) -> TableCell:
    """Return the cell of the mean number of blocks executed per token, ``'6.10 of 8'``."""
    return _of_blocks(row, "mean_blocks_run")


def length(row: Row) -> TableCell:
    """Return the cell ``'20.5 of 21.0'``: mean tokens per timed answer and full depth's; marked if over 5 % apart."""
    if row["is_other_length"] is None:
        return TableCell(ABSENT, None)
    mark = f"{OTHER_LENGTH} " if row["is_other_length"] else ""
    return TableCell(f"{mark}{row['tokens_per_request']:.1f} of {row['full_tokens_per_request']:.1f}", _ratio(row))


def length_ratio(row: Row) -> str:
    """Return the mean answer length over full depth's as text, with a mark if they differ by more than 5 %."""
    if row["is_other_length"] is None:
        return ABSENT
    return f"{OTHER_LENGTH if row['is_other_length'] else ''}{_ratio(row):.2f}"


def _ratio(row: Row) -> float:
    ratio: float = row["tokens_per_request"] / row["full_tokens_per_request"]
    return ratio


def timed(row: Row) -> TableCell:
    """Return the cell ``'100 × 3'``: number of timed documents and number of timed rounds."""
    if row["timed_documents"] is None:
        return TableCell(ABSENT, None)
    rounds = "" if row["timed_rounds"] is None else f" × {row['timed_rounds']}"
    return TableCell(f"{row['timed_documents']:,}{rounds}", row["timed_documents"])


def _of_blocks(row: Row, name: str) -> TableCell:
    label = ABSENT if row[name] is None else f"{row[name]:.2f} of {row['blocks']}"
    return TableCell(label, row[name])


def number_format(row: Row) -> TableCell:
    """Return the cell with the effect of the row's number format on full depth's output; a dash for float32."""
    note = against_float32(row)
    return TableCell(ABSENT if note is None else note, note)


def _kind(row: Row) -> TableCell:
    label = row["execution"] + (", random weights" if row["random_weights"] else "")
    return TableCell(label, label)


COLUMNS = (
    method("Method"),
    settings("Parameters"),
    text("Model", "model"),
    text("Task", "task"),
    text("Setting", "setting", collapses=True, on_demand=True),
    text("KV policy", "kv_policy", collapses=True, on_demand=True),
    TableColumn("Kind", _kind, collapses=True, on_demand=True),
    text("Metric", "metric"),
    TableColumn("Quality", quality, numeric=True),
    TableColumn("Δ", change, numeric=True),
    TableColumn("Against float32", number_format, long=True, hidden_if_empty=True),
    TableColumn("Speed-up", speedup, numeric=True),
    TableColumn("Blocks run", blocks_run, numeric=True),
    number("n", "n", "{:,}"),
    number("Tokens = full", "token_match", "{:.1%}", on_demand=True),
    TableColumn("Timed", timed, numeric=True, on_demand=True),
    TableColumn("Energy", energy, numeric=True, hidden_if_empty=True),
    TableColumn("Exit layer", exit_layer, numeric=True, on_demand=True),
    number("Ideal speed-up", "ideal_speedup_bytes", "{:.2f}×", on_demand=True),
    TableColumn("Tokens", length, numeric=True, on_demand=True),
    TableColumn("Joules a token", joules, numeric=True, on_demand=True, hidden_if_empty=True),
    number("Net joules", "net_joules_per_token", "{:.3g}", on_demand=True, hidden_if_empty=True),
    number("Per token", "speedup_per_token", "{:.2f}", on_demand=True),
    number("Decoding", "speedup_decode", "{:.2f}", on_demand=True),
    number("Ideal", "ideal_speedup_decode", "{:.2f}", on_demand=True),
    number("Realised", "realised_fraction", "{:.0%}", on_demand=True),
)
