"""Share of tokens whose confidence in the final token only grows from a block on, as monotone exit rules assume."""

from matplotlib.figure import Figure

from exitbench.reports.figures.mee import PUBLISHED_MODELS, middle_block_rows, share_by_block
from exitbench.reports.frame import Frame
from exitbench.reports.labels import between, percent

TITLE = "Block from which confidence in the final token only grows"
CAPTION = (
    "Share of tokens for which the probability of the final token falls at no block after this one: with each further "
    "block it grows or stays the same. It is 100 % at the last block by definition. Solid: decreases of any size "
    "count, also those of rounding; dashed: decreases of more than 0.01 in total count. Bars are 95 % intervals over "
    "documents. A stable prediction need not be monotone, nor a monotone one stable: compare with Figure 1. The "
    f"authors of the Monotonic Early Exiting paper made this figure and did not publish it. {PUBLISHED_MODELS} In "
    "theirs, the model that was not trained to exit is the most monotone one, against the paper's conclusion."
)


def finding(frame: Frame) -> str:
    """Return a sentence on the share of tokens whose confidence only grows from the middle block on."""
    half = [row for row in middle_block_rows(frame) if not row["tolerance"]]
    span = between(half, "share", percent, ("model", "task"))
    return f"From halfway through the blocks, confidence only grows for {span} of tokens."


def plot(frame: Frame) -> Figure:
    """Draw one panel per task: x is the block, y the share of tokens (0..1) whose confidence only grows from there on.

    Two lines per model; the dashed one tolerates small decreases. Frame: one row per task, model, tolerance and block,
    with share; the rows of published curves have no task.
    """
    return share_by_block(frame, "tokens with only growing confidence", dashed="tolerance")
