"""Results for the terminal: the table, aligned in 118 columns, and the sentences printed at the end of a run.

The sentences are the recommendations on the cards of the report. While a run is in progress, they name the best
settings so far.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from exitbench.reports import tables
from exitbench.reports.frame import Frame, Row
from exitbench.reports.front.cards import DEFAULT_PERCENT, Card, Recommendation, cards, is_method, verdict
from exitbench.reports.labels import (
    OTHER_LENGTH,
    Setting,
    count,
    label_in_sentence,
    labels,
    number_format,
    setting,
    shorten,
)
from exitbench.reports.registry import discover
from exitbench.reports.tables.columns import BREAKS, format_number, marked
from exitbench.reports.tables.summary import blocks_run, delta, length_ratio, quality, speedup
from exitbench.results.database.connection import Database, open_database
from exitbench.terminal import abbreviate_uniquely, number_of, visible

_HEADINGS = ("method", "quality [95 %]", "Δ", "blocks run", "speed-up [95 %]", "per token", "length")
_WIDTHS = (34, 20, 6, 11, 20, 9, 6)  # 118 including two spaces between columns
_INDENT = "    "
_MOST_NAME_LINES = 4
"""Maximum number of lines of a setting's name, unless it needs more to be unique."""
_LEGEND = "\n".join(
    (
        "Δ: to full depth; blocks run: per token; speed-up: of whole requests, ≈: within the noise floor (full depth",
        "against itself); per token: of decoding alone; length: tokens of the timed answers over full depth's,",
        f"{OTHER_LENGTH}: more than 5 % different, so the speed-up is not due to early exit alone.",
    )
)
_BREAKS = f"{BREAKS}: the method breaks its contract; do not cite its numbers (`exitbench check` gives the reasons)."
_NOTHING = "No results yet."


@dataclass(frozen=True)
class _Results:
    """Results to print: result rows of real decodes, and the numbers of simulated settings and of failed cells."""

    real: Frame
    names: dict[Setting, str]
    simulated: int
    failures: int


def summary_text(database: Path) -> str:
    """Return the results of real decodes as aligned plain text, no line over 118 columns.

    Args:
        database: The result database.

    Raises:
        UserError: If it cannot be opened.
    """
    results = _read(database)
    blocks = [
        "\n".join([title, *(_aligned(cells) for cells in (_HEADINGS, *lines))]) for title, lines in _blocks(results)
    ]
    return "\n\n".join([*blocks, *_footer(results)]) + "\n"


def _read(database: Path) -> _Results:
    sql = next(source.sql for source in discover(tables) if source.name == "summary")
    with open_database(database) as connected:
        frame = Frame.query(connected, sql)
        failures = Frame.query(connected, "SELECT count(*) AS n FROM failures").values("n")[0]
    real = frame.filter(lambda row: row["execution"] == "real")
    return _Results(real, labels(real.rows), len(frame.rows) - len(real.rows), failures)


def _blocks(results: _Results) -> list[tuple[str, list[tuple[str, ...]]]]:
    groups = results.real.groups("model", "task", "setting", "metric", "random_weights")
    texts = abbreviate_uniquely(
        [visible(name) for name in results.names.values()], _MOST_NAME_LINES * (_WIDTHS[0] - len(_INDENT))
    )
    names = dict(zip(results.names, texts, strict=True))
    return [(_title(keys, rows), [line for row in rows.rows for line in _lines(row, names)]) for keys, rows in groups]


def _title(keys: tuple[Any, ...], rows: Frame) -> str:
    model, task, setting, metric, random_weights = keys
    marks = ", random weights" if random_weights else ""
    counts = (count(rows.values("n"), "documents"), count(rows.values("timed_documents"), "timed"))
    documents = ", ".join(filter(None, counts))
    title = shorten(visible(f"{model} on {task} ({setting}): {metric}, {documents}{marks}"), 118)
    notes = dict.fromkeys(note for row in rows.rows if (note := number_format(row)) is not None)
    return "\n".join([title, *(shorten(visible(note), 118) for note in notes)])


def _lines(row: Row, names: dict[Setting, str]) -> list[tuple[str, ...]]:
    """Return a result row as one or more lines of cells: a setting's long name is wrapped, to stay unambiguous."""
    numbers = (format_number(row["speedup_per_token"], "{:.2f}"), length_ratio(row))
    cells = (quality(row), delta(row), blocks_run(row), speedup(row))
    name, *more = wrap(marked(row, names[setting(row)]), _WIDTHS[0], subsequent_indent=_INDENT, break_on_hyphens=False)
    continued = [(line, *[""] * (len(_WIDTHS) - 1)) for line in more]
    return [(name, *(cell.text for cell in cells), *numbers), *continued]


def _aligned(cells: Sequence[str]) -> str:
    first, *remaining = zip(map(visible, cells), _WIDTHS, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in remaining)])


def _footer(results: _Results) -> list[str]:
    lines = [_LEGEND if results.real.rows else _NOTHING]
    if any(row["conforms"] is False for row in results.real.rows):
        lines.append(_BREAKS)
    if results.simulated:
        lines.append(f"In the report only: {number_of(results.simulated, 'simulated setting')} (replays).")
    if results.failures:
        lines.append(
            f"{number_of(results.failures, 'cell')} did not finish: see the report, or `SELECT * FROM failures`."
        )
    return ["\n".join(lines)]


def calibration_text(database: Path) -> str:
    """Return every threshold that calibrations tested, with its verdict, as aligned plain text; empty without any.

    Args:
        database: The result database.

    Raises:
        UserError: If it cannot be opened.
    """
    source = next(source for source in discover(tables) if source.name == "calibrations")
    columns = [column for column in source.module.COLUMNS if column.heading not in ("Parameters", "KV policy", "Rule")]
    with open_database(database) as connected:
        rows = Frame.query(connected, source.sql).rows
    if not rows:
        return ""
    lines = [[column.heading for column in columns], *([column.cell(row).text for column in columns] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    aligned = (
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
    return "\n".join([source.module.TITLE, *aligned]) + "\n"


MOST_LINES: Final = 5
_SETTINGS: Final = "SELECT DISTINCT setting_id FROM cell WHERE list_contains(?::VARCHAR[], cell_id)"


def recommendation_lines(database: Database, cell_ids: Collection[str] | None = None) -> list[str]:
    """Return one sentence per model and task: the recommended setting with its gain and loss, or why there is none.

    After `MOST_LINES` sentences, one line says how many more there are.

    Args:
        database: An open database.
        cell_ids: Ids of cells, to cover only their models and tasks, with all comparable runs; None for all.
    """
    rows = _result_rows(database, cell_ids)
    lines = [*_compared(cards(rows), labels(rows), DEFAULT_PERCENT), *_not_compared(rows)]
    more = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], *([f"… and {more} more: see the report"] if more > 0 else [])]


def conclusion(database: Database, cell_ids: Collection[str], percent: float) -> tuple[str, str | None]:
    """Return the recommendation for one model and task at an allowed loss.

    Args:
        database: An open database.
        cell_ids: Cells of the model and task.
        percent: Allowed loss, in percent of full depth's quality.

    Returns:
        A paragraph; and the id of the cell with the recommended setting, confirmed at this allowed loss or at the next
        larger one, None if no timed setting is confirmed.
    """
    rows = _result_rows(database, cell_ids)
    built = cards(rows)
    (line,) = [*_compared(built, labels(rows), percent), *_not_compared(rows)]
    timed = [
        recommendation.headline
        for card in built
        for recommendation in (card.at(percent), *_larger_losses(card, percent))
    ]
    use = next((row["cell_id"] for row in timed if row is not None and row["speedup"] is not None), None)
    return line, use


def best_so_far(database: Database, cell_ids: Collection[str] | None = None) -> list[str]:
    """Return one short line per model and task with a timed setting that is recommended at the default allowed loss.

    `cell_ids` limits them to the models and tasks of these cells; None for all.
    """
    if not database.query("FROM metric WHERE metric = 'speedup' LIMIT 1").num_rows:
        return []  # a run asks after every group of cells, and most end before the first timing
    rows = _result_rows(database, cell_ids)
    names = labels(rows)
    return [
        f"{_subject(card.full)}: {_name(head, names)}, {head['confirming_speedup']:.2f}x as fast as full depth, "
        f"{head['confirming_delta']:+.1f} {visible(head['metric'])}"
        for card in cards(rows)
        if (head := card.at(DEFAULT_PERCENT).headline) is not None and head["speedup"] is not None
    ]


def _result_rows(database: Database, cell_ids: Collection[str] | None) -> tuple[Row, ...]:
    """Return the result rows of all runs comparable with the cells `cell_ids`, also of other suites; None: all rows."""
    (summary,) = (source for source in discover(tables) if source.name == "summary")
    rows = Frame.query(database, summary.sql).rows
    if cell_ids is None:
        return rows
    settings = set(database.query(_SETTINGS, [list(cell_ids)])["setting_id"].to_pylist())
    return tuple(row for row in rows if row["setting_id"] in settings)


def _compared(built: tuple[Card, ...], names: dict[Setting, str], percent: float) -> Iterator[str]:
    for card in built:
        recommendation = card.at(percent)
        reason = verdict(card, recommendation, lambda row: _name(row, names))
        if (head := recommendation.headline) is None:
            allowed = f"full depth, at an allowed loss of {percent:g} %"
            yield f"{_subject(card.full)}: {allowed}. {reason}{_next_allowed_loss(card, names, percent)}"
        elif head["speedup"] is None:
            blocks = f"{head['mean_blocks_run']:.2f} of {head['blocks']} blocks"
            yield f"{_subject(card.full)}: {_name(head, names)} runs {blocks}. {reason}"
        else:
            yield f"{_subject(card.full)}: {_gain(head, names)}. {reason}"


def _larger_losses(card: Card, percent: float) -> list[Recommendation]:
    return [recommendation for recommendation in card.recommendations if recommendation.from_percent > percent]


def _next_allowed_loss(card: Card, names: dict[Setting, str], percent: float) -> str:
    """Return a sentence on the next allowed loss above `percent` for which a timed setting is recommended.

    Empty if there is none. A recommended setting was confirmed on documents that were not used to choose it.
    """
    for recommendation in _larger_losses(card, percent):
        if recommendation.headline is not None and recommendation.headline["speedup"] is not None:
            return f" At {recommendation.from_percent:.1f} %: {_gain(recommendation.headline, names)}."
    return ""


def _gain(row: Row, names: dict[Setting, str]) -> str:
    speed = f"[{row['confirming_speedup_low']:.2f}, {row['confirming_speedup_high']:.2f}]"
    quality = f"[{row['confirming_delta_low']:+.1f}, {row['confirming_delta_high']:+.1f}]"
    return (
        f"{_name(row, names)} is {row['confirming_speedup']:.2f}x {speed} as fast as full depth and changes "
        f"{visible(row['metric'])} by {row['confirming_delta']:+.1f} {quality}, at most "
        f"{row['confirming_loss_high_percent']:.1f} % worse"
    )


def _not_compared(rows: tuple[Row, ...]) -> Iterator[str]:
    """Yield one sentence per model and task without a recommendation card, with the reason."""
    carded = {(card.full["model"], card.full["task"]) for card in cards(rows)}
    for pair in sorted({(row["model"], row["task"]) for row in rows} - carded):
        pair_rows = [row for row in rows if (row["model"], row["task"]) == pair]
        yield f"{_subject(pair_rows[0])}: {_why_not(pair_rows)}"


def _why_not(rows: list[Row]) -> str:
    if all(row["random_weights"] for row in rows):
        return "the weights are random, so nothing is recommended."
    if not any(row["is_full_depth"] for row in rows):
        return "full depth was not run, so nothing is compared with it."
    if not any(map(is_method, rows)):
        return "only full depth and baselines were run: nothing to recommend."
    metric = visible(rows[0]["metric"] or "the metric")
    return (
        f"{metric} has no scale or no scores of full depth to bound a loss by; `exitbench compare` tests differences."
    )


def _subject(row: Row) -> str:
    """Return a row's task and model as text; except for float32, add how the number format changes full depth."""
    note = number_format(row)
    return f"{visible(row['task'])} ({visible(row['model'])}{'' if note is None else f'; {note}'})"


def _name(row: Row, names: dict[Setting, str]) -> str:
    return visible(label_in_sentence(names.get(setting(row)) or str(row["method"])))
