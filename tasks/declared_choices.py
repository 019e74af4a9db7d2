"""Declared tasks with choices, scored by log-likelihood: run as lm-eval tasks, which build the requests and scores."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.tasks.declared import Declaration, text_of, value_at
from exitbench.tasks.sources import read_table
from exitbench.tasks.templates import render

DATASET: Final = "exitbench:declared"
"""Placeholder for the data set's name in lm-eval's configuration; the data set's part is the declaration as JSON."""


def choice_config(declaration: Declaration) -> dict[str, Any]:
    """Return the lm-eval configuration of a declared task with choices.

    As in lm-eval, a space precedes each choice.
    """
    return {
        "task": declaration.name,
        "dataset_path": DATASET,
        "dataset_name": json.dumps(declaration.to_json(), sort_keys=True),
        "test_split": "data",
        "output_type": "multiple_choice",
        # Column names, which lm-eval uses directly.
        "doc_to_text": "prompt",
        "doc_to_choice": "choices",
        "doc_to_target": "right",
        "metric_list": [
            {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in declaration.metrics
        ],
        "metadata": {"version": 1},
    }


def read_choices(path: Path, name: str | None, split: str) -> Sequence[Mapping[str, Any]]:
    """Read a data file into records with the columns prompt, choices, and right (index of the correct one).

    Args:
        path: The data file.
        name: The task's declaration in JSON, which lm-eval holds as the data set's name.
        split: Ignored.

    Raises:
        UserError: A column is missing, the correct answer is none of the choices, or there are fewer than two choices.
            The message names the record.
    """
    declaration = Declaration.from_json(json.loads(name or "{}"))
    return [
        _document(declaration, record, f"{path}, record {number}")
        for number, record in enumerate(read_table(path), start=1)
    ]


def _document(declaration: Declaration, record: Mapping[str, Any], location: str) -> dict[str, Any]:
    values = {name: value_at(record, column, location) for name, column in declaration.fields}
    texts = {name: text_of(value, f"{location}, field {name!r}") for name, value in values.items() if _is_text(value)}
    choices = _choices(declaration, values, texts, location)
    target = values[declaration.target]
    return {
        "prompt": render(declaration.seq2seq_pieces, _Texts(texts, location)),
        "choices": choices,
        "right": right_choice(target, choices, f"{location}, field {declaration.target!r}"),
    }


def _choices(declaration: Declaration, values: Mapping[str, Any], texts: Mapping[str, str], location: str) -> list[str]:
    if declaration.choice_pieces:
        return [render(pieces, _Texts(texts, location)) for pieces in declaration.choice_pieces]
    name = str(declaration.choices)
    value = values[name]
    if not isinstance(value, list) or len(value) < 2:
        raise UserError(f"{location}, field {name!r}: needed: a list of two choices or more.")
    return [text_of(choice, f"{location}, field {name!r}") for choice in value]


def right_choice(target: object, choices: Sequence[str], location: str) -> int:
    """Return the index of the correct choice; `target` is its text, its number from 0, or a letter from A.

    These are tried in this order. `location` names file and record in messages.

    >>> right_choice("no", ["yes", "no"], "line 1"), right_choice("A", ["yes", "no"], "line 1")
    (1, 0)

    Raises:
        UserError: The target is none of these.
    """
    text = str(target)
    if isinstance(target, str) and choices.count(target) == 1:
        return choices.index(target)
    if not isinstance(target, bool) and text.isascii() and text.isdigit() and int(text) < len(choices):
        return int(text)
    letters = ascii_uppercase[: len(choices)]
    if len(text) == 1 and text in letters:
        return letters.index(text)
    raise UserError(
        f"{location}: {text[:80]!r} is none of the {len(choices)} choices. Allowed: the text of one, its number "
        "from 0, or a letter from A."
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


class _Texts(dict[str, str]):
    """Text fields of a record by name, for a template; reading any other field raises `UserError`."""

    def __init__(self, texts: Mapping[str, str], location: str) -> None:
        super().__init__(texts)
        self._location = location

    def __missing__(self, name: str) -> str:
        raise UserError(f"{self._location}, field {name!r}: stands in a template. Needed: a text or a number.")
