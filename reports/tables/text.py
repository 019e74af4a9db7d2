"""The results table for the terminal: aligned, 118 columns at most."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from exitbench.reports import tables
from exitbench.reports.frame import Frame, Row
from exitbench.reports.labels import OTHER_LENGTH, Setting, count, labels, number_format, setting, shorten
from exitbench.reports.registry import discover
from exitbench.reports.tables.columns import BREAKS, marked, written
from exitbench.reports.tables.summary import blocks_run, delta, length_ratio, quality, speedup
from exitbench.results.database.connection import open_database
from exitbench.terminal import number_of, told_apart, visible

_HEADINGS = ("method", "quality [95 %]", "Δ", "blocks run", "speed-up [95 %]", "per token", "length")
_WIDTHS = (34, 20, 6, 11, 20, 9, 6)  # 118 with two spaces between
_INDENT = "    "
_MOST_LINES = 4
"""Of a setting's name, where it need not be longer to be told from others."""
_LEGEND = "\n".join(
    (
        "Δ: to full depth; blocks run: for a token; speed-up: of whole requests, ≈: inside the noise floor (full depth",
        "against itself); per token: of decoding alone; length: tokens of the timed answers over full depth's,",
        f"{OTHER_LENGTH}: more than 5 % off, so that the speed-up is not of early exit alone.",
    )
)
_BREAKS = f"{BREAKS}: the method breaks its contract; its numbers are not to be cited (`exitbench check` says why)."
_NOTHING = "No results yet."


@dataclass(frozen=True)
class _Results:
    """What is printed: rows of real decodes, and how many rows and cells they leave out."""

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
    real = frame.where(lambda row: row["execution"] == "real")
    return _Results(real, labels(real.rows), len(frame.rows) - len(real.rows), failures)


def _blocks(results: _Results) -> list[tuple[str, list[tuple[str, ...]]]]:
    groups = results.real.groups("model", "task", "setting", "metric", "random_weights")
    texts = told_apart([visible(name) for name in results.names.values()], _MOST_LINES * (_WIDTHS[0] - len(_INDENT)))
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
    """The cells of a row; a setting that is too long goes on below itself, so that none is taken for another."""
    numbers = (written(row["speedup_per_token"], "{:.2f}"), length_ratio(row))
    shown = (quality(row), delta(row), blocks_run(row), speedup(row))
    name, *more = wrap(marked(row, names[setting(row)]), _WIDTHS[0], subsequent_indent=_INDENT, break_on_hyphens=False)
    rest = [(line, *[""] * (len(_WIDTHS) - 1)) for line in more]
    return [(name, *(cell.text for cell in shown), *numbers), *rest]


def _aligned(cells: Sequence[str]) -> str:
    first, *others = zip(map(visible, cells), _WIDTHS, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])


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
    """Return every calibration's path as aligned plain text; nothing where there is none.

    Args:
        database: The result database.

    Raises:
        UserError: If it cannot be opened.
    """
    source = next(source for source in discover(tables) if source.name == "calibrations")
    shown = [column for column in source.module.COLUMNS if column.heading not in ("Parameters", "KV policy", "Rule")]
    with open_database(database) as connected:
        rows = Frame.query(connected, source.sql).rows
    if not rows:
        return ""
    lines = [[column.heading for column in shown], *([column.cell(row).text for column in shown] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(shown))]
    aligned = (
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
    return "\n".join([source.module.TITLE, *aligned]) + "\n"
