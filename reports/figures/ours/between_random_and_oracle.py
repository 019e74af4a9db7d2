"""Position of each method between random exits (0) and an oracle (1) at the method's depth."""

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import count
from exitbench.reports.plotting.panels import legend_of_series
from exitbench.reports.plotting.setting_grid import Measure, ModelLines, draw_measures, height_of, setting_grid
from exitbench.reports.plotting.style import MUTED, SeriesStyle, series_styles

ORDER = 22
TITLE = "Between random exits and the oracle"
CAPTION = (
    "Left: share of full depth's tokens that each setting has at the same position. The gray line leads from random "
    "exits (bar) at the same mean exit layer to the oracle (triangle), which knows full depth's token and exits at "
    "the first block that agrees. Right: position of the setting on this line, if the line is at least 5 points long: "
    "0 is as good as random exits, below 0 is worse, 100 % is the oracle. Random exits were run at a few mean exit "
    "layers and are interpolated between them, and to full depth. A dotted line marks settings with a smaller mean "
    "exit layer than any random run; they are compared with the shallowest one. The oracle is at its own depth, not "
    "the setting's: more blocks would not change its answer. Bars are 95 % intervals over documents; the uncertainty "
    "of random and oracle is not included."
)
EMPTY = (
    "No data yet: run `nox -s bench`, or any suite with `quality` cells of `random`, `oracle` and other methods on "
    "one model with trained weights."
)

_MEASURES = (
    Measure("tokens equal to full depth's", "token_match", "match_low", "match_high"),
    Measure("position from random to oracle", "share", "share_low", "share_high"),
)
_FARTHEST = 1.5  # larger shares are drawn at the edge


def finding(frame: Frame) -> str:
    """Return a sentence on how many settings agree with full depth more, and how many less, than random exits do."""
    rows = [row for row in frame.rows if row["share_low"] is not None]
    better, worse = sum(row["share_low"] > 0 for row in rows), sum(row["share_high"] < 0 for row in rows)
    return (
        f"Of {len(rows)} settings (each task counts), {better} agree with full depth more than random exits do, by "
        f"their intervals, and {worse} less."
    )


def plot(frame: Frame) -> Figure:
    """Draw two panels per model: y is the setting, one row each; one marker per task.

    Left, x is the share of tokens equal to full depth's (0..1). Right, x is where this share lies between that of
    random exits (0) and that of the oracle (1). Frame: one row per task and setting, with token_match (left), share
    (right), random_match and oracle_match.
    """
    styles = series_styles(frame.distinct("task"))
    clipped = Frame(frame.columns, tuple({**row, **_clipped(row)} for row in frame.rows))
    headings = [measure.heading for measure in _MEASURES]
    figure, models = setting_grid(clipped, headings)
    for model in models:
        _draw_random_to_oracle(model, styles)
        draw_measures(model, _MEASURES, styles)
        for at in (0, 1):
            model.panels[1].axvline(at, color=MUTED, linewidth=0.8)
        model.panels[1].set_xlim(-_FARTHEST - 0.1, _FARTHEST + 0.1)
        model.panels[1].set_xticks((-1, 0, 1))
    for axes in models[-1].panels:
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    models[-1].panels[0].set_xlabel(count(frame.values("n"), "documents"))
    models[-1].panels[1].set_xlabel("0: random exits, 100 %: oracle")
    entry = Line2D([], [], color=MUTED, marker=">", markersize=4, label="random (bar) to oracle")
    legend_of_series(figure, styles, [entry])
    return figure


def _draw_random_to_oracle(model: ModelLines, styles: dict[str, SeriesStyle]) -> None:
    axes = model.panels[0]
    for row in model.rows.rows:
        y = height_of(model, row, list(styles))
        ends = [row["random_match"], row["oracle_match"]]
        axes.plot(ends, [y, y], color=MUTED, linewidth=0.8, linestyle=":" if row["shallower"] else "-", zorder=1.5)
        axes.plot(ends[0], y, "|", color=MUTED, markersize=4, zorder=1.5)
        axes.plot(ends[1], y, ">", color=MUTED, markersize=3, zorder=1.5)


def _clipped(row: Row) -> Row:
    """Return the columns share, share_low and share_high of a row, clipped to the axis."""
    shares = {name: row[name] for name in ("share", "share_low", "share_high")}
    return {name: None if at is None else min(_FARTHEST, max(-_FARTHEST, at)) for name, at in shares.items()}
