"""What to use: a card for each model and task, with an answer for every loss of quality that a reader may allow.

The choice and its confirmation are the view `pareto`'s; here they are looked up, next to what any method has to beat.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from exitbench.reports.frame import Row

DEFAULT_PERCENT: Final = 1.0
MOST_PERCENT: Final = 20.0
BASELINES: Final = ("static", "random", "oracle")


@dataclass(frozen=True)
class Answer:
    """What to use where a loss of `from_percent` to `until_percent` of full depth's quality is allowed.

    Attributes:
        from_percent: From this loss on.
        until_percent: Below this loss; None: however large.
        method: The run of a method that was chosen: the fastest that the choosing part bounds by this loss; None if
            there is none.
        static: The static depth that was chosen likewise.
        untimed: Of runs that the choosing part bounds by this loss and that were not timed, the one with fewest blocks.
        shown: Heads the card: the faster of the two chosen, of those that the confirming part confirms; if no method
            was timed, what is worth timing; else None: full depth.
        random: Random exits about as deep.
    """

    from_percent: float
    until_percent: float | None
    method: Row | None
    static: Row | None
    untimed: Row | None
    shown: Row | None
    random: Row | None


@dataclass(frozen=True)
class Card:
    """A model on a task.

    Attributes:
        rows: Its runs, as the results table has them.
        full: Full depth.
        oracle: Every token at the first block that has it right; None where that was not computed.
        next_static: The static depth that loses least of all that were scored; None if none was run.
        answers: By the loss allowed, in order, without a gap from 0 on.
        timed: Settings of methods that were timed: what the choice was made from.
    """

    rows: tuple[Row, ...]
    full: Row
    oracle: Row | None
    next_static: Row | None
    answers: tuple[Answer, ...]
    timed: int

    @property
    def confirming_n(self) -> int | None:
        """Documents of the confirming part; None if no run was compared with full depth document by document."""
        return max((row["confirming_n"] for row in self.rows if row["confirming_n"] is not None), default=None)

    def at(self, percent: float) -> Answer:
        """Return the answer where this loss is allowed."""
        return next(one for one in reversed(self.answers) if one.from_percent <= percent)


def cards(results: Sequence[Row]) -> tuple[Card, ...]:
    """Return a card for each model and task that was scored on a scale, those with something to use first.

    Args:
        results: Rows of the results table. Of a model and task that were run in several ways (parts of the documents,
            other seeds) the way with most documents counts.
    """
    made = [card for _, rows in _settings(results) if (card := _card(rows)) is not None]
    return tuple(sorted(made, key=lambda card: (card.at(DEFAULT_PERCENT).shown is None, card.timed == 0)))


def _settings(results: Sequence[Row]) -> Iterator[tuple[str, tuple[Row, ...]]]:
    """The rows of each model, task and conditions, of the setting that has most documents."""
    trained = [row for row in results if not row["random_weights"]]
    for _, rows in groupby(trained, key=lambda row: (row["model"], row["task"], row["setting"])):
        ways: dict[str, list[Row]] = {}
        for row in rows:
            ways.setdefault(row["setting_id"], []).append(row)
        setting = max(ways, key=lambda one: (max(row["n"] or 0 for row in ways[one]), len(ways[one]), one))
        yield setting, tuple(ways[setting])


def _card(rows: tuple[Row, ...]) -> Card | None:
    full = next((row for row in rows if row["is_full_depth"]), None)
    if full is None or not any(row["loss_high_percent"] is not None for row in rows):
        return None
    names = ("choosing_loss_high_percent", "confirmed_percent")
    percents = {row[name] for row in rows for name in names if row[name] is not None and row[name] <= MOST_PERCENT}
    levels = sorted({0.0, *percents})
    answers: list[Answer] = []
    for level in levels:
        answer = _answer(rows, level)
        if not answers or _chosen(answer) != _chosen(answers[-1]):
            answers.append(answer)
    untils = [*(one.from_percent for one in answers[1:]), None]
    static = [row for row in rows if row["method"] == "static" and row["loss_high_percent"] is not None]
    oracles = [row for row in rows if row["method"] == "oracle" and row["mean_exit_layer"] is not None]
    return Card(
        rows,
        full,
        oracle=min(oracles, key=lambda row: (row["mean_exit_layer"], row["cell_id"]), default=None),
        next_static=min(static, key=lambda row: (row["loss_high_percent"], row["cell_id"]), default=None),
        answers=tuple(replace(one, until_percent=until) for one, until in zip(answers, untils, strict=True)),
        timed=sum(_is_timed_method(row) for row in rows),
    )


def _answer(rows: Sequence[Row], percent: float) -> Answer:
    method, static = (_step(rows, percent, is_static) for is_static in (False, True))
    confirmed = [row for row in (method, static) if row is not None and is_confirmed(row, percent)]
    best = max(confirmed, key=lambda row: row["choosing_speedup"], default=None)
    blocks = rows[0]["blocks"] if best is None else _blocks(best)
    untimed = min(
        (row for row in rows if _is_untimed(row) and _is_allowed(row, percent) and _blocks(row) < blocks),
        key=lambda row: (_blocks(row), row["choosing_loss_high_percent"], row["cell_id"]),
        default=None,
    )
    shown = best if any(map(_is_timed_method, rows)) else best or untimed
    random = None
    if shown is not None:
        exits = [row for row in rows if row["method"] == "random" and row["delta"] is not None]
        random = min(exits, key=lambda row: (abs(_blocks(row) - _blocks(shown)), row["cell_id"]), default=None)
    return Answer(percent, None, method, static, untimed, shown, random)


def _step(rows: Sequence[Row], percent: float, is_static: bool) -> Row | None:
    """The run that the view `pareto` has for this loss."""
    return next(
        (
            row
            for row in rows
            if row["is_static_step"] is is_static
            and row["choosing_loss_high_percent"] <= percent
            and (row["next_percent"] is None or percent < row["next_percent"])
        ),
        None,
    )


def is_confirmed(row: Row, percent: float) -> bool:
    """Return whether the confirming documents confirm a chosen run where this loss is allowed."""
    confirmed: float | None = row["confirmed_percent"]
    return confirmed is not None and confirmed <= percent


def _is_allowed(row: Row, percent: float) -> bool:
    loss: float | None = row["choosing_loss_high_percent"]
    return loss is not None and loss <= percent


def _is_untimed(row: Row) -> bool:
    return (
        row["speed_status"] == "not timed"
        and row["conforms"] is not False
        and row["method"] not in ("random", "oracle")
    )


def _blocks(row: Row) -> float:
    """Blocks run; where that is not known, as if all were."""
    blocks: float = row["blocks"] if row["mean_blocks_run"] is None else row["mean_blocks_run"]
    return blocks


def is_method(row: Row) -> bool:
    """Return whether it is a run of an early-exit method, and not of a baseline."""
    return row["method"] not in BASELINES and not row["is_full_depth"]


def _is_timed_method(row: Row) -> bool:
    return row["speedup"] is not None and is_method(row)


def _chosen(answer: Answer) -> tuple[str | None, ...]:
    rows = (answer.method, answer.static, answer.untimed, answer.random, answer.shown)
    return tuple(None if row is None else row["cell_id"] for row in rows)


def calibrated(card: Card, calibrations: Sequence[Row]) -> tuple[Row, ...]:
    """Return the thresholds that calibrations chose for the model and task, with a guarantee."""
    names = ("model", "task")
    return tuple(
        row
        for row in calibrations
        if row["verdict"] == "chosen"
        and row["p_value"] is not None
        and row["conforms"] is not False
        and all(row[name] == card.full[name] for name in names)
    )
