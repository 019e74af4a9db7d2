"""Share of settled predictions by block (Figure 1 of the Monotonic Early Exiting paper and of its blog)."""

from matplotlib.figure import Figure

from exitbench.reports.figures.mee import PUBLISHED_MODELS, middle_block_rows, share_by_block
from exitbench.reports.frame import Frame
from exitbench.reports.labels import between, percent

TITLE = "When predictions stop changing"
CAPTION = (
    "Share of tokens whose most probable token is already the final one and stays so through all later blocks, "
    "measured by a full-depth pass over the model's own output. Bars are 95 % intervals over documents. A curve that "
    "rises early leaves room for early exit; it reaches 100 % at the last block by definition. Figure 1 of the "
    f"Monotonic Early Exiting paper. {PUBLISHED_MODELS} These curves omit the first block and end below 100 %: the "
    "published code compares only the first characters of tokens, and only tokens with a probability above 0.1. Ours "
    "compares whole tokens at all blocks and all probabilities."
)


def finding(frame: Frame) -> str:
    """Return a sentence on the share of tokens whose most probable token no longer changes after the middle block."""
    half = middle_block_rows(frame)
    return (
        f"Halfway through the blocks {between(half, 'share', percent, ('model', 'task'))} of tokens no longer change."
    )


def plot(frame: Frame) -> Figure:
    """Draw one panel per task: x is the block, y the share of tokens (0..1) that are settled there; one line per model.

    The argmax of a settled token no longer changes. Frame: one row per task, model and block, with share; the rows of
    published curves have no task.
    """
    return share_by_block(frame, "tokens that no longer change")
