"""What epsilon gains (Figure 3 of Accelerating LLM Inference with Self-Supervised Early Exits)."""

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from exitbench.reports.figures.heads_parts import EMPTY, SETTINGS, by_epsilon
from exitbench.reports.frame import Frame
from exitbench.reports.style import MUTED

__all__ = ["CAPTION", "EMPTY", "TITLE", "plot"]

TITLE = "Speed-up of exit heads by epsilon"
CAPTION = (
    "Measured speed-up, a ratio of wall times to full depth of the same checkpoint in the same run, against epsilon. "
    "Bars are 95 % intervals over documents. The grey band is full depth timed against itself (the A/A noise floor): "
    "what touches it shows no speed-up. After Figure 3 of Accelerating LLM Inference with Self-Supervised Early "
    "Exits, whose times are of code without a cache of keys and values, with neither warm-up nor synchronisation, and "
    f"were not published as numbers. {SETTINGS}"
)


def plot(frame: Frame) -> Figure:
    """Draw one panel a task and one line a series; frame: value (a ratio) by epsilon, aa_low, aa_high."""
    figure, panels = by_epsilon(frame, [Patch(facecolor=MUTED, alpha=0.25, label="A/A noise floor")])
    for axes, rows in panels:
        lows = [low for low in rows.values("aa_low") if low is not None]
        highs = [high for high in rows.values("aa_high") if high is not None]
        if lows and highs:
            axes.axhspan(min(lows), max(highs), color=MUTED, alpha=0.25, linewidth=0)
        axes.axhline(1, color=MUTED, linewidth=0.8)
        axes.set_ylabel("measured speed-up")
        axes.set_ylim(bottom=0)
    return figure
