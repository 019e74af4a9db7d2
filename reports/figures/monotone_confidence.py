"""From which block confidence in the final token only grows: what a rule on increasing confidence relies on."""

from matplotlib.figure import Figure

from exitbench.reports.figures.mee_parts import EMPTY, share_by_block
from exitbench.reports.frame import Frame

__all__ = ["CAPTION", "EMPTY", "ORDER", "TITLE", "plot"]

ORDER = 43
TITLE = "From where confidence in the final token only grows"
CAPTION = (
    "Share of tokens for which the probability of the final token falls at no block after this one: the model's last "
    "word becomes more likely, or stays as likely, with each further block. It is 100 % at the last block by "
    "definition. Falls of any size count. A prediction that is stable need not be monotone, nor the other way round: "
    "compare with the share of tokens that no longer change. The Monotonic Early Exiting paper left its version out."
)


def plot(frame: Frame) -> Figure:
    """Draw one panel a task and one line a model; frame: task, model, block, share (0..1), n."""
    return share_by_block(frame, "tokens that only become surer")
