"""Tables as text for a pull request (Markdown) or a paper (LaTeX with booktabs)."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from exitbench.reports.tables.filled import FilledTable
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
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def markdown(table: FilledTable) -> str:
    """Return the table as a Markdown heading, caption and pipe table."""
    return f"### {table.source.module.TITLE}\n\n{markdown_table(table)}\n"


def markdown_table(table: FilledTable) -> str:
    """Return the caption and the pipe table."""
    rule = "|" + "|".join("---:" if column.numeric else "---" for column in table.columns) + "|"
    lines = [_piped([column.heading for column in table.columns]), rule]
    lines += [_piped([cell.text for cell in row]) for row in table.rows]
    return f"{_caption(table, markdown_text)}\n\n" + "\n".join(lines)


def latex(table: FilledTable) -> str:
    """Return the table as a LaTeX `table` environment; needs the package booktabs."""
    columns = "".join("r" if column.numeric else "l" for column in table.columns)
    lines = [_latex_row([column.heading for column in table.columns]), r"\midrule"]
    lines += [_latex_row([cell.text for cell in row]) for row in table.rows]
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{latex_text(_caption(table, str).replace('`', ''))}}}",
            rf"\label{{tab:{table.source.name.replace('_', '-')}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


FORMATS: Final[Mapping[str, Callable[[FilledTable], str]]] = {"md": markdown, "latex": latex}
"""What writes a table in each format."""


def markdown_text(text: str) -> str:
    """Return `text` so that it cannot end a cell, start markup or open a tag where Markdown is rendered."""
    return "".join(f"\\{c}" if c in "\\|`*_<>[]$~" else c for c in visible(" ".join(text.split())))


def latex_text(text: str) -> str:
    """Return `text` so that LaTeX prints it as it is."""
    return re.sub("|".join(map(re.escape, _LATEX)), lambda found: _LATEX[found[0]], visible(" ".join(text.split())))


def _caption(table: FilledTable, escaped: Callable[[str], str]) -> str:
    """Return the caption, which is ours, and what all rows agree on, which is data."""
    caption: str = " ".join(filter(None, (table.source.module.CAPTION, table.note)))
    return f"{caption} In all rows: {escaped(table.agreed)}." if table.agreed else caption


def _piped(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(markdown_text, cells)) + " |"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"
