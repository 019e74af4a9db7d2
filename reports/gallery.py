"""The documentation's gallery: every figure with its caption, its query and the command that draws it, as Markdown."""

import html
import json
import re
from itertools import groupby
from pathlib import Path
from typing import Final

from exitbench.reports import figures
from exitbench.reports.drawn import note_of
from exitbench.reports.registry import PAPERS, SECTIONS, Source, discover

_MARKS: Final = re.compile(r"([\\*_\[\]])")
_START: Final = """\
# Gallery of figures

Every figure that a report may have, with the query behind it. The whole report is drawn by `exitbench report`.

The command below a figure draws it alone, from the database in `runs/`. It writes SVG, PDF, PNG and CSV.
Pictures here, where there are any, are of small models on generated data, and of few documents: they show what is
drawn, not what early exit is worth. [Reproduce a figure](guide/reproduce-a-figure.md) tells how to make your own.
"""


def gallery(pictures: Path, address: str) -> str:
    """Return the page.

    Args:
        pictures: Folder in which `exitbench report` has drawn figures; one that is not there is no error.
        address: Where the page finds them.
    """
    parts = [_START]
    for section, sources in groupby(discover(figures), key=lambda source: source.section):
        parts.append(f"## {_text(SECTIONS[section])}\n")
        if section in PAPERS:
            parts.append(
                f"[The paper](references.md#{section}), and all that its figures need: `exitbench run {section}`.\n"
            )
        parts += [_figure(source, pictures, address) for source in sources]
    return "\n".join(parts)


def drawn(pictures: Path) -> dict[str, Path]:
    """Return the pictures that are there, by the name of the figure."""
    named = {source.name: pictures / f"{source.name}.svg" for source in discover(figures)}
    return {name: picture for name, picture in named.items() if picture.is_file()}


def _figure(source: Source, pictures: Path, address: str) -> str:
    name, module = source.name, source.module
    parts = [f"### {_text(module.TITLE)} {{ #{name} }}\n"]
    if (pictures / f"{name}.svg").is_file():
        parts.append(f"![{_text(module.TITLE)}]({address}/{name}.svg)\n")
    elif pictures.is_dir():
        parts.append(f"*No picture here.* {_text(module.EMPTY)}\n")
    parts.append(f"{_text(_finding(pictures, name))} {_text(module.CAPTION)}\n".lstrip())
    parts.append(f"```console\n$ exitbench report --only {name}\n```\n")
    query = "\n".join(f"    {line}".rstrip() for line in source.sql.rstrip().splitlines())
    parts.append(f'??? example "The query: {name}.sql"\n\n    ```sql\n{query}\n    ```\n')
    return "\n".join(parts)


def _finding(pictures: Path, name: str) -> str:
    """What a picture that was drawn shows, as it was noted beside it."""
    note = note_of(pictures, name)
    return str(json.loads(note.read_bytes())["finding"]) if note.is_file() else ""


def _text(text: str) -> str:
    """Plain text in Markdown, where only code in backticks is left as it is."""
    parts = text.split("`")
    parts[::2] = [_MARKS.sub(r"\\\1", html.escape(part, quote=False)) for part in parts[::2]]
    return "`".join(parts)
