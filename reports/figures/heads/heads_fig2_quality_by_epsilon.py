"""Quality by epsilon (Figure 2 of Accelerating LLM Inference with Self-Supervised Early Exits)."""

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from exitbench.reports.figures.heads import SETTINGS, by_epsilon
from exitbench.reports.frame import Frame
from exitbench.reports.labels import between, percent
from exitbench.reports.plotting.style import MUTED

TITLE = "Quality of exit heads by epsilon"
CAPTION = (
    "The task's metric against epsilon. Each head's threshold is set on the train split so that a share epsilon of "
    "the tokens above it agree with the model's most probable token. This is not a guarantee, least of all on other "
    "documents. Bars are 95 % intervals over documents; dotted: full depth. After Figure 2 of Accelerating LLM "
    "Inference with Self-Supervised Early Exits, whose panels are of MMLU, Winogrande and HellaSwag by Phi-2 (2.7B "
    "parameters); its curves were not published as numbers. Suite `smollm2-heads` has these tasks with a real model, "
    "and `lm-eval` with a small one that was trained on image captions; suite `heads` has generated answers. The "
    "paper's Table 1 lists prompts, which are not stored in a result database, so there is no such table here. "
    f"{SETTINGS}"
)


def finding(frame: Frame) -> str:
    """Return a sentence on the share of full depth's quality kept at the lowest and the highest epsilon."""
    rows = [{**row, "asked": f"epsilon {row['epsilon']:g}"} for row in frame.rows if row["kept"] is not None]
    if not rows:
        return "Quality by epsilon; full depth was not run, or scores nothing."
    span = between(rows, "kept", percent, ("series", "task", "asked"))
    return f"Exit heads keep {span} of full depth's quality."


def plot(frame: Frame) -> Figure:
    """Draw one panel per task: x is epsilon, y the task's metric; one line per series, a horizontal one at full depth.

    Frame: one row per task, setting, series (model or varied parameter) and epsilon, with value and full_value.
    """
    figure, panels = by_epsilon(frame, [Line2D([], [], color=MUTED, linestyle=":", label="full depth")])
    for axes, rows in panels:
        for value in sorted({value for value in rows.values("full_value") if value is not None}):
            axes.axhline(value, color=MUTED, linestyle=":", linewidth=1)
        axes.set_ylabel(rows.rows[0]["metric"])
        axes.set_ylim(bottom=0)
    return figure
