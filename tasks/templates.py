"""Templates of prompts: literal text with field names in braces, such as ``question: {question}``."""

from collections.abc import Mapping
from string import Formatter

from exitbench.errors import UserError, suggestion

Pieces = tuple[tuple[str, str | None], ...]
"""Literal text and the field that follows it; the field is None at the end of the template."""


def parse(template: str, fields: frozenset[str], location: str) -> Pieces:
    """Parse a template such as ``question: {question}`` into literal texts and field names; a literal brace is doubled.

    >>> parse("Q: {question}", frozenset({"question"}), "prompt")
    (('Q: ', 'question'),)

    Args:
        template: Text with names of fields in braces.
        fields: Names that may be used in braces.
        location: File and key of the template, for messages.

    Raises:
        UserError: Braces contain something other than a field's name, or a brace is unmatched.
    """
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise UserError(f"{location}: {error}. Allowed: {{field}} names; write {{{{ for a brace.") from None
    for _, name, form, conversion in parts:
        if name is None:
            continue
        if form or conversion or not name.isidentifier():
            field_text = name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
            raise UserError(f"{location}: {{{field_text}}} is no field's name alone.{suggestion(name, fields)}")
        if name not in fields:
            raise UserError(f"{location}: unknown field {name!r}.{suggestion(name, fields)}")
    return tuple((literal, name) for literal, name, _, _ in parts)


def fields_of(pieces: Pieces) -> frozenset[str]:
    """Return the names of the fields that a parsed template uses."""
    return frozenset(name for _, name in pieces if name is not None)


def render(pieces: Pieces, values: Mapping[str, object]) -> str:
    """Return a parsed template filled with the fields' values; values are not parsed as templates."""
    return "".join(literal + ("" if name is None else str(values[name])) for literal, name in pieces)
