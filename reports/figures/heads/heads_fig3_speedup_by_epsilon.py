"""Speed-up by epsilon (Figure 3 of Accelerating LLM Inference with Self-Supervised Early Exits)."""

from matplotlib.figure import Figure

from exitbench.reports.figures.heads import SETTINGS, by_epsilon
from exitbench.reports.frame import Frame
from exitbench.reports.labels import between, times
from exitbench.reports.plotting.panels import (
    FLOOR_NOTE,
    LENGTH_NOTE,
    draw_floors,
    draw_lengths,
    floor_entry,
    length_entry,
)

TITLE = "Speed-up of exit heads by epsilon"
CAPTION = (
    "Measured speed-up, a ratio of wall times to full depth of the same checkpoint in the same run, against epsilon. "
    f"Bars are 95 % intervals over documents. {FLOOR_NOTE}: an interval that touches it shows no speed-up. "
    f"{LENGTH_NOTE} After Figure 3 of Accelerating LLM Inference with Self-Supervised Early Exits, whose times are of "
    f"code without a KV cache, with neither warm-up nor synchronization, and were not published as numbers. {SETTINGS}"
)


def finding(frame: Frame) -> str:
    """Return a sentence on the lowest and the highest speed-up over full depth."""
    rows = [{**row, "asked": f"epsilon {row['epsilon']:g}"} for row in frame.rows]
    return f"Exit heads are {between(rows, 'value', times, ('series', 'task', 'asked'))} as fast as full depth."


def plot(frame: Frame) -> Figure:
    """Draw one panel per task: x is epsilon, y the measured speed-up over full depth; one line per series.

    Frame: one row per task, setting, series (model or varied parameter) and epsilon, with value (the speed-up) and its
    noise floor, aa_low to aa_high.
    """
    figure, panels = by_epsilon(frame, [floor_entry(), length_entry()], unit="timed documents")
    for axes, rows in panels:
        draw_floors(axes, rows.values("epsilon"), rows.rows, along="y")
        draw_lengths(axes, rows.values("epsilon"), [{**row, "speedup": row["value"]} for row in rows.rows], along="y")
        axes.set_ylabel("measured speed-up")
        axes.set_ylim(bottom=0)
    return figure
