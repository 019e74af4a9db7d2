"""Tables as text for a pull request (Markdown) or a paper (LaTeX with booktabs)."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Final

from exitbench.reports.tables.columns import FilledTable, TableCell, TableColumn
from exitbench.terminal import visible

_LATEX: Final[Mapping[str, str]] = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "Δ": r"$\Delta$",
    "≈": r"$\approx$",
    "✗": r"$\times$",
    "±": r"$\pm$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "–": "--",
    "×": r"$\times$",
    "†": r"$\dagger$",
    "δ": r"$\delta$",
    "ε": r"$\varepsilon$",
    "²": r"\textsuperscript{2}",
    "…": r"\ldots{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


_MINUS: Final = re.compile(r"(?<![\w.])-(?=[\d.])")
_PAGE_POINTS: Final = 458.0  # just under 6.5 inches, the text width of a one-column page; two-column pages are wider
_CHARACTER_POINTS: Final = 3.5  # average in \\scriptsize of ten-point documents
_GAP_POINTS: Final = 8.0
_SHARE_OF_TEXT: Final = 0.75  # largest share of a page's width for columns of text
_FEWEST_LETTERS: Final = 8
_MOST_LINES: Final = 50  # per page, in addition to a caption


_Block = dict[int, str]  # LaTeX column type by column index


def markdown(table: FilledTable) -> str:
    """Return the table in Markdown: a heading, the caption and a pipe table."""
    return f"### {table.source.module.TITLE}\n\n{markdown_table(table)}\n"


def markdown_table(table: FilledTable) -> str:
    """Return the table's caption and a pipe table, in Markdown."""
    return f"{_caption(table, markdown_text)}\n\n{pipe_table(table.columns, table.rows)}"


def pipe_table(columns: Sequence[TableColumn], rows: Sequence[Sequence[TableCell]]) -> str:
    """Return a pipe table in Markdown, without a caption."""
    rule = "|" + "|".join("---:" if column.numeric else "---" for column in columns) + "|"
    cells = [_piped([cell.text for cell in row]) for row in rows]
    return "\n".join([_piped([column.heading for column in columns]), rule, *cells])


def latex(table: FilledTable) -> str:
    """Return the table as LaTeX `table*` environments, each of which fits a page; needs the package booktabs.

    Rows and columns that do not fit continue in another environment; it repeats the columns of text, which identify
    a row.
    """
    blocks = _column_blocks(table)
    parts = [(block, rows) for block in blocks for rows in _pages(table, block)]
    return "\n".join(_latex_part(table, *part, number, len(parts)) for number, part in enumerate(parts, 1))


def _latex_part(table: FilledTable, block: _Block, rows: Sequence[Sequence[TableCell]], number: int, total: int) -> str:
    caption = (
        latex_text(_caption(table, str).replace("`", "")) if number == 1 else latex_text(table.source.module.TITLE)
    )
    label = f"tab:{table.source.name.replace('_', '-')}" + (f"-{number}" if number > 1 else "")
    lines = [_latex_row((table.columns[place].heading, form) for place, form in block.items()), r"\midrule"]
    lines += [_latex_row((row[place].text, form) for place, form in block.items()) for row in rows]
    return "\n".join(
        [
            r"\begin{table*}[tp]",
            rf"\caption{{{caption}{f' (Part {number} of {total}.)' if total > 1 else ''}}}",
            rf"\label{{{label}}}",
            r"\centering\scriptsize\setlength{\tabcolsep}{4pt}",
            rf"\begin{{tabular}}{{{''.join(block.values())}}}",
            r"\toprule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table*}",
            "",
        ]
    )


def _column_blocks(table: FilledTable) -> list[_Block]:
    """Split the columns into blocks that fit a page: each has all text columns, and as many numeric ones as fit."""
    lengths = [
        max(len(column.heading), *(len(row[place].text) for row in table.rows), 1)
        for place, column in enumerate(table.columns)
    ]
    texts = [place for place, column in enumerate(table.columns) if not column.numeric]
    numbers = [place for place, column in enumerate(table.columns) if column.numeric]
    room = _PAGE_POINTS * (_SHARE_OF_TEXT if numbers else 1)
    longest = max((lengths[place] for place in texts), default=0)
    while longest > _FEWEST_LETTERS and sum(_points(min(lengths[place], longest)) for place in texts) > room:
        longest -= 1
    key = {place: "l" if lengths[place] <= longest else rf"p{{{longest * _CHARACTER_POINTS:.0f}pt}}" for place in texts}
    room_for_numbers = _PAGE_POINTS - sum(_points(min(lengths[place], longest)) for place in texts)
    blocks: list[list[int]] = [[]]
    for place in numbers:
        if blocks[-1] and sum(_points(lengths[index]) for index in (*blocks[-1], place)) > room_for_numbers:
            blocks.append([])
        blocks[-1].append(place)
    return [{**key, **dict.fromkeys(block, "r")} for block in blocks]


def _points(letters: int) -> float:
    return letters * _CHARACTER_POINTS + _GAP_POINTS


def _pages(table: FilledTable, block: _Block) -> Iterator[Sequence[Sequence[TableCell]]]:
    """Yield the table's rows in groups that fit a page each, by estimated numbers of lines."""
    page: list[Sequence[TableCell]] = []
    lines = 0
    for row in table.rows:
        n_lines = max(_lines(row[place].text, form) for place, form in block.items())
        if page and lines + n_lines > _MOST_LINES:
            yield page
            page, lines = [], 0
        page.append(row)
        lines += n_lines
    yield page


def _lines(text: str, form: str) -> int:
    """Return the estimated number of lines of a cell in a column of LaTeX type `form`.

    The estimate includes a margin for lines that wrapping leaves partly empty.
    """
    return ceil(1.2 * len(text) / letters) if (letters := _letters(form)) else 1


def _letters(form: str) -> int:
    """Return the number of letters per line in a column of LaTeX type `form`; 0 if the column does not wrap."""
    return int(float(form[2:-3]) / _CHARACTER_POINTS) if form.startswith("p") else 0


FORMATS: Final[Mapping[str, Callable[[FilledTable], str]]] = {"md": markdown, "latex": latex}
"""Function that writes a table, by format."""


def markdown_text(text: str) -> str:
    """Escape `text` so that it cannot end a cell, start markup or open a tag in rendered Markdown."""
    return "".join(f"\\{c}" if c in "\\|`*_<>[]$~" else c for c in visible(" ".join(text.split())))


def latex_text(text: str) -> str:
    """Escape `text` so that LaTeX prints it verbatim."""
    return re.sub("|".join(map(re.escape, _LATEX)), lambda match: _LATEX[match[0]], visible(" ".join(text.split())))


def _caption(table: FilledTable, escaped: Callable[[str], str]) -> str:
    """Return the table's caption, followed by the `escaped` values of columns left out because all rows agree."""
    caption: str = " ".join(filter(None, (table.source.module.CAPTION, table.note)))
    return f"{caption} In all rows: {escaped(table.collapsed_values)}." if table.collapsed_values else caption


def _piped(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(markdown_text, cells)) + " |"


def _latex_row(cells: Iterable[tuple[str, str]]) -> str:
    """Return a LaTeX row from pairs of cell text and column type."""
    return " & ".join(_MINUS.sub("$-$", _latex_cell(text, form)) for text, form in cells) + r" \\"


def _latex_cell(text: str, form: str) -> str:
    """Return `text` as a cell of a column of LaTeX type `form`, such as ``l`` or ``p{60pt}``.

    In a column that wraps (``p``), words longer than a line, such as digests, continue on the next line.
    """
    if not (letters := _letters(form)):
        return latex_text(text)
    words = visible(" ".join(text.split())).split(" ")
    pieces = ([word[at : at + letters - 1] for at in range(0, len(word), letters - 1)] for word in words)
    return " ".join(r"\allowbreak{}".join(map(latex_text, word)) for word in pieces)
