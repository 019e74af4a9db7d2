"""Writes the README's results from a database: `python -m exitbench.reports.readme DATABASE` in the repository's root.

What it shows lies in docs/results.json, from which the tests make table and picture again.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.reports import figures, tables
from exitbench.reports.frame import Frame
from exitbench.reports.plotting import style
from exitbench.reports.registry import Source, discover
from exitbench.reports.tables.filled import fill
from exitbench.reports.tables.writing import markdown_table
from exitbench.results.database.connection import open_database

DATA: Final = Path("docs/results.json")
PICTURE: Final = Path("docs/results.svg")
_TABLE: Final = "highlights"
_FIGURE: Final = "mee_fig1_no_change"
_BLOCK: Final = re.compile(r"(?<=<!-- results -->\n).*?(?=\n<!-- /results -->)", re.DOTALL)


def update(root: Path, database: Path) -> None:
    """Write data, picture and table below `root`.

    Args:
        root: Folder of the README.
        database: A result database, usually the built-in suite's.

    Raises:
        UserError: It cannot be opened, or has nothing to show.
    """
    with open_database(database) as opened:
        rows = {source.name: Frame.query(opened, source.sql).rows for source in _sources()}
    if missing := sorted(name for name, found in rows.items() if not found):
        raise UserError(f"{database} has no rows for {', '.join(missing)}: run `nox -s bench` first.")
    (root / DATA).write_text(json.dumps(rows, indent=0, sort_keys=True) + "\n", "utf-8")
    (root / PICTURE).write_bytes(picture(root))
    readme = root / "README.md"
    readme.write_text(_BLOCK.sub(lambda _: table(root), readme.read_text("utf-8")), "utf-8")


def table(root: Path) -> str:
    """Return the table that the README should have, from the data below `root`."""
    source, frame = _of(_TABLE, root)
    return markdown_table(fill(source, frame))


def picture(root: Path) -> bytes:
    """Return the picture that should be below `root`, from the data there."""
    source, frame = _of(_FIGURE, root)
    with style.theme(style.LIGHT):
        figure = source.module.plot(frame)
        style.lay_out(figure)
        return style.save(figure, "svg")


def _sources() -> list[Source]:
    return [source for source in (*discover(tables), *discover(figures)) if source.name in (_TABLE, _FIGURE)]


def _of(name: str, root: Path) -> tuple[Source, Frame]:
    (source,) = (source for source in _sources() if source.name == name)
    rows: list[dict[str, Any]] = json.loads((root / DATA).read_text("utf-8"))[name]
    return source, Frame(tuple(rows[0]), tuple(rows))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m exitbench.reports.readme DATABASE")
    try:
        update(Path.cwd(), Path(sys.argv[1]))
    except UserError as wrong:
        sys.exit(str(wrong))
