"""What may be concluded about a model and task: one function for the page's cards, the end of a run and `tune`.

Every sentence names what was run. What was not run, not timed or not confirmed is called so.
"""

from collections.abc import Callable

from exitbench.reports.frame import Row
from exitbench.reports.front.cards import DEFAULT_PERCENT, Answer, Card, is_confirmed, is_method
from exitbench.results.statistics.bounded_mean import documents_to_bound, least_upper_bound
from exitbench.terminal import number_of, visible

Name = Callable[[Row], str]
"""Spells a setting."""


def verdict(card: Card, answer: Answer, name: Name) -> str:
    """Return what the results say at an allowed loss, and why not more.

    Args:
        card: Model and task.
        answer: Its answer at the allowed loss.
        name: Spells a setting.
    """
    if not any(map(is_method, card.rows)) and answer.static is None:
        return _joined(_caution(card), "Only full depth and baselines were run: nothing to recommend.")
    if answer.shown is None:
        return _joined(_caution(card), _why_full_depth(card, answer, name))
    if answer.shown["speedup"] is None:
        return _joined(_caution(card), f"{_why_untimed(card)} So nothing is recommended.")
    return _joined(_caution(card), _against_static(card, answer, name), _random(answer))


def _caution(card: Card) -> str:
    """Return what puts every comparison of the card in doubt: a score near its floor, answers cut by length."""
    found = card.full["caution"]
    return f"Caution: {found}." if found else ""


def _against_static(card: Card, answer: Answer, name: Name) -> str:
    """Return how the recommended method compares with the static depths that were run."""
    static, shown = answer.static, answer.shown
    if static is not None and static is shown:
        return _against_method(answer, name)
    if static is not None:
        return _compared(answer, static, name)
    if card.next_static is None:
        return "No static depth was run to compare it with."
    least = card.next_static
    speed = "not timed" if least["speedup"] is None else f"{least['speedup']:.2f}×"
    return (
        "No static depth is chosen at this loss. The one that loses least, "
        f"{name(least)} ({speed}), may lose {least['loss_high_percent']:.1f} %."
    )


def _compared(answer: Answer, static: Row, name: Name) -> str:
    shown = answer.shown
    assert shown is not None
    what = f"the best static depth ({name(static)}, {_speed(static)})"
    if static["confirming_speedup_high"] is None or static["confirming_speedup_low"] is None:
        return f"The time of {what} has no interval to compare."
    if shown["confirming_speedup_low"] > static["confirming_speedup_high"]:
        return f"It is faster than {what}."
    if shown["confirming_speedup_high"] < static["confirming_speedup_low"]:
        return f"It is slower than {what}, which is not confirmed at this loss."
    return f"It is not shown to be faster than {what}: their intervals overlap."


def _against_method(answer: Answer, name: Name) -> str:
    method, static = answer.method, answer.static
    assert static is not None
    if method is None:
        return "No method is chosen at this loss: only this static depth is."
    if not (method["confirming_speedup_low"] and method["confirming_speedup_high"]):
        return f"The time of the chosen method, {name(method)}, has no interval to compare."
    if static["confirming_speedup_low"] > method["confirming_speedup_high"]:
        return f"The fastest method, {name(method)} ({_speed(method)}), is slower than this static depth."
    return f"No method is shown to be faster than this static depth: {name(method)} is not told apart from it."


def _why_full_depth(card: Card, answer: Answer, name: Name) -> str:
    percent = answer.from_percent
    chosen = [row for row in (answer.method, answer.static) if row is not None]
    if chosen:
        return " ".join(_not_confirmed(row, percent, name) for row in chosen)
    if not card.timed:
        return _why_untimed(card)
    return f"No timed setting is shown to lose so little.{_too_few(card, answer)}"


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


def _too_few(card: Card, answer: Answer) -> str:
    """Say how small a loss the documents could show at all, where that is above what is allowed."""
    n, full = card.confirming_n, card.full["value"]
    if not n or not full or not 0 < full <= 100:
        return ""
    least_percent = 100 * 100 * least_upper_bound(n) / full
    if answer.from_percent >= least_percent:
        return ""
    needed = documents_to_bound(DEFAULT_PERCENT / 100 * full / 100)
    return (
        f" {number_of(n, 'confirming document')} cannot show a loss below {least_percent:.1f} %; "
        f"{DEFAULT_PERCENT:g} % takes {number_of(needed, 'confirming document')} or more."
    )


def _random(answer: Answer) -> str:
    row, shown = answer.random, answer.shown
    if row is None or shown is None or row["confirming_delta"] is None or shown["confirming_delta"] is None:
        return ""
    if row["mean_blocks_run"] > shown["mean_blocks_run"] or row["confirming_loss_high_percent"] is None:
        return ""
    no_worse = row["confirming_loss_high_percent"] <= shown["confirming_loss_high_percent"]
    return "Random exits no deeper are bounded as tightly." if no_worse else ""


def _speed(row: Row) -> str:
    return f"{row['confirming_speedup']:.2f}×"


def _joined(*sentences: str) -> str:
    return " ".join(visible(sentence) for sentence in sentences if sentence)
