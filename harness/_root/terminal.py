"""Escape untrusted text for a terminal: nothing in it acts on the screen, and what differs looks different.

It lies beneath every package, as `errors` does.
"""

import sys
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Final, TextIO

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of what cannot be seen, or changes how the rest is seen."""

_SCREEN_LINES: Final = 20
_LINE_LENGTH: Final = 1600
"""Twenty lines of a terminal: the longest list of names that is allowed somewhere has less."""


def visible(text: str, keep: str = "") -> str:
    """Return `text` with every character spelled out that cannot be seen or moves others, but those of `keep`."""
    if text.isprintable():  # as nearly all texts are
        return text
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in _HIDDEN and character not in keep
        else character
        for character in text
    )


def tell(text: str, file: TextIO | None = None) -> None:
    """Print lines that may quote what others wrote, with controls spelled out; on stderr where no file is given."""
    print(visible(text, keep="\n"), file=file or sys.stderr, flush=True)


def number_of(n: int, noun: str) -> str:
    """Return ``'1 cell'`` or ``'2 cells'``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def told_apart(texts: Sequence[str], width: int) -> list[str]:
    """Cut texts to a width, in such a way that those which differ still do.

    A text loses its end, or its middle where others begin like it; where neither tells it apart it stays whole.

    Args:
        texts: Each on one line.
        width: Characters, at least 3.
    """
    shown: dict[str, str] = {}
    left = set(texts)
    for cut in (_without_end, without_middle):
        cuts = {text: cut(text, width) for text in left}
        times = Counter([*cuts.values(), *shown.values()])
        shown |= {text: short for text, short in cuts.items() if times[short] == 1}
        left -= set(shown)
    return [shown.get(text, text) for text in texts]


def _without_end(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def without_middle(text: str, width: int) -> str:
    """Cut a text to a width, at least 3, where it is longer: an ellipsis takes the place of its middle."""
    tail = (width - 1) // 2
    return text if len(text) <= width else f"{text[: width - 1 - tail]}…{text[-tail:]}"


def one_screen(text: str) -> str:
    """Return a message that fits on a screen, whatever it quotes."""
    lines = text.split("\n")
    left_out = len(lines) - _SCREEN_LINES
    if left_out > 0:
        lines[_SCREEN_LINES:] = [f"… and {number_of(left_out, 'more line')}"]
    return "\n".join(without_middle(line, _LINE_LENGTH) for line in lines)
