"""Finds what a report consists of: every `<name>.sql` with a `<name>.py` beside it, in figures/ and in tables/."""

import pkgutil
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True)
class Source:
    """One figure or table: its query and the module that draws or formats the rows.

    Attributes:
        name: Stem of both files; names the written files too.
        sql: The query, over the documented views of the database only.
        module: Holds ORDER (place on the page), TITLE, CAPTION, EMPTY (said without rows) and `plot` or `COLUMNS`.
    """

    name: str
    sql: str
    module: ModuleType


def discover(package: ModuleType) -> tuple[Source, ...]:
    """Return the sources of `package` (a folder of .sql/.py pairs), in the order of the page."""
    folder = Path(package.__path__[0])
    names = sorted(module.name for module in pkgutil.iter_modules([str(folder)]))
    sources = (
        Source(name, (folder / f"{name}.sql").read_text("utf-8"), import_module(f"{package.__name__}.{name}"))
        for name in names
        if (folder / f"{name}.sql").exists()
    )
    return tuple(sorted(sources, key=lambda source: (source.module.ORDER, source.name)))
