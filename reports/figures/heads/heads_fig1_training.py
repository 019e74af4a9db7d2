"""How exit heads learn (Figure 1 of Accelerating LLM Inference with Self-Supervised Early Exits)."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from exitbench.reports.figures.heads.heads_parts import SETTINGS
from exitbench.reports.figures.training.training_parts import draw_by_step
from exitbench.reports.frame import Frame
from exitbench.reports.plotting.panels import grid_of_panels, legend_of_series, title_panel
from exitbench.reports.plotting.style import SeriesStyle, series_styles

TITLE = "How exit heads learn"
CAPTION = (
    "Left: share of training tokens for which an exit head finds the same token most likely as the model that it is "
    "attached to, whose weights are frozen. Right: entropy of the head's distribution. Both are means over the steps "
    "since the point before, of one training each. A head is named by the blocks executed below it. After Figure 1 of "
    "Accelerating LLM Inference with Self-Supervised Early Exits, which trains four heads in four settings, and whose "
    f"curves were not published as numbers. {SETTINGS}"
)
EMPTY = "No data yet: run `nox -s paper -- heads`, or train any recipe with exit heads."

ACCURACY, ENTROPY = "exit_head_accuracy", "exit_head_entropy_nats"


def plot(frame: Frame) -> Figure:
    """Draw two panels a training and one line a head; frame: value by training, metric, block and step."""
    blocks = frame.distinct("block")
    # paired by place, so that colours follow depth and not the spelling of numbers
    styles = dict(zip(map(_name, blocks), series_styles(map(_name, blocks)).values(), strict=True))
    trainings = list(frame.groups("training"))
    figure, panels = grid_of_panels(2 * len(trainings), columns=2)
    highest = max((row["value"] for row in frame.rows if row["metric"] == ENTROPY), default=1)
    for place, ((training,), rows) in enumerate(trainings):
        accuracy, entropy = panels[2 * place : 2 * place + 2]
        title_panel(accuracy, training)
        _panel(accuracy, rows, ACCURACY, styles)
        _panel(entropy, rows, ENTROPY, styles)
        accuracy.set_ylim(0, 1.02)
        accuracy.yaxis.set_major_formatter(PercentFormatter(1))
        accuracy.set_ylabel("tokens as the model's own")
        entropy.set_ylim(0, 1.05 * highest)
        entropy.set_ylabel("entropy [nats]")
    legend_of_series(figure, styles)
    return figure


def _panel(axes: Axes, frame: Frame, metric: str, styles: Mapping[str, SeriesStyle]) -> None:
    for (block, measured), rows in frame.groups("block", "metric"):
        if measured == metric:
            draw_by_step(axes, rows, styles[_name(block)])


def _name(block: int) -> str:
    return f"after block {block}"
