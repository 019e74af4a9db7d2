"""Labels of methods and parameters, and formatting of words and numbers in sentences.

A label of a setting shows only what distinguishes the setting from the others, so that it is short.
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
"""Mark next to speed-ups of answers whose length differs from full depth's."""

NOT_MEASURABLE = "not measurable now"
"""Text in place of a speed-up whose interval or noise floor spans more than a factor of 10, as on a busy machine or
with very few documents."""

Setting = tuple[str, str, str]  # (method, parameters as JSON text, KV policy)

FLOAT32 = "float32"
"""Number format that others are compared with."""

_KV_POLICY = "kv_policy"
_THRESHOLD = "threshold"
_MAIN = (_THRESHOLD, "patience")
"""Parameters that decide most about a method's exits; a method has one of them or none."""
_FEW = 2  # most parameters shown for a method with one setting


def setting(row: Row) -> Setting:
    """Return a row's setting: the method, its parameters and its KV policy."""
    return row["method"], row["params"], row[_KV_POLICY] or ""


def describe(params: dict[str, Any], *, brief: bool = False) -> str:
    """Return parameters as ``'name=value, ...'``; if `brief`, thresholds and text values are without their names."""
    return ", ".join(
        _value(value) if brief and (name == _THRESHOLD or isinstance(value, str)) else f"{name}={_value(value)}"
        for name, value in params.items()
    )


def labels(rows: Iterable[Row], *, brief: bool = False) -> dict[Setting, str]:
    """Return a unique label per setting: the method, its swept parameters, and parameters with unusual values.

    A method with one setting shows its parameters (except those switched off) if they are few, else its threshold or
    patience.

    Examples:
        >>> row = {"method": "calm-softmax", "kv_policy": "state-copy"}
        >>> rows = [{**row, "params": '{"threshold": 0.8}'}, {**row, "params": '{"threshold": 0.9}'}]
        >>> list(labels(rows).values())
        ['calm-softmax threshold=0.8', 'calm-softmax threshold=0.9']
    """
    by_method: dict[str, dict[Setting, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        by_method[row["method"]][setting(row)] = _params(row)
    named: dict[Setting, str] = {}
    for method, settings in by_method.items():
        texts = {key: describe(params, brief=brief) for key, params in _parameters_to_show(settings).items()}
        times = Counter(texts.values())
        varying = sorted(_varying(list(settings.values())))
        for key, text in texts.items():
            ambiguous = times[text] > 1  # numbers that differ in late digits, or text values of which one is omitted
            named[key] = f"{method} {_exact(settings[key], varying) if ambiguous else text}".rstrip()
    return named


def against_float32(row: Row) -> str | None:
    """Return how full depth in a row's number format differs from float32: ``'0.14 nats, 98.0 % of choices equal'``.

    Args:
        row: Row with dtype, format_logprob_gap, format_choice_gap and format_match, as in the view `frontier`.

    Returns:
        The differences; None for float32; ``'not measured'`` if they are unknown.
    """
    if row["dtype"] == FLOAT32:
        return None
    gap, between, match = (row[f"format_{name}"] for name in ("logprob_gap", "choice_gap", "match"))
    if gap is None or match is None:
        return "not measured"
    parts = [f"{gap:.2g} nats"] + ([] if between is None else [f"{between:.2g} between choices"])
    return ", ".join([*parts, f"{match:.1%} of {'tokens' if between is None else 'choices'} equal".replace("%", " %")])


def number_format(row: Row) -> str | None:
    """Return how a row's number format changes full depth, ``'bfloat16 against float32: ...'``; None for float32."""
    note = against_float32(row)
    return None if note is None else f"{row['dtype']} against {FLOAT32}: {note}"


def label_in_sentence(label: str) -> str:
    """Reword a setting's label for a sentence: ``'calm-softmax at 0.9'`` for ``'calm-softmax threshold=0.9'``."""
    method, _, params = label.partition(" ")
    first, _, remainder = params.partition(", ")
    if not first.startswith(f"{_THRESHOLD}="):
        return label
    phrase = f"{method} at {first.removeprefix(f'{_THRESHOLD}=')}"
    return f"{phrase} with {remainder}" if remainder else phrase


def is_sweep(rows: Iterable[Row]) -> bool:
    """Return whether the rows (of one method) form one line: settings that differ in exactly one parameter."""
    return len(_varying([_params(row) for row in rows])) == 1


def natural_key(text: str) -> list[tuple[str, float]]:
    """Return a sort key under which ``x=9`` comes before ``x=10`` and ``x=0.9`` before ``x=0.95``."""
    return [(word, float(number or 0)) for word, number in re.findall(r"(\D+)(\d*\.?\d*)", f" {text}")]


def count(numbers: Iterable[int | None], unit: str) -> str:
    """Return a sample size as text, ``'n = 50 documents'``, or a range if `numbers` differ; empty if all are None."""
    if not (counts := [number for number in numbers if number is not None]):
        return ""
    fewest, most = min(counts), max(counts)
    return f"n = {most:,} {unit}" if fewest == most else f"n = {fewest:,} to {most:,} {unit}"


def differing_conditions(conditions: Iterable[str]) -> dict[str, str]:
    """Map each text of comma-separated conditions to the same text without the conditions that all texts share.

    Examples:
        >>> differing_conditions(["float32, cpu, batch 1", "float32, cpu, batch 8"])
        {'float32, cpu, batch 1': 'batch 1', 'float32, cpu, batch 8': 'batch 8'}
    """
    parts = {text: text.split(", ") for text in conditions}
    common = set.intersection(*map(set, parts.values())) if parts else set()
    return {text: ", ".join(part for part in own if part not in common) for text, own in parts.items()}


def shorten(text: str, width: int) -> str:
    """Return `text` on one line, cut to `width` characters with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def _exact(params: dict[str, Any], names: Iterable[str]) -> str:
    return ", ".join(f"{name}={json.dumps(params[name])}" for name in names if name in params)


def _varying(params: list[dict[str, Any]]) -> set[str]:
    names = {name for mapping in params for name in mapping}
    return {name for name in names if len({json.dumps(mapping.get(name), sort_keys=True) for mapping in params}) > 1}


def _params(row: Row) -> dict[str, Any]:
    return {**json.loads(row["params"]), _KV_POLICY: row[_KV_POLICY]}


def _parameters_to_show(settings: dict[Setting, dict[str, Any]]) -> dict[Setting, dict[str, Any]]:
    """Return, for each setting of one method, the parameters that its label shows, swept ones first."""
    if len(settings) == 1:
        ((key, params),) = settings.items()
        # A value of 0 or nothing means switched off, and is not shown.
        set_values = {
            name: value for name, value in params.items() if name == _THRESHOLD or (value and name != _KV_POLICY)
        }
        return {
            key: set_values
            if len(set_values) <= _FEW
            else {name: set_values[name] for name in set_values if name in _MAIN}
        }
    varying = sorted(_varying(list(settings.values())))
    texts = {name: [json.dumps(params.get(name)) for params in settings.values()] for name in varying}
    # A value that most settings have is the usual one and is not shown; without a majority, all values are.
    usual = {name: values[0] for name, text in texts.items() if (values := _majority(text))}
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


def short_name(text: str) -> str:
    """Return a name from the data, shortened so that it fits into a sentence."""
    return shorten(text, _NAME_LENGTH)


def percent(share: float) -> str:
    """Return a share of 0..1 as ``'83 %'``; 100 % only for exactly 1, and 0 % only for exactly 0."""
    rounded = round(100 * share)
    if (rounded >= 100 and share < 1) or (rounded <= 0 and share > 0):
        return f"{100 * share:.2g} %" if share < 0.5 else "more than 99 %"
    return f"{rounded} %"


def times(ratio: float, low: float | None = None, high: float | None = None) -> str:
    """Return ``'1.74×'``, with its interval in brackets if there is one."""
    return f"{ratio:.2f}×" + ("" if low is None or high is None else f" [{low:.2f}, {high:.2f}]")


def join_words(parts: Sequence[str]) -> str:
    """Join words for a sentence: ``'a, b and c'``."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def extremes(rows: Iterable[Row], column: str) -> tuple[Row, Row]:
    """Return the rows with the lowest and the highest value of a column, ignoring NULL; ties go to the first row."""
    candidates = [row for row in rows if row[column] is not None]
    return min(candidates, key=lambda row: row[column]), max(candidates, key=lambda row: row[column])


def between(rows: Sequence[Row], column: str, write: Callable[[float], str], columns: Sequence[str]) -> str:
    """Return a column's range as text, ``'12 % (model, task) to 98 % (model, task)'``; one value if the ends are equal.

    `write` formats a value. In parentheses are the values of `columns` in the row of the lowest or highest value.
    """
    low, high = extremes(rows, column)
    ends = [write(row[column]) for row in (low, high)]
    if ends[0] == ends[1]:
        return ends[0]
    return " to ".join(f"{end} ({row_label(row, columns)})" for end, row in zip(ends, (low, high), strict=True))


def row_label(row: Row, columns: Sequence[str]) -> str:
    """Return a row's values of some columns, as ``'weighted, squad'``."""
    return ", ".join(short_name(str(row[column])) for column in columns)


def label_of(names: dict[Setting, str], row: Row) -> str:
    """Return the label of a row's setting, shortened to fit into a sentence; `names` are the labels by setting."""
    return short_name(names[setting(row)])
