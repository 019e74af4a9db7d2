"""Names of methods and parameters, and words and numbers of sentences, as a reader wants them.

A name is only what tells two settings apart, and never too long.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from exitbench.terminal import visible

if TYPE_CHECKING:
    from exitbench.reports.frame import Row

OTHER_LENGTH = "†"
"""Beside speed-ups of answers whose length is not full depth's."""

NOT_MEASURABLE = "not measurable now"
"""In place of a speed-up whose interval, or whose noise floor, is wider than 10 times: of a busy machine, or of very
few documents."""

TOO_WIDE = "intervals are wider than 10 times"

Setting = tuple[str, str, str]  # (method, parameters as JSON text, KV policy)

FLOAT32 = "float32"
"""The number format that others are compared with."""

_KV_POLICY = "kv_policy"
_THRESHOLD = "threshold"
_FEW = 2  # parameters that a method with one setting shows


def setting(row: Row) -> Setting:
    """Return the method, its parameters and its KV policy: what a row of a sweep is a setting of."""
    return row["method"], row["params"], row[_KV_POLICY] or ""


def describe(params: dict[str, Any], *, brief: bool = False) -> str:
    """Return ``'name=value, ...'`` with short numbers; `brief` leaves the names of thresholds and of words out."""
    return ", ".join(
        _value(value) if brief and (name == _THRESHOLD or isinstance(value, str)) else f"{name}={_value(value)}"
        for name, value in params.items()
    )


def labels(rows: Iterable[Row], *, brief: bool = False) -> dict[Setting, str]:
    """Return a label for each setting: the method, the parameters that it sweeps, and what else is not the usual.

    A method with one setting shows its parameters (but what is switched off) if they are few, else its threshold. Two
    settings never have one label.
    """
    by_method: dict[str, dict[Setting, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        by_method[row["method"]][setting(row)] = _params(row)
    named: dict[Setting, str] = {}
    for method, settings in by_method.items():
        shown = {key: describe(params, brief=brief) for key, params in _shown(settings).items()}
        times = Counter(shown.values())
        varying = sorted(_varying(list(settings.values())))
        for key, text in shown.items():
            alike = times[text] > 1  # numbers that differ late, or words of which one goes without saying
            named[key] = f"{method} {_exact(settings[key], varying) if alike else text}".rstrip()
    return named


def against_float32(row: Row) -> str | None:
    """Return what a row's number format changes of full depth, such as ``'0.14 nats, 98.0 % of choices equal'``.

    Args:
        row: Has dtype and frontier's columns of formats.

    Returns:
        None for float32; ``'not measured'`` where nothing is known.
    """
    if row["dtype"] == FLOAT32:
        return None
    gap, between, match = (row[f"format_{name}"] for name in ("logprob_gap", "choice_gap", "match"))
    if gap is None or match is None:
        return "not measured"
    parts = [f"{gap:.2g} nats"] + ([] if between is None else [f"{between:.2g} between choices"])
    return ", ".join([*parts, f"{match:.1%} of {'tokens' if between is None else 'choices'} equal".replace("%", " %")])


def number_format(row: Row) -> str | None:
    """Return the same as a sentence's beginning, ``'bfloat16 against float32: ...'``; None for float32."""
    told = against_float32(row)
    return None if told is None else f"{row['dtype']} against {FLOAT32}: {told}"


def spoken(label: str) -> str:
    """Return a label as one says it: ``'calm-softmax at 0.9 with decay=code'``."""
    method, _, params = label.partition(" ")
    first, _, rest = params.partition(", ")
    if not first.startswith(f"{_THRESHOLD}="):
        return label
    said = f"{method} at {first.removeprefix(f'{_THRESHOLD}=')}"
    return f"{said} with {rest}" if rest else said


def varying_parameters(rows: Iterable[Row]) -> dict[str, frozenset[str]]:
    """Return, for each method, the parameters (its KV policy is one) that do not have one value in all its rows."""
    seen: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        seen[row["method"]].append(_params(row))
    return {method: frozenset(_varying(params)) for method, params in seen.items()}


def is_sweep(rows: Iterable[Row]) -> bool:
    """Say whether the rows (of one method) are one line: settings that differ in exactly one parameter."""
    return [len(names) for names in varying_parameters(rows).values()] == [1]


def natural_key(text: str) -> list[tuple[str, float]]:
    """Return a sort key under which ``x=9`` comes before ``x=10`` and ``x=0.9`` before ``x=0.95``."""
    return [(word, float(number or 0)) for word, number in re.findall(r"(\D+)(\d*\.?\d*)", f" {text}")]


def count(numbers: Iterable[int | None], unit: str) -> str:
    """Return how many documents or tokens some results stand on, as one number or as a range; nothing if none says."""
    if not (known := [number for number in numbers if number is not None]):
        return ""
    fewest, most = min(known), max(known)
    return f"n = {most:,} {unit}" if fewest == most else f"n = {fewest:,} to {most:,} {unit}"


def shorten(text: str, width: int) -> str:
    """Return `text` on one line, cut to `width` characters with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def _exact(params: dict[str, Any], names: Iterable[str]) -> str:
    return ", ".join(f"{name}={json.dumps(params[name])}" for name in names if name in params)


def _varying(params: list[dict[str, Any]]) -> set[str]:
    names = {name for one in params for name in one}
    return {name for name in names if len({json.dumps(one.get(name), sort_keys=True) for one in params}) > 1}


def _params(row: Row) -> dict[str, Any]:
    return {**json.loads(row["params"]), _KV_POLICY: row[_KV_POLICY]}


def _shown(settings: dict[Setting, dict[str, Any]]) -> dict[Setting, dict[str, Any]]:
    """The parameters to show of each setting of one method, swept ones first."""
    if len(settings) == 1:
        ((key, params),) = settings.items()
        # A value of 0 or nothing switches something off, which goes without saying.
        own = {name: value for name, value in params.items() if name == _THRESHOLD or (value and name != _KV_POLICY)}
        return {key: own if len(own) <= _FEW else {name: own[name] for name in own if name == _THRESHOLD}}
    varying = sorted(_varying(list(settings.values())))
    spelled = {name: [json.dumps(params.get(name)) for params in settings.values()] for name in varying}
    # What most settings have is the usual and goes without saying; where there is no majority, all values are told.
    usual = {name: values[0] for name, text in spelled.items() if (values := _majority(text))}
    swept = [name for name in varying if name == _THRESHOLD or name not in usual or len(varying) == 1]
    return {
        key: {
            name: params[name]
            for name in (*swept, *(name for name in varying if name not in swept))
            if name in params and (name in swept or json.dumps(params[name]) != usual.get(name))
        }
        for key, params in settings.items()
    }


def _majority(values: list[str]) -> list[str]:
    return [value for value, times in Counter(values).most_common(1) if 2 * times > len(values)]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return visible(value) if isinstance(value, str) else json.dumps(value)


_NAME_LENGTH = 48


def called(text: str) -> str:
    """Return a name out of the data so that a sentence stays one, however long it is."""
    return shorten(text, _NAME_LENGTH)


def percent(share: float) -> str:
    """Return ``'83 %'``; 100 only of what is whole and 0 only of what is none."""
    whole = round(100 * share)
    if (whole >= 100 and share < 1) or (whole <= 0 and share > 0):
        return f"{100 * share:.2g} %" if share < 0.5 else "more than 99 %"
    return f"{whole} %"


def times(ratio: float, low: float | None = None, high: float | None = None) -> str:
    """Return ``'1.74×'``, with its interval in brackets where there is one."""
    return f"{ratio:.2f}×" + ("" if low is None or high is None else f" [{low:.2f}, {high:.2f}]")


def listed(parts: Sequence[str]) -> str:
    """Return ``'a, b and c'``."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def extremes(rows: Iterable[Row], column: str) -> tuple[Row, Row]:
    """Return the rows with the lowest and with the highest value of a column, the first of equals; NULL is none."""
    known = [row for row in rows if row[column] is not None]
    return min(known, key=lambda row: row[column]), max(known, key=lambda row: row[column])


def between(rows: Sequence[Row], column: str, write: Callable[[float], str], where: Sequence[str]) -> str:
    """Return ``'12 % (model, task) to 98 % (model, task)'`` for the values of a column; one value where all agree."""
    low, high = extremes(rows, column)
    ends = [write(row[column]) for row in (low, high)]
    if ends[0] == ends[1]:
        return ends[0]
    return " to ".join(f"{end} ({of_which(row, where)})" for end, row in zip(ends, (low, high), strict=True))


def of_which(row: Row, where: Sequence[str]) -> str:
    """Return the values of some columns of a row, as ``'weighted, squad'``."""
    return ", ".join(called(str(row[column])) for column in where)


def label_of(names: dict[Setting, str], row: Row) -> str:
    """Return the label of a row's setting, its method alone where that says all."""
    return called(names[setting(row)])
