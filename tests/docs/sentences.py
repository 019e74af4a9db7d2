"""Sentences of a Markdown page, each with the line where it begins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_FENCE = re.compile(r"\s*(```|~~~)")
_NO_PROSE = re.compile(r"\s*(#|\||<!--|!!!|---|$)|    ")
_ITEM = re.compile(r"\s*([-*+]|\d+\.)\s+")
_GENERATED = re.compile(r"<!-- (results|made by|measured|parameters)\b")
_GENERATED_END = re.compile(r"<!-- (/results|end) -->")
_END = re.compile(r"[.!?][)*_\"”’]*$")
_ABBREVIATED = re.compile(r"(\b(e\.g|i\.e|etc|vs|cf|Fig|Eq|et al)|\b[A-Z])\.$")


def sentences(page: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, sentence) of prose and list items.

    Code, tables, headings, comments and generated blocks are skipped.
    """
    for start, paragraph in _paragraphs(page.read_text(encoding="utf-8")):
        words: list[str] = []
        line = begun = start
        for text in paragraph:
            for word in text.split():
                begun = begun if words else line
                words.append(word)
                if _END.search(word) and not _ABBREVIATED.search(word):
                    yield begun, " ".join(words)
                    words = []
            line += 1
        if words:
            yield begun, " ".join(words)


def words_of(sentence: str) -> int:
    """How many words a reader reads: `code` and a [link](address) count as what is shown of them."""
    shown = re.sub(r"\]\([^)]*\)", "]", sentence)
    shown = re.sub(r"`[^`]*`", "code", shown)
    return sum(1 for word in shown.split() if re.search(r"\w", word))


def _paragraphs(text: str) -> Iterator[tuple[int, list[str]]]:
    begun, fenced, generated = 0, False, False
    paragraph: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        generated = not _GENERATED_END.match(line) if generated else bool(_GENERATED.match(line))
        if generated:  # the comment that begins the block, like any comment, ends the paragraph before it
            if paragraph:
                yield begun, paragraph
            paragraph = []
            continue
        fence = bool(_FENCE.match(line))
        item = bool(_ITEM.match(line)) and not fenced
        if fence or fenced or item or _NO_PROSE.match(line):
            if paragraph:
                yield begun, paragraph
            paragraph = []
        if not fence and not fenced and (item or not _NO_PROSE.match(line)):
            begun = begun if paragraph else number
            paragraph.append(_ITEM.sub("", line) if item else line)
        fenced ^= fence
