"""What the figures of encoders share: panels a task and model, and what is said where there are none."""

from exitbench.reports.frame import Frame
from exitbench.reports.labels import shorten
from exitbench.reports.plotting.panels import MOST_PANELS

EMPTY = "No data yet: run `exitbench run builtin-encoder`, or any suite with `quality` cells of trained encoders."
LEFT_OUT = (
    "Of many panels those with the most documents are drawn (all: the CSV). Random weights are left out. A setting run "
    "several times is shown once, as it was run beside most others."
)
CONTROLS = ("full", "static", "random", "oracle")
"""Methods that look at no text, or at full depth's answer: no gates."""


def panels_of(frame: Frame, *names: str, most: int = MOST_PANELS) -> list[tuple[str, Frame]]:
    """Return title and rows of each panel, by the values of the columns `names`: at most `most`, of most documents."""
    panels = [(key, rows) for key, rows in frame.groups(*names)]
    kept = sorted(sorted(panels, key=lambda panel: -max(panel[1].values("n")))[:most], key=lambda panel: panel[0])
    return [(" · ".join(shorten(str(part), 30) for part in key), rows) for key, rows in kept]
