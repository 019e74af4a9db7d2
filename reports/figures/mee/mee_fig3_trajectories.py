"""Probabilities of one token's candidates by block, for each model (Figure 3 of the Monotonic Early Exiting paper)."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from exitbench.reports.figures.mee import block_axis
from exitbench.reports.figures.natcap import written_token
from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import shorten
from exitbench.reports.plotting.panels import grid_of_panels, title_panel
from exitbench.reports.plotting.style import MUTED, SeriesStyle, series_styles

TITLE = "Candidates for a late token at each block"
CAPTION = (
    "One token per model: of the tokens whose final prediction becomes the most probable at the latest block, the one "
    "with the highest probability at the last block. Models give different answers, so the token differs between "
    "models. Lines are candidates, spelled as in the tokenizer (by id if the spelling was not recorded): the final "
    "token at every block, and others where they are among the three most probable with a probability above 0.1 "
    "(dotted); all but the seven most probable are gray. A single token has no interval. After Figure 3 of the "
    "Monotonic Early Exiting paper, whose values were not published."
)

_LIKELY = 0.1
_NAMED = 7  # candidates in addition to the final one; more would fill the legend
_UNNAMED = SeriesStyle(MUTED, ".")
_NAME_WIDTH = 12


def finding(frame: Frame) -> str:
    """Return a sentence on the block at which full depth's token becomes the most likely, for the tokens shown."""
    layers = frame.distinct("first_match")
    last = "" if len(layers) == 1 else f" to {layers[-1]}"
    return f"Examples: late tokens, whose final word becomes the most likely at block {layers[0]}{last} only."


def plot(frame: Frame) -> Figure:
    """Draw one panel per model: x is the block, y the probability; one line per candidate token.

    Frame: one row per model, candidate_id (token id) and block, with probability; each model's first row is of the
    token that full depth predicts.
    """
    models = list(frame.groups("model"))
    figure, panels = grid_of_panels(len(models), columns=2)
    for axes, ((model,), rows) in zip(panels, models, strict=False):
        _panel(axes, rows)
        title_panel(axes, model, _token(rows), note_below=True)
    return figure


def _panel(axes: Axes, frame: Frame) -> None:
    final = frame.rows[0]["candidate_id"]
    names = {row["candidate_id"]: _name(row) for row in frame.rows}
    by_block: dict[int, dict[int, float]] = {}
    for row in frame.rows:
        by_block.setdefault(row["candidate_id"], {})[row["block"]] = row["probability"]
    ranked = sorted((key for key in by_block if key != final), key=lambda key: -max(by_block[key].values()))
    named = [final, *(candidate for candidate in by_block if candidate in ranked[:_NAMED])]
    styles = series_styles(map(str, named)).values()
    for place, candidate in enumerate(ranked[_NAMED:]):
        _line(axes, by_block[candidate], _UNNAMED, "others" if place == 0 else "_")
    for candidate, style in zip(named, styles, strict=True):
        _line(axes, by_block[candidate], style, names[candidate] + (", final" if candidate == final else ""))
    axes.axhline(_LIKELY, color=MUTED, linestyle=":", linewidth=0.8)
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("probability")
    block_axis(axes, max(frame.values("block")))
    lines, texts = axes.get_legend_handles_labels()
    entries = sorted(zip(texts, lines, strict=True), key=lambda entry: entry[0] == "others")
    axes.legend(
        handles=[line for _, line in entries],
        title="token" if frame.rows[0]["candidate"] is not None else "token id",
        loc="upper left",
        bbox_to_anchor=(1, 1),
        borderaxespad=0,
        handlelength=1.6,
    )


def _line(axes: Axes, by_block: dict[int, float], style: SeriesStyle, label: str) -> None:
    blocks = range(min(by_block), max(by_block) + 1)
    # the line has a gap at blocks where the candidate was not likely
    values = [by_block.get(block, float("nan")) for block in blocks]
    axes.plot(blocks, values, color=style.colour, marker=style.marker, label=label)


def _name(row: Row) -> str:
    """Return the candidate's label; matplotlib leaves out labels that begin with _, so a space is put in front."""
    name = written_token(row["candidate"], row["candidate_id"], _NAME_WIDTH)
    return f" {name}" if name.startswith("_") else name


def _token(frame: Frame) -> str:
    row = frame.rows[0]
    kind = f" ({row['token_kind']})" if row["token_kind"] else ""
    return f"{shorten(row['task'], 16)}, {shorten(row['doc_key'], 18)}, token {row['position']}{kind}"
