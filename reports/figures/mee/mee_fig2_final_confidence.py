"""Confidence in the final prediction by block (Figure 2 of the Monotonic Early Exiting paper and of its blog)."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from exitbench.reports.figures.mee.mee_parts import EMPTY, PUBLISHED_MODELS, intervals, panels_by_task
from exitbench.reports.frame import Frame
from exitbench.reports.plotting.style import SeriesStyle

__all__ = ["CAPTION", "EMPTY", "TITLE", "plot"]

TITLE = "How probable the final token is at each block"
CAPTION = (
    "Probability that a block, read out through the final norm and the LM head, gives to the token that the last block "
    "finds most likely: mean over tokens; thin bars are one standard deviation to each side (spread of the tokens), "
    "thick ones 95 % intervals of the mean over documents; both are cut at 0 and 1. Series stand side by side so that "
    "their bars can be told apart. After Figure 2 of the Monotonic Early Exiting paper. "
    f"{PUBLISHED_MODELS} The authors typed their means into a notebook, eleven for twelve blocks; they are drawn at "
    "blocks 1 to 11."
)

_STEP = 0.13  # blocks between series that are drawn side by side
_THICK = 3.0


def plot(frame: Frame) -> Figure:
    """Draw one panel a task and one series a model; frame: mean and std of a probability by origin and block."""
    return panels_by_task(frame, "mean", _panel)


def _panel(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle]) -> None:
    for place, (model, style) in enumerate(styles.items()):
        rows = Frame(frame.columns, tuple(row for row in frame.rows if row["model"] == model))
        shift = _STEP * (place - (len(styles) - 1) / 2)  # a model not probed on this task leaves its place free
        x = [block + shift for block in rows.values("block")]
        low = [max(0.0, row["mean"] - row["std"]) for row in rows.rows]
        high = [min(1.0, row["mean"] + row["std"]) for row in rows.rows]
        axes.vlines(x, low, high, color=style.colour, linewidth=1, alpha=0.6, zorder=2)
        for at, (low_mean, high_mean) in zip(x, intervals(rows, "mean"), strict=True):
            if low_mean is not None and high_mean is not None:
                axes.vlines(at, low_mean, high_mean, color=style.colour, linewidth=_THICK, alpha=0.5, zorder=2.5)
        axes.plot(
            x, rows.values("mean"), color=style.colour, marker=style.marker, markersize=4, linewidth=0.9, zorder=3
        )
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("probability of the final token")
