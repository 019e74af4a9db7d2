"""What the trainings of the models minimised."""

from matplotlib.figure import Figure

from exitbench.reports.figures.training_parts import draw_by_step
from exitbench.reports.frame import Frame
from exitbench.reports.panels import grid_of_panels, legend_of_series
from exitbench.reports.style import series_styles

ORDER = 51
TITLE = "Training loss"
CAPTION = (
    "Loss on the training data against the optimisation step, one line a model; each point is a mean over the steps "
    "since the point before. Recipes minimise different losses (of the last block, of all blocks weighted, of exit "
    "heads), so that heights compare within one loss only."
)
EMPTY = "No data yet: run `exitbench train builtin`, or train any recipe."


def plot(frame: Frame) -> Figure:
    """Draw one line a training; frame: value (nats) by training and step."""
    styles = series_styles(frame.distinct("training"))
    figure, (axes,) = grid_of_panels(1, columns=1, legend_entries=len(styles))
    for (training,), rows in frame.groups("training"):
        draw_by_step(axes, rows, styles[training])
    axes.set_ylim(bottom=0)
    axes.set_ylabel("loss [nats]")
    legend_of_series(figure, styles)
    return figure
