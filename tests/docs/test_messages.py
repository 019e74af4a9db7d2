"""The messages quoted in docs/guide/troubleshooting.md are those of the code, word for word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from snippets import blocks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guide" / "troubleshooting.md"
ANYTHING = "\0"


def texts(code: str) -> Iterator[str]:
    """Yield every string in Python source, with `ANYTHING` in place of the values in f-strings."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else ANYTHING for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@cache
def pattern_of(message: str) -> re.Pattern[str]:
    parts = [part.strip() for part in message.strip("… .").split("…") if part.strip()]
    return re.compile(f" ?{ANYTHING}.*? ?".join(map(re.escape, parts)), re.DOTALL)


def is_of(message: str, text: str) -> bool:
    """Return whether a quoted message, in which … stands for varying parts, equals a text or a part of it."""
    return pattern_of(message).search(text) is not None


def test_every_quoted_message_exists_in_the_code() -> None:
    rooms = (
        path for room in ("harness", "methods", "tasks", "results", "reports") for path in (ROOT / room).rglob("*.py")
    )
    all_texts = {text for path in rooms for text in texts(path.read_text(encoding="utf-8"))}
    quoted = [block for block in blocks(PAGE) if block.not_run == "a message"]
    assert len(quoted) > 30
    assert [block for block in quoted if not any(is_of(block.text, text) for text in all_texts)] == []


def test_message_that_differs_in_one_word_does_not_match() -> None:
    (text,) = {*texts('f"{model}: tensor {name} is missing from {place}."')} - {": tensor ", " is missing from ", "."}
    assert is_of("…: tensor … is missing from ….", text)
    assert is_of("is missing from", text)
    assert not is_of("…: tensor … is absent from ….", text)
    assert not is_of("tensor is missing from", text)
    assert not is_of("is missing from … tensor", text)
