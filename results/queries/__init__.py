"""Saved queries over the views: one SQL file per query, whose leading comment describes it.

The comment's first line is the section of the cookbook (`exitbench sql --cookbook`) and a question; the next lines
explain the result:

    -- Exits: Do later tokens exit earlier?
    -- How deep tokens go by their position in the output.
    -- $documents = 100: documents of each run, the first by key

A query may have parameters, `$name`. A comment line `-- $name = value: meaning` sets a default value.
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
    """Query bundled with the package: SQL, the question that it answers, and its parameters.

    Attributes:
        name: Name of the query.
        sql: SQL text, including its leading comment.
        section: Section of the cookbook.
        question: Question that the query answers.
        reading: How to read the result, in one paragraph.
        defaults: Default values of parameters, by name.
        meanings: Descriptions of these parameters, by name.
    """

    name: str
    sql: str
    section: str
    question: str
    reading: str
    defaults: Mapping[str, Any]
    meanings: Mapping[str, str]

    def with_defaults(self) -> str:
        """Return the statement without its comment, with each parameter replaced by its default value."""
        statement = re.sub(r"\A(--.*\n)*", "", self.sql)
        return _PARAMETER.sub(lambda parameter: _literal(self.defaults[parameter[1]]), statement)


def query_names() -> tuple[str, ...]:
    """Return the names of all saved queries, sorted."""
    return tuple(
        sorted(file.name.removesuffix(".sql") for file in files(__name__).iterdir() if file.name[-4:] == ".sql")
    )


def saved_query(name: str) -> SavedQuery:
    """Return the saved query of this name, parsed from its SQL file.

    Raises:
        UserError: The query does not exist; the message lists the existing ones.
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
    """Parse the text of a query parameter: a number, true, false or null if it looks like one, else text."""
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
    """Return a query parameter's value as the text from which `parameter_value` parses it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _literal(value: Any) -> str:
    """Return a value as an SQL literal."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return "NULL" if value is None else str(value)
