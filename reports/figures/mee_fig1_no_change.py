"""How early predictions settle (Figure 1 of the Monotonic Early Exiting paper)."""

from matplotlib.figure import Figure

from exitbench.reports.figures.mee_parts import EMPTY, share_by_block
from exitbench.reports.frame import Frame

__all__ = ["CAPTION", "EMPTY", "TITLE", "plot"]

TITLE = "When predictions stop changing"
CAPTION = (
    "Share of tokens whose most likely next token is already the final one and stays so through all later blocks, "
    "measured by a full-depth pass over the model's own output. A curve that rises early is room for early exit; "
    "it reaches 100 % at the last block by definition. Figure 1 of the Monotonic Early Exiting paper, but over whole "
    "tokens, all blocks and all probabilities: the published code compares first characters, leaves the first block "
    "out and sees only tokens with a probability above 0.1."
)


def plot(frame: Frame) -> Figure:
    """Draw one panel a task and one line a model; frame: task, model, block, share (0..1), n."""
    return share_by_block(frame, "tokens that no longer change")
