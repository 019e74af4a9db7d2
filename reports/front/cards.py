"""Recommendations: one card per model and task, with one recommendation for every allowed loss of quality.

The view `pareto` chooses and confirms settings. This module looks them up, together with the baselines to beat.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from exitbench.reports.frame import Row
from exitbench.results.statistics.bounded_mean import documents_to_bound, least_upper_bound
from exitbench.terminal import number_of, visible

DEFAULT_PERCENT: Final = 1.0
MOST_PERCENT: Final = 20.0
BASELINES: Final = ("static", "random", "oracle")


@dataclass(frozen=True)
class Recommendation:
    """Recommendation for an allowed loss of `from_percent` to `until_percent` of full depth's quality.

    Settings are chosen on one part of the documents (the choosing part) and confirmed on the others (the confirming
    part). The choosing part gives an upper bound on each run's loss.

    Attributes:
        from_percent: Lower end of the allowed loss, included.
        until_percent: Upper end, excluded; None for no limit.
        method: Chosen run of a method: the fastest whose bound is at most the allowed loss; None if there is none.
        static: Chosen run of a static depth, by the same rule.
        untimed: Untimed run with the fewest blocks run, among those whose bound is at most the allowed loss. None if
            none runs fewer blocks than the confirmed run, or than full depth if no run is confirmed.
        headline: Run at the top of the card: the faster of `method` and `static` among those that are confirmed; if no
            method was timed and none is confirmed, `untimed`. None for full depth.
        random: Run of random exits with about as many blocks run as `headline`.
    """

    from_percent: float
    until_percent: float | None
    method: Row | None
    static: Row | None
    untimed: Row | None
    headline: Row | None
    random: Row | None


@dataclass(frozen=True)
class Card:
    """Recommendations for one model on one task.

    Attributes:
        rows: Rows of its runs in the results table.
        full: Run of full depth.
        oracle: Run that exits every token at the first correct block; None if not computed.
        safest_static: Run of the static depth that loses least quality; None if none was run and scored.
        recommendations: Recommendations for increasing allowed losses; each holds up to the next one's `from_percent`,
            the first from 0 % on.
        timed: Number of timed settings of early-exit methods, among which `method` was chosen.
    """

    rows: tuple[Row, ...]
    full: Row
    oracle: Row | None
    safest_static: Row | None
    recommendations: tuple[Recommendation, ...]
    timed: int

    @property
    def confirming_n(self) -> int | None:
        """Number of documents on which chosen settings are confirmed; None if no run is paired with full depth."""
        return max((row["confirming_n"] for row in self.rows if row["confirming_n"] is not None), default=None)

    def at(self, percent: float) -> Recommendation:
        """Return the recommendation for an allowed loss of `percent`."""
        return next(
            recommendation
            for recommendation in reversed(self.recommendations)
            if recommendation.from_percent <= percent
        )


def cards(results: Sequence[Row]) -> tuple[Card, ...]:
    """Return one card per model and task that has a full-depth run and a bound on the loss of some run.

    Cards with a recommendation come first.

    Args:
        results: Rows of the results table. If a model and task were run in several settings (subsets of the documents,
            other seeds), the setting with the most documents counts.
    """
    built = [card for _, rows in _settings(results) if (card := _card(rows)) is not None]
    return tuple(sorted(built, key=lambda card: (card.at(DEFAULT_PERCENT).headline is None, card.timed == 0)))


def _settings(results: Sequence[Row]) -> Iterator[tuple[str, tuple[Row, ...]]]:
    """Yield (id, result rows) of the setting with the most documents, per model, task and conditions.

    A setting is a set of comparable runs (same documents and seeds). Models with random weights are left out.
    """
    trained = [row for row in results if not row["random_weights"]]
    for _, rows in groupby(trained, key=lambda row: (row["model"], row["task"], row["setting"])):
        ways: dict[str, list[Row]] = {}
        for row in rows:
            ways.setdefault(row["setting_id"], []).append(row)
        setting = max(ways, key=lambda way: (max(row["n"] or 0 for row in ways[way]), len(ways[way]), way))
        yield setting, tuple(ways[setting])


def _card(rows: tuple[Row, ...]) -> Card | None:
    full = next((row for row in rows if row["is_full_depth"]), None)
    if full is None or not any(row["loss_high_percent"] is not None for row in rows):
        return None
    names = ("choosing_loss_high_percent", "confirmed_percent")
    percents = {row[name] for row in rows for name in names if row[name] is not None and row[name] <= MOST_PERCENT}
    levels = sorted({0.0, *percents})
    built: list[Recommendation] = []
    for level in levels:
        recommendation = _recommend(rows, level)
        if not built or _chosen(recommendation) != _chosen(built[-1]):
            built.append(recommendation)
    untils = [*(part.from_percent for part in built[1:]), None]
    static = [row for row in rows if row["method"] == "static" and row["loss_high_percent"] is not None]
    oracles = [row for row in rows if row["method"] == "oracle" and row["mean_exit_layer"] is not None]
    return Card(
        rows,
        full,
        oracle=min(
            oracles, key=lambda row: (row["execution"] != "real", row["mean_exit_layer"], row["cell_id"]), default=None
        ),
        safest_static=min(static, key=lambda row: (row["loss_high_percent"], row["cell_id"]), default=None),
        recommendations=tuple(replace(part, until_percent=until) for part, until in zip(built, untils, strict=True)),
        timed=sum(_is_timed_method(row) for row in rows),
    )


def _recommend(rows: Sequence[Row], percent: float) -> Recommendation:
    method, static = (_chosen_run(rows, percent, is_static) for is_static in (False, True))
    confirmed = [row for row in (method, static) if row is not None and is_confirmed(row, percent)]
    best = max(confirmed, key=lambda row: row["choosing_speedup"], default=None)
    blocks = rows[0]["blocks"] if best is None else _blocks(best)
    untimed = min(
        (row for row in rows if _is_untimed(row) and _is_allowed(row, percent) and _blocks(row) < blocks),
        key=lambda row: (_blocks(row), row["choosing_loss_high_percent"], row["cell_id"]),
        default=None,
    )
    head = best if any(map(_is_timed_method, rows)) else best or untimed
    random = None
    if head is not None:
        exits = [row for row in rows if row["method"] == "random" and row["delta"] is not None]
        random = min(exits, key=lambda row: (abs(_blocks(row) - _blocks(head)), row["cell_id"]), default=None)
    return Recommendation(percent, None, method, static, untimed, head, random)


def _chosen_run(rows: Sequence[Row], percent: float, is_static: bool) -> Row | None:
    """Return the run that the view `pareto` chooses at an allowed loss of `percent` %; None if it chooses none.

    It is chosen among static depths if `is_static` is true, else among methods.
    """
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
    """Return whether a chosen run loses at most `percent` %, as confirmed on documents not used to choose it."""
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
    """Return a row's mean number of blocks run per token; all blocks if it is unknown."""
    blocks: float = row["blocks"] if row["mean_blocks_run"] is None else row["mean_blocks_run"]
    return blocks


def is_method(row: Row) -> bool:
    """Return whether a result row is of an early-exit method, not of a baseline or of full depth."""
    return row["method"] not in BASELINES and not row["is_full_depth"]


def _is_timed_method(row: Row) -> bool:
    return row["speedup"] is not None and is_method(row)


def _chosen(recommendation: Recommendation) -> tuple[str | None, ...]:
    rows = (
        recommendation.method,
        recommendation.static,
        recommendation.untimed,
        recommendation.random,
        recommendation.headline,
    )
    return tuple(None if row is None else row["cell_id"] for row in rows)


def calibrated(card: Card, calibrations: Sequence[Row]) -> tuple[Row, ...]:
    """Return the `calibrations` rows of thresholds chosen with a guarantee for the card's model and task."""
    names = ("model", "task")
    return tuple(
        row
        for row in calibrations
        if row["verdict"] == "chosen"
        and row["p_value"] is not None
        and row["conforms"] is not False
        and all(row[name] == card.full[name] for name in names)
    )


Name = Callable[[Row], str]
"""Function that returns a setting's display name."""


def verdict(card: Card, recommendation: Recommendation, name: Name) -> str:
    """Return sentences on the recommendation at an allowed loss and on the reason why none is better.

    Args:
        card: Card of the model and task.
        recommendation: Its recommendation at the allowed loss.
        name: Returns a setting's display name.
    """
    if not any(map(is_method, card.rows)) and recommendation.static is None:
        return _joined(_caution(card), "Only full depth and baselines were run: nothing to recommend.")
    if recommendation.headline is None:
        return _joined(_caution(card), _why_full_depth(card, recommendation, name))
    if recommendation.headline["speedup"] is None:
        return _joined(_caution(card), f"{_why_untimed(card)} So nothing is recommended.")
    return _joined(_caution(card), _against_static(card, recommendation, name), _random(recommendation))


def _caution(card: Card) -> str:
    """Return a warning that affects all comparisons of the card: a score near its floor, answers cut by length."""
    caution = card.full["caution"]
    return f"Caution: {caution}." if caution else ""


def _against_static(card: Card, recommendation: Recommendation, name: Name) -> str:
    """Return a sentence that compares the recommended run with static depths, which run a fixed number of blocks."""
    static, head = recommendation.static, recommendation.headline
    if static is not None and static is head:
        return _against_method(recommendation, name)
    if static is not None:
        return _compared(recommendation, static, name)
    if card.safest_static is None:
        return "No static depth was run to compare it with."
    least = card.safest_static
    speed = "not timed" if least["speedup"] is None else f"{least['speedup']:.2f}×"
    return (
        "No static depth is chosen at this loss. The one that loses least, "
        f"{name(least)} ({speed}), may lose {least['loss_high_percent']:.1f} %."
    )


def _compared(recommendation: Recommendation, static: Row, name: Name) -> str:
    head = recommendation.headline
    assert head is not None
    what = f"the best static depth ({name(static)}, {_speed(static)})"
    if static["confirming_speedup_high"] is None or static["confirming_speedup_low"] is None:
        return f"The time of {what} has no interval to compare."
    if head["confirming_speedup_low"] > static["confirming_speedup_high"]:
        return f"It is faster than {what}."
    if head["confirming_speedup_high"] < static["confirming_speedup_low"]:
        return f"It is slower than {what}, which is not confirmed at this loss."
    return f"It is not shown to be faster than {what}: their intervals overlap."


def _against_method(recommendation: Recommendation, name: Name) -> str:
    method, static = recommendation.method, recommendation.static
    assert static is not None
    if method is None:
        return "No method is chosen at this loss: only this static depth is."
    if not (method["confirming_speedup_low"] and method["confirming_speedup_high"]):
        return f"The time of the chosen method, {name(method)}, has no interval to compare."
    if static["confirming_speedup_low"] > method["confirming_speedup_high"]:
        return f"The fastest method, {name(method)} ({_speed(method)}), is slower than this static depth."
    return f"No method is shown to be faster than this static depth: its interval overlaps that of {name(method)}."


def _why_full_depth(card: Card, recommendation: Recommendation, name: Name) -> str:
    percent = recommendation.from_percent
    chosen = [row for row in (recommendation.method, recommendation.static) if row is not None]
    if chosen:
        return " ".join(_not_confirmed(row, percent, name) for row in chosen)
    if not card.timed:
        return _why_untimed(card)
    if card.confirming_n is None:
        return (
            f"{visible(card.full['metric'])} is computed from all documents together, so a part of them cannot confirm "
            "what was chosen on the others; `exitbench compare` tests differences."
        )
    return f"No timed setting is shown to lose so little.{_too_few(card, recommendation)}"


def _why_untimed(card: Card) -> str:
    if any(row["speed_status"] == "not measurable" for row in card.rows if is_method(row)):
        return "Times vary too much to be measured now: the machine was busy. Run the timings again."
    return "No method was timed: add --kinds timing."


def _not_confirmed(row: Row, percent: float, name: Name) -> str:
    assert not is_confirmed(row, percent)
    documents = number_of(row["confirming_n"], "other document")
    if row["confirmed_percent"] is None:
        return f"{name(row)} was chosen, but is not shown to be faster on the other timed documents."
    return f"{name(row)} was chosen, but may lose {row['confirming_loss_high_percent']:.1f} % on {documents}."


def _too_few(card: Card, recommendation: Recommendation) -> str:
    """Return a sentence on the smallest loss that the card's few documents can confirm.

    Empty if the recommendation's allowed loss is at least that large, or if the number or scale is unknown.
    """
    n, full = card.confirming_n, card.full["value"]
    if not n or not full or not 0 < full <= 100:
        return ""
    least_percent = 100 * 100 * least_upper_bound(n) / full
    if recommendation.from_percent >= least_percent:
        return ""
    needed = documents_to_bound(DEFAULT_PERCENT / 100 * full / 100)
    return (
        f" {number_of(n, 'confirming document')} cannot show a loss below {least_percent:.1f} %; "
        f"{DEFAULT_PERCENT:g} % takes {number_of(needed, 'confirming document')} or more."
    )


def _random(recommendation: Recommendation) -> str:
    row, head = recommendation.random, recommendation.headline
    if row is None or head is None or row["confirming_delta"] is None or head["confirming_delta"] is None:
        return ""
    if row["mean_blocks_run"] > head["mean_blocks_run"] or row["confirming_loss_high_percent"] is None:
        return ""
    no_worse = row["confirming_loss_high_percent"] <= head["confirming_loss_high_percent"]
    return "Random exits with no more blocks run have an equally low bound on the loss." if no_worse else ""


def _speed(row: Row) -> str:
    return f"{row['confirming_speedup']:.2f}×"


def _joined(*sentences: str) -> str:
    return " ".join(visible(sentence) for sentence in sentences if sentence)


_WORDS = {3: "do not cite", 2: "look before you cite", 1: "a remark"}


def findings_line(findings: Sequence[Row]) -> tuple[str, int]:
    """Return the number of findings by severity as text, and the worst severity (0 without findings).

    Args:
        findings: Rows of the table of findings.
    """
    if not findings:
        return "No rule has a finding about these runs.", 0
    counts = Counter(row["severity"] for row in findings)
    parts = (f"{counts[severity]} × {words}" for severity, words in _WORDS.items() if counts[severity])
    return f"{number_of(len(findings), 'finding')}: {', '.join(parts)}.", max(counts)
