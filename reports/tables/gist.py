"""What a run says at its end, and of the best so far while it runs: the verdicts of the page's cards, in sentences."""

from collections.abc import Collection, Iterator
from typing import Final

from exitbench.reports import tables
from exitbench.reports.frame import Frame, Row
from exitbench.reports.front.cards import DEFAULT_PERCENT, Answer, Card, cards, is_method, verdict
from exitbench.reports.labels import Setting, labels, number_format, setting, spoken
from exitbench.reports.registry import discover
from exitbench.results.database.connection import Database
from exitbench.terminal import visible

MOST_LINES: Final = 5
_SETTINGS: Final = "SELECT DISTINCT setting_id FROM cell WHERE list_contains(?::VARCHAR[], cell_id)"


def gist_lines(database: Database, cell_ids: Collection[str] | None = None) -> list[str]:
    """Return a sentence per model and task, `MOST_LINES` at most: what to use, what it gains and costs, or why not.

    Args:
        database: Open.
        cell_ids: Cells whose models and tasks are told of, with all runs that compare with them; None for all.
    """
    rows = _read(database, cell_ids)
    lines = [*_compared(cards(rows), labels(rows), DEFAULT_PERCENT), *_not_compared(rows)]
    more = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], *([f"… and {more} more: see the report"] if more > 0 else [])]


def conclusion(database: Database, cell_ids: Collection[str], percent: float) -> tuple[str, str | None]:
    """Return what is known of one model and task where a loss is allowed.

    Args:
        database: Open.
        cell_ids: Cells of the model and task.
        percent: Loss allowed, of full depth's quality.

    Returns:
        A paragraph, and the cell of the setting to use: what is confirmed at this loss, or at the least one above.
    """
    rows = _read(database, cell_ids)
    made = cards(rows)
    (line,) = [*_compared(made, labels(rows), percent), *_not_compared(rows)]
    timed = [answer.shown for card in made for answer in (card.at(percent), *_above(card, percent))]
    use = next((row["cell_id"] for row in timed if row is not None and row["speedup"] is not None), None)
    return line, use


def best_so_far(database: Database, cell_ids: Collection[str] | None = None) -> list[str]:
    """Return the confirmed settings in a few words; arguments as for `gist_lines`."""
    rows = _read(database, cell_ids)
    names = labels(rows)
    return [
        f"{_where(card.full)}: {_name(shown, names)}, {shown['confirming_speedup']:.2f}x as fast as full depth, "
        f"{shown['confirming_delta']:+.1f} {visible(shown['metric'])}"
        for card in cards(rows)
        if (shown := card.at(DEFAULT_PERCENT).shown) is not None and shown["speedup"] is not None
    ]


def _read(database: Database, cell_ids: Collection[str] | None) -> tuple[Row, ...]:
    """Rows of the results table, as the page has them: also of runs that another suite asked for first."""
    (summary,) = (source for source in discover(tables) if source.name == "summary")
    rows = Frame.query(database, summary.sql).rows
    if cell_ids is None:
        return rows
    settings = set(database.query(_SETTINGS, [list(cell_ids)])["setting_id"].to_pylist())
    return tuple(row for row in rows if row["setting_id"] in settings)


def _compared(made: tuple[Card, ...], names: dict[Setting, str], percent: float) -> Iterator[str]:
    for card in made:
        answer = card.at(percent)
        reason = verdict(card, answer, lambda row: _name(row, names))
        if (shown := answer.shown) is None:
            allowed = f"full depth, at an allowed loss of {percent:g} %"
            yield f"{_where(card.full)}: {allowed}. {reason}{_later(card, names, percent)}"
        elif shown["speedup"] is None:
            blocks = f"{shown['mean_blocks_run']:.2f} of {shown['blocks']} blocks"
            yield f"{_where(card.full)}: {_name(shown, names)} runs {blocks}. {reason}"
        else:
            yield f"{_where(card.full)}: {_gain(shown, names)}. {reason}"


def _above(card: Card, percent: float) -> list[Answer]:
    return [answer for answer in card.answers if answer.from_percent > percent]


def _later(card: Card, names: dict[Setting, str], percent: float) -> str:
    """The least loss above at which a timed setting is confirmed."""
    for answer in _above(card, percent):
        if answer.shown is not None and answer.shown["speedup"] is not None:
            return f" At {answer.from_percent:.1f} %: {_gain(answer.shown, names)}."
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
    """Models and tasks of which there is no card, each with the reason."""
    carded = {(card.full["model"], card.full["task"]) for card in cards(rows)}
    for where in sorted({(row["model"], row["task"]) for row in rows} - carded):
        own = [row for row in rows if (row["model"], row["task"]) == where]
        yield f"{_where(own[0])}: {_why_not(own)}"


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


def _where(row: Row) -> str:
    """Task and model, and what another number format than float32 changes of full depth."""
    told = number_format(row)
    return f"{visible(row['task'])} ({visible(row['model'])}{'' if told is None else f'; {told}'})"


def _name(row: Row, names: dict[Setting, str]) -> str:
    return visible(spoken(names.get(setting(row)) or str(row["method"])))
