"""Saved queries over the views, each one SQL file whose leading comment says what it answers.

The comment's first line is the section of `docs/sql.md` and a question, the next say how to read the answer:

    -- Exits: Do later tokens exit earlier?
    -- How deep tokens go by their position in the output.
    -- $documents = 100: documents of each run, the first by key

A query may have parameters, `$name`. A line `-- $name = value: meaning` of its comment gives one a default value.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from exitbench.errors import UserError, suggestion

_DEFAULT: Final = re.compile(r"\$(\w+) = ([^:]+): (.+)")
_PARAMETER: Final = re.compile(r"\$(\w+)")


@dataclass(frozen=True)
class SavedQuery:
    """A query with a name.

    Attributes:
        name: The name.
        sql: The text, its leading comment included.
        section: Where it stands among the others.
        question: What it answers.
        reading: How to read the answer, in one paragraph.
        defaults: Values of parameters, by name.
        meanings: What these parameters are, by name.
    """

    name: str
    sql: str
    section: str
    question: str
    reading: str
    defaults: Mapping[str, Any]
    meanings: Mapping[str, str]

    def with_defaults(self) -> str:
        """Return the statement without its comment, each parameter replaced by its default value."""
        statement = re.sub(r"\A(--.*\n)*", "", self.sql)
        return _PARAMETER.sub(lambda parameter: _literal(self.defaults[parameter[1]]), statement)


def query_names() -> tuple[str, ...]:
    """Return the names of the saved queries."""
    return tuple(
        sorted(file.name.removesuffix(".sql") for file in files(__name__).iterdir() if file.name[-4:] == ".sql")
    )


def saved_query(name: str) -> SavedQuery:
    """Return the saved query `name`.

    Raises:
        UserError: No such query; says which there are.
    """
    if name not in query_names():
        raise UserError(f"There is no saved query {name!r}.{suggestion(name, query_names())}")
    sql = (files(__name__) / f"{name}.sql").read_text(encoding="utf-8")
    comment: list[str] = []
    defaults: dict[str, Any] = {}
    meanings: dict[str, str] = {}
    for line in sql.splitlines():
        if not line.startswith("--"):
            break
        text = line.removeprefix("--").strip()
        if parameter := _DEFAULT.fullmatch(text):
            defaults[parameter[1]] = parameter_value(parameter[2])
            meanings[parameter[1]] = parameter[3]
        else:
            comment.append(text)
    section, _, question = comment[0].partition(": ")
    return SavedQuery(name, sql, section, question, " ".join(comment[1:]), defaults, meanings)


def parameter_value(text: str) -> Any:
    """Return a parameter as it was meant: a number, true, false or null where it looks like one, else text."""
    words = {"true": True, "false": False, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def parameter_text(value: Any) -> str:
    """Return a value as `parameter_value` reads it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _literal(value: Any) -> str:
    """Return a value as SQL spells it."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return "NULL" if value is None else str(value)
