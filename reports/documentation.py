"""Parts of the documentation that come from reports: the gallery of figures, and results in the README and elsewhere.

`python -m exitbench.reports.documentation`, in the repository's root, writes all tables of real models, from the
snapshot of results in the package. Given a database, it also writes the README's other table and its picture, and
their data, docs/results.json, from which the tests build both again.
"""

import html
import json
import re
import sys
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.reports import figures, tables
from exitbench.reports.drawing import note_of
from exitbench.reports.frame import Frame
from exitbench.reports.plotting import style
from exitbench.reports.registry import PAPERS, SECTIONS, ReportSource, discover
from exitbench.reports.setting_tables import open_settings, with_settings
from exitbench.reports.tables.columns import fill
from exitbench.reports.tables.writing import markdown_table
from exitbench.results.database.connection import open_database

README_DATA: Final = Path("docs/results.json")
README_PICTURE: Final = Path("docs/results.svg")
_TABLE: Final = "highlights"
_FIGURE: Final = "mee_fig1_no_change"
_BLOCK: Final = re.compile(r"(?<=<!-- results -->\n).*?(?=\n<!-- /results -->)", re.DOTALL)
_MARKS: Final = re.compile(r"([\\*_\[\]])")
_START: Final = """\
# Gallery of figures

Every figure that a report may have, with the query behind it. The whole report is drawn by `exitbench report`.

The command below a figure draws it alone, from the database in `runs/`. It writes SVG, PDF, PNG and CSV.
Pictures here, if any, are of small models, generated data and few documents: they show what a figure contains, not
how well early exit works. [Reproduce a figure](guide/reproduce-a-figure.md) explains how to make your own.
"""


def gallery(pictures: Path) -> str:
    """Return the documentation's gallery of all figures, in Markdown.

    Args:
        pictures: Folder in which `exitbench report` has drawn figures; it need not exist. Its URL, relative to the
            page, is ``figures``.
    """
    parts = [_START]
    for section, sources in groupby(discover(figures), key=lambda source: source.section):
        parts.append(f"## {_text(SECTIONS[section])}\n")
        if section in PAPERS:
            parts.append(
                f"[The paper](references.md#{section}), and all that its figures need: `exitbench run {section}`.\n"
            )
        parts += [_figure(source, pictures) for source in sources]
    return "\n".join(parts)


def drawn_pictures(pictures: Path) -> dict[str, Path]:
    """Return the paths of the SVG files that exist in the folder `pictures`, by figure name."""
    named = {source.name: pictures / f"{source.name}.svg" for source in discover(figures)}
    return {name: picture for name, picture in named.items() if picture.is_file()}


def _figure(source: ReportSource, pictures: Path) -> str:
    name, module = source.name, source.module
    parts = [f"### {_text(module.TITLE)} {{ #{name} }}\n"]
    if (pictures / f"{name}.svg").is_file():
        parts.append(f"![{_text(module.TITLE)}](figures/{name}.svg)\n")
    elif pictures.is_dir():
        parts.append(f"*No picture here.* {_text(source.empty)}\n")
    parts.append(f"{_text(_finding(pictures, name))} {_text(module.CAPTION)}\n".lstrip())
    parts.append(f"```console\n$ exitbench report --only {name}\n```\n")
    query = "\n".join(f"    {line}".rstrip() for line in source.sql.rstrip().splitlines())
    parts.append(f'??? example "The query: {name}.sql"\n\n    ```sql\n{query}\n    ```\n')
    return "\n".join(parts)


def _finding(pictures: Path, name: str) -> str:
    """Return the finding (sentence on the result) recorded when a figure was drawn; empty if there is no record."""
    note = note_of(pictures, name)
    return str(json.loads(note.read_bytes())["finding"]) if note.is_file() else ""


def _text(text: str) -> str:
    """Escape text for Markdown, except for code in backticks."""
    parts = text.split("`")
    parts[::2] = [_MARKS.sub(r"\\\1", html.escape(part, quote=False)) for part in parts[::2]]
    return "`".join(parts)


def update_readme(root: Path, database: Path) -> None:
    """Write the README's result table and picture, and docs/results.json, which has the rows of both.

    Args:
        root: Folder of the README.
        database: A result database, usually the built-in suite's.

    Raises:
        UserError: The database cannot be opened, or has nothing to show.
    """
    with open_database(database) as opened:
        rows = {source.name: Frame.query(opened, source.sql).rows for source in _sources()}
    if missing := sorted(name for name, content in rows.items() if not content):
        raise UserError(f"{database} has no rows for {', '.join(missing)}: run `nox -s bench` first.")
    (root / README_DATA).write_text(json.dumps(rows, indent=0, sort_keys=True) + "\n", "utf-8")
    (root / README_PICTURE).write_bytes(readme_picture(root))
    readme, table = root / "README.md", readme_table(root).replace("\\", r"\\")
    readme.write_text(_BLOCK.sub(table, readme.read_text("utf-8")), "utf-8")


def update_real_models(root: Path) -> None:
    """Write all tables of real models in the README and in `root`/docs, from the snapshot of results in the package."""
    with open_settings() as database:
        for page in pages(root):
            page.write_text(with_settings(database, page.read_text("utf-8")), "utf-8")


def pages(root: Path) -> list[Path]:
    """Return the README and all Markdown pages in `root`/docs."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def readme_table(root: Path) -> str:
    """Return the README's Markdown table of one setting per method, from the rows in `root`/docs/results.json."""
    source, frame = _query_stored(_TABLE, root)
    return markdown_table(fill(source, frame))


def readme_picture(root: Path) -> bytes:
    """Return the README's picture as an SVG file's content, drawn from the rows in `root`/docs/results.json."""
    source, frame = _query_stored(_FIGURE, root)
    with style.theme(style.LIGHT):
        figure = source.module.plot(frame)
        style.lay_out(figure)
        return style.save(figure, "svg")


def _sources() -> list[ReportSource]:
    return [source for source in (*discover(tables), *discover(figures)) if source.name in (_TABLE, _FIGURE)]


def _query_stored(name: str, root: Path) -> tuple[ReportSource, Frame]:
    (source,) = (source for source in _sources() if source.name == name)
    rows: list[dict[str, Any]] = json.loads((root / README_DATA).read_text("utf-8"))[name]
    return source, Frame(tuple(rows[0]), tuple(rows))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit("usage: python -m exitbench.reports.documentation [DATABASE]")
    try:
        update_real_models(Path.cwd())
        if len(sys.argv) == 2:
            update_readme(Path.cwd(), Path(sys.argv[1]))
    except UserError as wrong:
        sys.exit(str(wrong))
