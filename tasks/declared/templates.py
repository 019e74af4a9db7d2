"""Prompt templates of others: field names in braces and nothing else, so that a template can reach nothing."""

from collections.abc import Mapping
from string import Formatter

from exitbench.errors import UserError, suggestion

Pieces = tuple[tuple[str, str | None], ...]
"""Literal text, and the field that follows it; None at the end of the template."""


def parse(template: str, fields: frozenset[str], where: str) -> Pieces:
    """Read a template such as ``question: {question}``; a brace itself is written twice.

    Args:
        template: The text.
        fields: Names that may stand in braces.
        where: The template's place, for messages.

    Raises:
        UserError: Something else than a field's name is in braces, or a brace stands alone.
    """
    try:
        found = list(Formatter().parse(template))
    except ValueError as error:
        raise UserError(f"{where}: {error}. Allowed: {{field}} names; write {{{{ for a brace.") from None
    for _, name, form, conversion in found:
        if name is None:
            continue
        if form or conversion or not name.isidentifier():
            shown = name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
            raise UserError(f"{where}: {{{shown}}} is no field's name alone.{suggestion(name, fields)}")
        if name not in fields:
            raise UserError(f"{where}: unknown field {name!r}.{suggestion(name, fields)}")
    return tuple((literal, name) for literal, name, _, _ in found)


def fields_of(pieces: Pieces) -> frozenset[str]:
    """Return the fields that a template names."""
    return frozenset(name for _, name in pieces if name is not None)


def render(pieces: Pieces, values: Mapping[str, object]) -> str:
    """Return the text with the fields' values in their places; values are not read as templates."""
    return "".join(literal + ("" if name is None else str(values[name])) for literal, name in pieces)
