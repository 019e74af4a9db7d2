"""Wall time saved by the ideal exit (Table 4 of the natural-capability paper).

The ideal exit of a token is the first block whose most probable token is the last block's.
"""

from exitbench.reports.figures.natcap import EMPTY
from exitbench.reports.frame import Row
from exitbench.reports.labels import NOT_MEASURABLE
from exitbench.reports.tables.columns import (
    DECODING_NOTE,
    LENGTH_NOTE,
    TableCell,
    TableColumn,
    metric_digits,
    number,
    text,
    with_interval,
)
from exitbench.reports.tables.summary import delta, length, timed

__all__ = ["CAPTION", "COLUMNS", "EMPTY", "TITLE"]

TITLE = "Speed-up of the ideal exit"
CAPTION = (
    "Every token exits at the first block whose most probable token is the last block's. Speed-up: wall time of full "
    "depth over that of this exit, in the same run. The exit layers are known from an untimed decode, so that finding "
    f"them costs nothing and skipped blocks are really skipped; ≈ and gray: within the noise floor. {LENGTH_NOTE} "
    f"{DECODING_NOTE} Exit layer: mean; a decoder without an encoder reads its first token from the prompt's pass (all "
    "blocks). Score: of that decode, in which skipped blocks get keys and values by the KV policy; Δ: to full depth. "
    "Brackets are 95 % intervals over documents. Trained on: the last block alone, or every block (joint "
    "optimisation). Rows of Table 4 of Early Exit Is a Natural Capability are of encoders on GLUE, by wall clock on "
    "one A100: their speed-up, and the score of full depth. Ours are above those of the same task: small encoders, "
    "for which a document is one token, without a KV cache."
)


def _speedup(row: Row) -> TableCell:
    if row["speed_status"] == "not measurable":
        return TableCell(NOT_MEASURABLE, None, muted=True)
    label = with_interval(row["speedup"], row["speedup_low"], row["speedup_high"], 2)
    inside = bool(row["inside_noise_floor"])
    return TableCell(f"≈ {label}" if inside else label, row["speedup"], muted=inside)


def _score(row: Row) -> TableCell:
    if row["value"] is None:
        return TableCell(row["score"] or "–", row["score"])
    label = with_interval(row["value"], row["ci_low"], row["ci_high"], metric_digits(row))
    return TableCell(f"{row['metric']} {label}", row["metric"])


COLUMNS = (
    text("From", "printed_in"),
    text("Data", "data"),
    text("Model", "model"),
    text("Trained on", "training"),
    number("Blocks", "blocks", "{}"),
    number("Batch", "batch_size", "{}"),
    text("KV policy", "kv_policy"),
    number("Exit layer", "mean_exit_layer", "{:.2f}"),
    TableColumn("Speed-up", _speedup, numeric=True),
    TableColumn("Tokens", length, numeric=True),
    number("Per token", "speedup_per_token", "{:.2f}"),
    number("Decoding", "speedup_decode", "{:.2f}"),
    number("Ideal", "ideal_speedup_decode", "{:.2f}"),
    TableColumn("Score", _score, long=True),
    TableColumn("Δ", delta, numeric=True),
    number("Documents", "n", "{:,}"),
    TableColumn("Timed", timed, numeric=True),
)
