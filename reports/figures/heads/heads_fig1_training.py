"""Training curves of exit heads (Figure 1 of Accelerating LLM Inference with Self-Supervised Early Exits)."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from exitbench.reports.figures.heads import SETTINGS
from exitbench.reports.frame import Frame
from exitbench.reports.labels import between, percent
from exitbench.reports.plotting.panels import draw_by_step, grid_of_panels, label_y, legend_of_series, title_panel
from exitbench.reports.plotting.style import SeriesStyle, series_styles

TITLE = "How exit heads learn"
CAPTION = (
    "Left: share of training tokens for which an exit head and the model that it is attached to, whose weights are "
    "frozen, have the same most probable token. Right: entropy of the head's distribution, drawn only if it changes "
    "by more than a twentieth (else it is in the CSV file only). Both are means over the steps since the previous "
    "point, of one training each. A head is named by the number of blocks executed before it. After Figure 1 of "
    "Accelerating LLM Inference with Self-Supervised Early Exits, which trains four heads in four settings, and whose "
    f"curves were not published as numbers. {SETTINGS}"
)
EMPTY = "No data yet: run `nox -s paper -- heads`, or train any recipe with exit heads."

_LEVEL = 0.05  # share of the highest value
ACCURACY, ENTROPY = "exit_head_accuracy", "exit_head_entropy_nats"


def finding(frame: Frame) -> str:
    """Return a sentence on the share of training tokens for which trained heads agree with the model."""
    groups = frame.filter(lambda row: row["metric"] == ACCURACY).groups("training", "block")
    last = [{**max(rows.rows, key=lambda row: row["step"]), "head": _name(block)} for (_, block), rows in groups]
    if not last:
        return "Entropy of exit heads while they learn."
    span = between(last, "value", percent, ("head",))
    return f"At the end heads agree with the model in {span} of training tokens."


def plot(frame: Frame) -> Figure:
    """Draw two panels per training: x is the optimisation step; one line per exit head.

    Left, y is the share of tokens equal to the model's; right, the entropy in nats (no panel if it hardly varies).
    Frame: one row per training, metric, block (of the head) and step, with value.
    """
    blocks = frame.distinct("block")
    # paired by index, so that colours follow depth and not the alphabetical order of the names
    styles = dict(zip(map(_name, blocks), series_styles(map(_name, blocks)).values(), strict=True))
    trainings = list(frame.groups("training"))
    entropies = [row["value"] for row in frame.rows if row["metric"] == ENTROPY]
    drawn = [ACCURACY, ENTROPY] if _varies(entropies) else [ACCURACY]
    figure, panels = grid_of_panels(len(drawn) * len(trainings), columns=2 if len(drawn) == 2 else None)
    for place, ((training,), rows) in enumerate(trainings[: len(panels) // len(drawn)]):
        for metric, axes in zip(drawn, panels[len(drawn) * place :], strict=False):
            _panel(axes, rows, metric, styles)
            title_panel(axes, training if metric == ACCURACY else "")
            if metric == ENTROPY:
                axes.set_ylim(0, 1.05 * max(entropies))
                axes.set_ylabel("entropy (nats)")
            else:
                axes.set_ylim(0, 1.02)
                axes.yaxis.set_major_formatter(PercentFormatter(1))
                label_y(axes, "tokens equal to the model's")
    legend_of_series(figure, styles)
    return figure


def _varies(values: Sequence[float]) -> bool:
    """Return whether the values differ by more than 5 % of the largest one, so that their line is not flat."""
    return bool(values) and max(values) - min(values) > _LEVEL * max(values)


def _panel(axes: Axes, frame: Frame, metric: str, styles: Mapping[str, SeriesStyle]) -> None:
    for (block, measured), rows in frame.groups("block", "metric"):
        if measured == metric:
            draw_by_step(axes, rows, styles[_name(block)])


def _name(block: int) -> str:
    return f"after block {block}"
