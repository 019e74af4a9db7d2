"""Escape untrusted text for a terminal: control characters have no effect, and different texts look different.

Imports nothing from this project.
"""

import sys
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Final, TextIO

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of characters that are invisible or change how other characters are displayed."""

_SCREEN_LINES: Final = 20
_LINE_LENGTH: Final = 1600
"""Maximum characters of a line: about twenty terminal lines, more than the longest list of allowed names."""


def visible(text: str, keep: str = "") -> str:
    """Return `text` with invisible and control characters escaped, except those in `keep`."""
    if text.isprintable():  # as nearly all texts are
        return text
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in _HIDDEN and character not in keep
        else character
        for character in text
    )


def print_escaped(text: str, file: TextIO | None = None) -> None:
    """Print text that may contain untrusted input, with control characters escaped; to stderr by default."""
    print(visible(text, keep="\n"), file=file or sys.stderr, flush=True)


def number_of(n: int, noun: str) -> str:
    """Return a count with its noun, in the singular for 1: ``'1 cell'`` or ``'2 cells'``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def abbreviate_uniquely(texts: Sequence[str], width: int) -> list[str]:
    """Abbreviate texts to a width so that different texts remain different.

    A text is cut at the end, or in the middle if the beginning alone is not unique. If both cuts are ambiguous, the
    text is not cut.

    Args:
        texts: Texts of one line each.
        width: Maximum characters of an abbreviation, at least 3.

    Examples:
        >>> abbreviate_uniquely(["calm-softmax", "calm-saturation", "full"], 8)
        ['calm-so…', 'calm-sa…', 'full']
    """
    abbreviated: dict[str, str] = {}
    remaining = set(texts)
    for cut in (_without_end, without_middle):
        cuts = {text: cut(text, width) for text in remaining}
        times = Counter([*cuts.values(), *abbreviated.values()])
        abbreviated |= {text: short for text, short in cuts.items() if times[short] == 1}
        remaining -= set(abbreviated)
    return [abbreviated.get(text, text) for text in texts]


def _without_end(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def without_middle(text: str, width: int) -> str:
    """Cut a text to a width of at least 3 by replacing its middle with an ellipsis.

    Examples:
        >>> without_middle("abcdefgh", 5)
        'ab…gh'
    """
    tail = (width - 1) // 2
    return text if len(text) <= width else f"{text[: width - 1 - tail]}…{text[-tail:]}"


def one_screen(text: str) -> str:
    """Return a message cut to 20 lines, and each line to 1,600 characters (about twenty lines of a terminal)."""
    lines = text.split("\n")
    n_cut = len(lines) - _SCREEN_LINES
    if n_cut > 0:
        lines[_SCREEN_LINES:] = [f"… and {number_of(n_cut, 'more line')}"]
    return "\n".join(without_middle(line, _LINE_LENGTH) for line in lines)
