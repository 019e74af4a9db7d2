"""Ideal exits of first and later subwords (Figure 11 of the natural-capability paper)."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from exitbench.reports.figures.natcap import TRAINED
from exitbench.reports.frame import Frame
from exitbench.reports.labels import count, shorten
from exitbench.reports.plotting.panels import draw_intervals, figure_of, interval_around, legend_of_series, title_panel
from exitbench.reports.plotting.style import series_styles

TITLE = "First and later pieces of words"
CAPTION = (
    "Left: mean ideal exit (the first block whose most probable token is that of the last block) of tokens that begin "
    "a word and of tokens that continue one; words are recognized by the spaces that the tokenizer marks. Bars are 95 "
    "% intervals over documents. Right: share of tokens that continue a word; the paper reports about 12 % in "
    f"English. Tokens that are not text are excluded. {TRAINED} After Figure 11 of Early Exit Is a Natural Capability, "
    "which has ten directions of translation."
)
EMPTY = (
    "Not measured: no probed model has a tokenizer that splits words (the built-in one does not). Run a suite with "
    "`probe` cells of a model that does, such as `exitbench run mee-first-question`."
)

_LINE_INCHES = 0.4
_OFFSET = 0.13


def finding(frame: Frame) -> str:
    """Return a sentence on how many blocks later or earlier non-initial subwords exit than initial ones, on average."""
    differences = []
    for _, rows in frame.groups("task", "series"):
        parts = {row["part"].split()[0]: row["ideal_exit"] for row in rows.rows}
        if {"first", "later"} <= parts.keys():
            differences.append(parts["later"] - parts["first"])
    if not differences:
        return "Mean ideal exit of tokens that begin a word."
    ends = " to ".join(dict.fromkeys(f"{difference:+.1f}" for difference in (min(differences), max(differences))))
    return f"Later pieces of words have a mean ideal exit {ends} blocks from that of first pieces."


def plot(frame: Frame) -> Figure:
    """Draw two panels: y is the task and model, one row each.

    Left, x is the mean ideal exit in blocks of first and of later pieces of words; right, the share (0..1) of later
    pieces. Frame: one row per task, model (series) and part, with ideal_exit and share.
    """
    styles = series_styles(frame.distinct("part"))
    lines = sorted({(row["task"], row["series"]) for row in frame.rows}, reverse=True)
    figure = figure_of(_LINE_INCHES * len(lines) + 1.0)
    exits, shares = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for part, style in styles.items():
        shift = _OFFSET if part.startswith("first") else -_OFFSET
        rows = [row for row in frame.rows if row["part"] == part]
        places = [lines.index((row["task"], row["series"])) + shift for row in rows]
        x = [row["ideal_exit"] for row in rows]
        intervals = [interval_around(row["ideal_exit"], row["half_width"]) for row in rows]
        draw_intervals(exits, places, intervals, style.colour, along="x")
        exits.plot(x, places, color=style.colour, marker=style.marker, linestyle="none")
        if part.startswith("later"):
            middles = [place - shift for place in places]
            shares.barh(middles, [row["share"] for row in rows], height=0.5, color=style.colour)
    exits.set_yticks(range(len(lines)), [f"{shorten(task, 16)} · {shorten(series, 26)}" for task, series in lines])
    exits.set_ylim(-0.6, len(lines) - 0.4)
    _axes(exits, shares, max(frame.values("blocks")))
    counts = [sum(row["n"] for row in rows.rows) for _, rows in frame.groups("task", "series")]
    title_panel(shares, "", count(counts, "tokens"))
    legend_of_series(figure, styles)
    return figure


def _axes(exits: Axes, shares: Axes, blocks: int) -> None:
    exits.set_xlim(0.8, blocks + 0.2)
    exits.xaxis.set_major_locator(MaxNLocator(integer=True))
    exits.set_xlabel("ideal exit (blocks executed)")
    shares.set_xlim(0, 1)
    shares.xaxis.set_major_formatter(PercentFormatter(1))
    shares.set_xlabel("tokens that continue a word")
