"""What the figures of choices share: their panels, and the lines that join a method's thresholds."""

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes

from exitbench.reports.frame import Frame
from exitbench.reports.labels import is_sweep
from exitbench.reports.plotting.panels import MOST_PANELS
from exitbench.reports.plotting.style import SeriesStyle

LEFT_OUT = (  # MMLU alone has 57 subjects
    "Of many pairs of model and task those with the most documents are drawn (all: the CSV). "
    "Models with random weights are left out."
)
NO_CHOICES = (
    "No data yet: run `exitbench run lm-eval --data-dir DIR`, or any suite with `quality` cells of multiple-choice "
    'tasks (`task = "lm-eval:NAME"`) and of models with trained weights.'
)

Panel = tuple[tuple[str, str, str], Frame]  # (task, model, setting) and its rows


def panels_of(frame: Frame, most: int = MOST_PANELS) -> list[Panel]:
    """Return the rows of each task, model and setting, in this order: at most `most`, those of most documents."""
    panels: list[Panel] = [((key[0], key[1], key[2]), rows) for key, rows in frame.groups("task", "model", "setting")]
    kept = sorted(panels, key=lambda panel: -max(panel[1].values("n")))[:most]
    return sorted(kept, key=lambda panel: panel[0])


def rows_of(panels: Sequence[Panel], columns: Sequence[str]) -> Frame:
    """Return the rows of all panels as one frame."""
    return Frame(tuple(columns), tuple(row for _, rows in panels for row in rows.rows))


def lines_of(frame: Frame) -> Iterator[Frame]:
    """Yield one method's rows that a line joins: settings that differ in one parameter, else in the threshold alone."""
    if is_sweep(frame.rows):
        yield frame
    else:
        yield from (rows for _, rows in frame.groups("line"))


def join(axes: Axes, x: Sequence[float], y: Sequence[float], style: SeriesStyle, *, simulated: bool) -> None:
    """Join points in their order, dashed where they are simulated."""
    axes.plot(x, y, linestyle="--" if simulated else "-", linewidth=0.9, color=style.colour, zorder=2)
