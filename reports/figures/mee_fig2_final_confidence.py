"""Confidence in the final prediction by block (Figure 2 of the Monotonic Early Exiting paper)."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from exitbench.reports.figures.mee_parts import EMPTY, panels_by_task
from exitbench.reports.frame import Frame
from exitbench.reports.style import SeriesStyle

__all__ = ["CAPTION", "EMPTY", "TITLE", "plot"]

TITLE = "How probable the final token is at each block"
CAPTION = (
    "Probability that a block, read out through the final norm and the LM head, gives to the token that the last block "
    "finds most likely: mean over tokens, and bars of one standard deviation to each side (spread of the tokens, no "
    "uncertainty of the mean), cut at 0 and 1. Series stand side by side so that their bars can be told apart. After "
    "Figure 2 of the Monotonic Early Exiting paper, whose published curves were typed into a notebook."
)

_STEP = 0.13  # blocks between series that are drawn side by side


def plot(frame: Frame) -> Figure:
    """Draw one panel a task and one series a model; frame: task, model, block, mean and std of a probability, n."""
    return panels_by_task(frame, _panel)


def _panel(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle]) -> None:
    for model, style in styles.items():
        rows = [row for row in frame.rows if row["model"] == model]
        if not rows:
            continue  # not probed on this task; its place among the series stays free
        shift = _STEP * (list(styles).index(model) - (len(styles) - 1) / 2)
        x = [row["block"] + shift for row in rows]
        low = [max(0.0, row["mean"] - row["std"]) for row in rows]
        high = [min(1.0, row["mean"] + row["std"]) for row in rows]
        axes.vlines(x, low, high, color=style.colour, linewidth=1, alpha=0.6, zorder=2)
        means = [row["mean"] for row in rows]
        axes.plot(x, means, color=style.colour, marker=style.marker, markersize=4, linewidth=0.9, zorder=3)
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("probability of the final token")
