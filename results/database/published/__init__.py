"""Results printed in papers and their authors' files, and which of them are comparable with runs of ExitBench.

`published_results.csv` keeps the values as printed: one value per row, with its source, setting and caveat.
`comparable.toml` says for every row which run is comparable with it, or why none is. Both are copied into the table
`published_result` of every database.
"""

import csv
import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

from exitbench.results.files.formats import canonical_json, content_id

ROWS: Final = "published_results.csv"
RULES: Final = "comparable.toml"
Row = dict[str, Any]


@cache
def digest() -> str:
    """Return the SHA-256 of both source files together: printed results and rules of comparison."""
    return hashlib.sha256("\0".join(map(text, (ROWS, RULES))).encode()).hexdigest()


@cache
def text(name: str) -> str:
    """Return the text of one source file, `ROWS` or `RULES`."""
    return (files(__name__) / name).read_text(encoding="utf-8")


def published_rows() -> list[Row]:
    """Return the rows of the table `published_result`."""
    lines = csv.DictReader(text(ROWS).splitlines())
    rules = tomllib.loads(text(RULES))
    return [_published_row(number, line, rules) for number, line in enumerate(lines, start=1)]


def _published_row(number: int, line: Mapping[str, str], rules: Mapping[str, Any]) -> Row:
    """Return the row of `published_result` for a CSV line: its values as printed, and which runs are comparable.

    Args:
        number: Number of the line, from 1.
        line: Fields of the line by column; empty fields become None.
        rules: Content of `comparable.toml`.

    Raises:
        ValueError: `value` or `std` is not a number.
    """
    printed: Row = {name: text or None for name, text in line.items()}
    for name in ("value", "std"):
        try:
            printed[name] = None if printed[name] is None else float(printed[name])
        except ValueError:
            raise ValueError(f"{ROWS}, row {number}: {name} is {printed[name]!r}, not a number.") from None
    return {"published_id": content_id(dict(line)), "ordinal": number, **printed, **_comparison(line, rules)}


def _comparison(line: Mapping[str, str], rules: Mapping[str, Any]) -> Row:
    """Return the columns of `published_result` that say which run is comparable with a CSV line, or why none is.

    `line` has the fields of the CSV line by column; `rules` is the content of `comparable.toml`.
    """
    rule, matched = next((rule, matched) for rule in rules["rule"] if (matched := _matches(rule, line)) is not None)
    reason = rule.get("not_comparable")
    row: Row = {
        "not_comparable": reason,
        **dict.fromkeys(
            ("our_task", "our_method", "our_params", "min_exit_share", "our_metric", "unit_factor", "caveat")
        ),
        **dict.fromkeys(("model_blocks", "model_loss", "weights_sha256", "data_sha256")),
    }
    if reason is not None:
        return row
    model = rules["model"][line["model"]]
    common = rules["common"][rule["common"]] if "common" in rule else {}
    params = {**common, **rule.get("params", {}), **matched}
    min_exit = params.pop("min_exit", None)
    return row | {
        "our_task": rules["task"][line["dataset"]],
        "our_method": rule["method"],
        "our_params": canonical_json(params),
        "min_exit_share": None if min_exit is None else min_exit / model["blocks"],
        "our_metric": rule["metrics"][line["metric"]],
        "unit_factor": float(rules["unit"][line["unit"]]),
        "caveat": rule.get("caveat"),
        "model_blocks": model["blocks"],
        "model_loss": model["loss"],
        "weights_sha256": model.get("weights_sha256"),
        "data_sha256": rule.get("data_sha256"),
    }


def _matches(rule: Mapping[str, Any], line: Mapping[str, str]) -> dict[str, int] | None:
    """Return the method parameters in a CSV line's setting; None if the rule of `comparable.toml` does not match."""
    if not all(line[column] in _alternatives(texts) for column, texts in rule["match"].items()):
        return None
    if "metrics" in rule and line["metric"] not in rule["metrics"]:
        return None
    setting = re.search(rule.get("setting", ""), line["setting"])
    return None if setting is None else {name: int(text) for name, text in setting.groupdict().items()}


def _alternatives(texts: str | Iterable[str]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else tuple(texts)
