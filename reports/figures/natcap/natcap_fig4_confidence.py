"""Confidence by block (Figure 4 of the natural-capability paper)."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from exitbench.reports.figures.natcap import TRAINED, draw_means, panels_by_task
from exitbench.reports.frame import Frame
from exitbench.reports.labels import between
from exitbench.reports.plotting.panels import label_y
from exitbench.reports.plotting.style import SeriesStyle

TITLE = "Confidence of each block in its most probable token"
CAPTION = (
    "Largest probability that a block gives to any token, whether or not it is the final one, read out through final "
    "norm and LM head: mean over tokens, with 95 % intervals over documents. If it is high at early blocks, a "
    f"confidence gate exits early, rightly or not. {TRAINED} After Figure 4 of Early Exit Is a Natural Capability, "
    "whose models are classifiers of GLUE."
)


def finding(frame: Frame) -> str:
    """Return a sentence on the mean largest probability at the first block."""
    first = [row for row in frame.rows if row["block"] == 1]
    span = between(first, "mean", "{:.2f}".format, ("model", "task"))
    return f"The first block gives its own most likely token a mean probability of {span}."


def plot(frame: Frame) -> Figure:
    """Draw one panel per task: x is the block, y the mean largest probability of any token; one line per model.

    Frame: one row per task, model (series) and block, with mean and half_width (of its interval).
    """

    def panel(axes: Axes, rows: Frame, styles: Mapping[str, SeriesStyle]) -> None:
        draw_means(axes, rows, styles, "block", "mean")
        axes.set_ylim(0, 1.02)
        label_y(axes, "largest probability")

    return panels_by_task(frame, panel)
