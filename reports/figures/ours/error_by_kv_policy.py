"""Propagation of errors by KV policy: the same gate and threshold, run with each policy."""

from collections.abc import Mapping

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import count, extremes, labels, percent, short_name, shorten
from exitbench.reports.plotting.panels import draw_intervals, draw_points, figure_of, title_panel
from exitbench.reports.plotting.style import DOUBLE_INCHES, MUTED, SINGLE_INCHES, SeriesStyle, series_styles

ORDER = 26
TITLE = "Propagation of errors, by KV policy"
CAPTION = (
    "One gate at one threshold under every KV policy it was run with; on each task, the gate with the most policies. "
    "`exact` runs the skipped blocks later (an exact cache): its remaining errors come from the emitted tokens. "
    "`noisy` emits full depth's tokens and only perturbs the cache: its errors come from the cache. The others are "
    "real methods. Hollow and dashed: simulated, a replay over full depth's own pass, in which neither the cache nor "
    "later tokens change. If a curve of real decodes falls below it, errors cause further errors. Top: share of "
    "tokens equal to full depth's by position in the answer (the first 64, at no more than eight positions; markers "
    "are drawn side by side). Below: the same over the whole answer, and the task's metric, with a dotted line at "
    "full depth. Bars are 95 % intervals over documents."
)
EMPTY = (
    "No data yet: run `nox -s bench`, or any suite with `quality` cells of one method under two or more KV policies, "
    "on a model with trained weights."
)

_WORDS = {"exact": "exact (true cache)", "noisy": "noisy (true tokens)", "simulated": "simulated (replay)"}
_ROW_INCHES = (1.9, 1.3, 1.3)
_MOST = 4  # tasks side by side
_SIDE_BY_SIDE = 0.5  # share of the distance between two x positions that the markers of all policies take


def finding(frame: Frame) -> str:
    """Return which KV policies agree most and least with full depth, on the task where they differ most, as text."""
    totals = [row for row in frame.rows if row["position"] is None and row["measure"] == "match"]
    real = Frame(frame.columns, tuple(row for row in totals if row["policy"] != "simulated"))
    if not real.rows:
        return "Only replays were run, in which the cache stays exact."
    ends = [(task, *extremes(rows.rows, "value")) for (task,), rows in real.groups("task")]
    task, worst, best = max(ends, key=lambda end: end[2]["value"] - end[1]["value"])
    if percent(worst["value"]) == percent(best["value"]):
        return f"Agreement is the same under all KV policies: {percent(best['value'])} of full depth's tokens."
    return (
        f"KV policies differ most on {short_name(task)}: {best['policy']} has {percent(best['value'])} of full depth's "
        f"tokens, {worst['policy']} {percent(worst['value'])}."
    )


def plot(frame: Frame) -> Figure:
    """Draw one column of three panels per task, with one style per KV policy.

    Top: x is the position in the answer, y the share of tokens equal to full depth's. Middle: x is that share over the
    whole answer. Bottom: x is the task's metric. In both, y is the policy. Frame: one row per task, policy, measure and
    position (NULL: whole answer).
    """
    styles = series_styles(frame.distinct("policy"))
    tasks = frame.distinct("task")[:_MOST]
    figure = figure_of(sum(_ROW_INCHES), SINGLE_INCHES if len(tasks) == 1 else DOUBLE_INCHES)
    grid = figure.subplots(3, len(tasks), squeeze=False, height_ratios=_ROW_INCHES)
    for task, curve, match, quality in zip(tasks, *grid, strict=True):
        rows = [row for row in frame.rows if row["task"] == task]
        title_panel(curve, task, _gate(rows[0]))
        _curves(curve, Frame(frame.columns, tuple(row for row in rows if row["position"] is not None)), styles)
        totals = [row for row in rows if row["position"] is None]
        _dots(match, [row for row in totals if row["measure"] == "match"], styles)
        match.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        match.set_xlabel("tokens equal to full depth's")
        scored = [row for row in totals if row["measure"] == "quality"]
        _dots(quality, scored, styles)
        if scored:
            quality.set_xlabel(f"{scored[0]['metric']} ({count((row['n'] for row in scored), 'documents')})")
        if scored and scored[0]["full_value"] is not None:
            quality.axvline(scored[0]["full_value"], color=MUTED, linestyle=":", linewidth=1)
        if task == tasks[0]:
            curve.set_ylabel("tokens equal to full depth's")
        else:
            match.set_yticklabels([])
            quality.set_yticklabels([])
    return figure


def _gate(row: Row) -> str:
    """Return model and gate, which all rows of a task share."""
    gate = {**row, "params": row["gate"], "kv_policy": None}
    (name,) = labels([gate], brief=True).values()
    return f"{shorten(row['model'], 14)}, {name}"


def _curves(axes: Axes, frame: Frame, styles: Mapping[str, SeriesStyle]) -> None:
    policies, places = list(styles), frame.distinct("position")
    offset = _SIDE_BY_SIDE * (places[1] - places[0]) / len(policies) if len(places) > 1 else 0
    for (policy,), rows in frame.groups("policy"):
        shift = offset * (policies.index(policy) - (len(policies) - 1) / 2)
        x, y = [position + shift for position in rows.values("position")], rows.values("value")
        intervals = list(zip(rows.values("low"), rows.values("high"), strict=True))
        draw_intervals(axes, x, intervals, styles[policy].colour, along="y")
        draw_points(axes, x, y, styles[policy], simulated=policy == "simulated", connect=True)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_ylim(top=1.03)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_xlabel("position in the answer")


def _dots(axes: Axes, rows: list[Row], styles: Mapping[str, SeriesStyle]) -> None:
    policies = list(styles)
    for row in rows:
        y, style = policies.index(row["policy"]), styles[row["policy"]]
        draw_intervals(axes, [y], [(row["low"], row["high"])], style.colour, along="x")
        face = mpl.rcParams["axes.facecolor"] if row["policy"] == "simulated" else style.colour
        axes.plot(row["value"], y, style.marker, color=style.colour, markerfacecolor=face, zorder=3)
    axes.set_yticks(range(len(policies)), [_WORDS.get(policy, policy) for policy in policies])
    axes.set_ylim(len(policies) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
