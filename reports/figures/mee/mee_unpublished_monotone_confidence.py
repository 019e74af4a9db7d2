"""Share of tokens whose confidence in the final token only grows from a block on, as monotone exit rules assume."""

from matplotlib.figure import Figure

from exitbench.reports.figures.mee import PUBLISHED_MODELS, middle_block_rows, share_by_block
from exitbench.reports.frame import Frame
from exitbench.reports.labels import between, percent

TITLE = "From where confidence in the final token only grows"
CAPTION = (
    "Share of tokens for which the probability of the final token falls at no block after this one: the model's last "
    "word becomes more likely, or stays as likely, with each further block. It is 100 % at the last block by "
    "definition. Solid: falls of any size count, also those of rounding; dashed: falls of more than 0.01 in all count. "
    "Bars are 95 % intervals over documents. A prediction that is stable need not be monotone, nor the other way "
    "round: compare with Figure 1. The authors of the Monotonic Early Exiting paper "
    f"made this figure and left it out. {PUBLISHED_MODELS} In theirs the model that was not trained to exit is the "
    "most monotone one, against the paper's conclusion."
)


def finding(frame: Frame) -> str:
    """Return a sentence on the share of tokens whose confidence only grows from the middle block on."""
    half = [row for row in middle_block_rows(frame) if not row["tolerance"]]
    span = between(half, "share", percent, ("model", "task"))
    return f"From halfway through the blocks on {span} of tokens only become surer."


def plot(frame: Frame) -> Figure:
    """Draw one panel per task, two lines per model; frame: share (0..1) by origin, task, model, tolerance and block."""
    return share_by_block(frame, "tokens that only become surer", dashed="tolerance")
