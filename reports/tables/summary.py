"""The results table: every setting of every method, beside full depth of the same checkpoint."""

from exitbench.reports.frame import Row
from exitbench.reports.tables.columns import (
    Cell,
    Column,
    method,
    metric_digits,
    number,
    settings,
    text,
    with_interval,
    written,
)

SECTION = "results"
FACETS = {"Task": "task", "Model": "model", "Method": "method", "KV policy": "kv_policy"}
ORDER = 10
TITLE = "Results"
CAPTION = (
    "Brackets are 95 % intervals over documents. Δ is the difference to full depth. Exit layers count blocks executed. "
    "A speed-up is measured in wall time against full depth in the same run; ≈ and grey mean that its interval "
    "overlaps the noise floor, full depth timed against itself. The ideal speed-up counts the bytes read at batch size "
    "1; realised is the share of it that was measured. Simulated rows are replays: they have a cost, never a time. "
    "n counts documents, or tokens in simulated rows."
)
EMPTY = "No data yet: run `nox -s bench`, or any suite with `quality` and `timing` cells."


def quality(row: Row) -> Cell:
    """Return the headline metric with its interval."""
    return Cell(with_interval(row["value"], row["ci_low"], row["ci_high"], metric_digits(row)), row["value"])


def delta(row: Row) -> Cell:
    """Return the difference to full depth, signed."""
    return Cell(written(row["delta"], f"{{:+.{metric_digits(row)}f}}"), row["delta"])


def speedup(row: Row) -> Cell:
    """Return the measured speed-up with its interval, marked where it is inside the noise floor."""
    if row["is_full_depth"]:
        return Cell("1", 1.0)
    inside = row["inside_noise_floor"]
    shown = with_interval(row["speedup"], row["speedup_low"], row["speedup_high"], 2)
    return Cell(f"≈ {shown}" if inside else shown, row["speedup"], muted=inside)


def exit_layer(row: Row) -> Cell:
    """Return the mean exit layer, of all blocks."""
    return Cell(f"{written(row['mean_exit_layer'], '{:.2f}')} of {row['blocks']}", row["mean_exit_layer"])


def _kind(row: Row) -> Cell:
    shown = row["execution"] + (", random weights" if row["random_weights"] else "")
    return Cell(shown, shown)


COLUMNS = (
    text("Model", "model"),
    text("Task", "task"),
    text("Setting", "setting", collapses=True),
    method("Method"),
    settings("Parameters"),
    text("KV policy", "kv_policy", collapses=True),
    Column("Kind", _kind, collapses=True),
    text("Metric", "metric"),
    Column("Quality", quality, numeric=True),
    Column("Δ", delta, numeric=True),
    Column("Exit layer", exit_layer, numeric=True),
    Column("Speed-up", speedup, numeric=True),
    number("Ideal", "ideal_speedup_bytes", "{:.2f}"),
    number("Realised", "realised_fraction", "{:.0%}"),
    number("Tokens = full", "token_match", "{:.1%}"),
    number("n", "n", "{:,}"),
)
