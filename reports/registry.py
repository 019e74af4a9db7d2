"""Discover the parts of a report: every `<name>.sql` with a `<name>.py` next to it, in figures/ and in tables/."""

import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from exitbench.reports.labels import natural_key

OURS = "ours"
SECTIONS = {
    "results": "Results",
    OURS: "What early exit costs and gives",
    "mee": "Monotonic Early Exiting (MEE)",
    "prune": "Vocabulary pruning and contrastive decoding (PRUNE)",
    "natcap": "Early Exit Is a Natural Capability (NATCAP)",
    "heads": "Self-Supervised Early Exits (HEADS)",
    "explain": "Why published numbers come out as they do",
    "provenance": "Where the numbers are from",
    "findings": "Before you cite",
}
"""Sections of the report, in order. A source's section is its module's SECTION, else the prefix of its name if
that is a section, else "ours"."""

_CONTINUED = re.compile(r"^-- continues in (\S+)$", re.MULTILINE)
PAPERS = ("mee", "prune", "natcap", "heads")
"""Sections that reproduce a paper's figures and tables."""


@dataclass(frozen=True)
class ReportSource:
    """Figure or table: its query and the module that draws or formats the rows.

    Attributes:
        name: Stem of the .sql and .py file, `<paper>_<fig or table><number>_<subject>`; also names the written files.
        sql: Query over the documented views of the database. In the .sql file, a line `-- continues in shared/X.sql`,
            a path relative to it, stands for the text of that other file.
        module: Module with TITLE and CAPTION; for a figure also `plot` and `finding`, for a table COLUMNS. Optional:
            EMPTY (text shown if there are no rows; default: EMPTY of the package), ORDER (a sort key), and SECTION
            (default: the prefix of `name`).
    """

    name: str
    sql: str
    module: ModuleType

    @property
    def empty(self) -> str:
        """Text shown in place of the figure or table if its query returns no rows."""
        return str(getattr(self.module, "EMPTY", None) or sys.modules[str(self.module.__package__)].EMPTY)

    @property
    def section(self) -> str:
        """Section of the report in which the figure or table is: a key of `SECTIONS`."""
        prefix = self.name.partition("_")[0]
        section: str = getattr(self.module, "SECTION", prefix)
        return section if section in SECTIONS else OURS


@cache
def discover(package: ModuleType) -> tuple[ReportSource, ...]:
    """Return all figures, or all tables, in their order on the report's page.

    Args:
        package: The package `figures` or `tables`: a folder of .sql/.py pairs, or of such folders.
    """
    return tuple(sorted(_sources(package.__name__, Path(package.__path__[0])), key=_sort_key))


def _sources(package: str, folder: Path) -> Iterator[ReportSource]:
    """Yield the figures or tables of a folder and of its subpackages."""
    for module in pkgutil.iter_modules([str(folder)]):
        query, name = folder / f"{module.name}.sql", f"{package}.{module.name}"
        if module.ispkg:
            yield from _sources(name, folder / module.name)
        elif query.exists():
            yield ReportSource(module.name, _full_query(query), import_module(name))


def _full_query(path: Path) -> str:
    """Return a .sql file's query, in which the text of a shared file replaces the line that names that file."""
    text = path.read_text("utf-8")
    return _CONTINUED.sub(lambda match: (path.parent / match[1]).read_text("utf-8").rstrip("\n"), text)


def _sort_key(source: ReportSource) -> tuple[int, float, list[tuple[str, float]]]:
    """Return the key by which figures and tables are sorted: section, ORDER, and name with numbers in numeric order."""
    order = getattr(source.module, "ORDER", 0)
    return list(SECTIONS).index(source.section), order, natural_key(source.name)
