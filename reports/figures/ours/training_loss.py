"""Loss curves of the models' trainings."""

from matplotlib.figure import Figure

from exitbench.reports.frame import Frame
from exitbench.reports.plotting.panels import draw_by_step, grid_of_panels, label_y, legend_of_series, title_panel
from exitbench.reports.plotting.style import series_styles

ORDER = 51
TITLE = "Training loss"
CAPTION = (
    "Loss on the training data against the optimisation step, one panel per objective, because values are comparable "
    "only within one objective. Each point is a mean over the steps since the previous point. A loss that rewards "
    "entropy can be below 0. Each line is one training, so there is no interval."
)
EMPTY = "No data yet: run `exitbench train builtin`, or train any recipe."


def finding(frame: Frame) -> str:
    """Return a sentence on the number of trainings whose loss fell."""
    ends = [(rows.rows[0]["value"], rows.rows[-1]["value"]) for _, rows in frame.groups("loss", "training")]
    fell = sum(last < first for first, last in ends)
    if len(ends) == 1:
        return f"The loss went from {ends[0][0]:.2f} to {ends[0][1]:.2f} nats."
    return f"Of {len(ends)} trainings {fell} end with a lower loss than they began with."


def plot(frame: Frame) -> Figure:
    """Draw one panel per training objective: x is the optimisation step, y the loss in nats; one line per training.

    Frame: one row per loss (objective), training and step, with value.
    """
    styles = series_styles(frame.distinct("training"))
    losses = list(frame.groups("loss"))
    figure, panels = grid_of_panels(len(losses))
    for axes, ((loss,), lines) in zip(panels, losses, strict=False):
        for (training,), rows in lines.groups("training"):
            draw_by_step(axes, rows, styles[training])
        if min(lines.values("value")) > 0:
            axes.set_ylim(bottom=0)
        trainings = lines.distinct("training")
        title_panel(axes, loss, trainings[0] if len(trainings) == 1 else f"{len(trainings)} trainings")
        label_y(axes, "loss (nats)")
    if len(losses) < len(styles):  # else each panel's note names its training
        legend_of_series(figure, styles)
    return figure
