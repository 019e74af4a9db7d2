"""Sentences of a Markdown page, with the line where each begins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_FENCE = re.compile(r"\s*(```|~~~)")
_NO_PROSE = re.compile(r"\s*(#|\||<!--|!!!|---|$)|    ")
_ITEM = re.compile(r"\s*([-*+]|\d+\.)\s+")
_GENERATED = re.compile(r"<!-- (real|results|made by|measured|parameters)\b")
_GENERATED_END = re.compile(r"<!-- (/real|/results|end) -->")
_END = re.compile(r"[.!?][)*_\"”’]*$")
_ABBREVIATED = re.compile(r"(\b(e\.g|i\.e|etc|vs|cf|Fig|Eq|et al)|\b[A-Z])\.$")


def sentences(page: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, sentence) of prose and list items.

    Code, tables, headings, comments and generated blocks are skipped.
    """
    for start, paragraph in _paragraphs(page.read_text(encoding="utf-8")):
        words: list[str] = []
        line = start_line = start
        for text in paragraph:
            for word in text.split():
                start_line = start_line if words else line
                words.append(word)
                if _END.search(word) and not _ABBREVIATED.search(word):
                    yield start_line, " ".join(words)
                    words = []
            line += 1
        if words:
            yield start_line, " ".join(words)


def words_of(sentence: str) -> int:
    """Return the number of words that a reader sees: `code` is one word, a [link](address) its text."""
    rendered = re.sub(r"\]\([^)]*\)", "]", sentence)
    rendered = re.sub(r"`[^`]*`", "code", rendered)
    return sum(1 for word in rendered.split() if re.search(r"\w", word))


def _paragraphs(text: str) -> Iterator[tuple[int, list[str]]]:
    start_line, fenced, generated = 0, False, False
    paragraph: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        generated = not _GENERATED_END.match(line) if generated else bool(_GENERATED.match(line))
        if generated:  # the comment that begins the block, like any comment, ends the paragraph before it
            if paragraph:
                yield start_line, paragraph
            paragraph = []
            continue
        fence = bool(_FENCE.match(line))
        item = bool(_ITEM.match(line)) and not fenced
        if fence or fenced or item or _NO_PROSE.match(line):
            if paragraph:
                yield start_line, paragraph
            paragraph = []
        if not fence and not fenced and (item or not _NO_PROSE.match(line)):
            start_line = start_line if paragraph else number
            paragraph.append(_ITEM.sub("", line) if item else line)
        fenced ^= fence
