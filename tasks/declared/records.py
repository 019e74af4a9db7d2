"""Values of records, by the names of their columns."""

from collections.abc import Mapping
from typing import Any

from exitbench.errors import UserError, suggestion

Record = Mapping[str, Any]


def value_at(record: Record, column: str, where: str) -> Any:
    """Return the value of a column; a name with dots leads into objects, such as ``answers.text``.

    Raises:
        UserError: There is none; names what there is.
    """
    if column in record:
        return record[column]
    value: Any = record
    for key in column.split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise UserError(f"{where}: no column {column!r}.{suggestion(column, map(str, record))}")
        value = value[key]
    return value


def text_of(value: object, where: str) -> str:
    """Return a text, or a number as one.

    Raises:
        UserError: It is neither, or holds half of a character.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        kind = "null" if value is None else type(value).__name__
        raise UserError(f"{where}: is {kind}. Needed: a text or a number.")
    text = str(value)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError(f"{where}: holds half of a surrogate pair, which is not a character.")
    return text
