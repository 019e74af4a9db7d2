"""The report as it lies there, where it is of this very database and by this very code; else it is written anew."""

import contextlib
import json
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from exitbench import reports, results, terminal
from exitbench.reports import ReportSummary
from exitbench.results.database.access import file_state
from exitbench.results.files.atomic import sha256, write_whole_file
from exitbench.results.files.duckdb_files import require_duckdb_file
from exitbench.results.files.formats import content_id, source_files

NOTE: Final = ".report.json"
"""File beside the page that says what it was made from, and how."""
_PARTS: Final = ("index.html", "figures/**/*", "tables/**/*")
_MAKES: Final = ("duckdb", "jinja2", "markupsafe", "matplotlib", "numpy", "pyarrow")


def current_report(
    database: Path,
    out: Path,
    *,
    paper: str | None = None,
    draft: bool = False,
    single_file: bool = False,
    workers: int = 1,
    progress: bool = False,
) -> ReportSummary:
    """Return the report that lies in `out` where each of its files would come out the same; else `write_report`.

    Database, code, versions of libraries and every file written must have the digests that they had then. Arguments and
    errors are those of `write_report`.
    """
    require_duckdb_file(database)
    state = file_state(database)
    asked = None if state is None else content_id([_code(), sha256(database.resolve()), paper, draft, single_file])
    if asked is not None and (kept := _kept(out, asked)) is not None:
        return kept
    # Imported here: matplotlib and DuckDB take a second that nobody waits for where nothing is to be written.
    from exitbench.reports.render import write_report

    summary = write_report(
        database, out, paper=paper, draft=draft, single_file=single_file, workers=workers, progress=progress
    )
    if asked is not None and file_state(database) == state and not summary.broken:  # nobody wrote into it meanwhile
        _remember(out, asked, summary)
    return summary


def _kept(out: Path, asked: str) -> ReportSummary | None:
    """Return what was written; nothing where that was of something else, or a file is not as it was."""
    try:
        note = json.loads((out / NOTE).read_bytes())
        if note["asked"] != asked or note["digests"] != _digests(out):
            return None
        files = tuple(out / name for name in note["files"])
        return ReportSummary(
            out / "index.html", files, tuple(note["figures"]), tuple(note["empty"]), {}, bool(note["is_draft"])
        )
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _remember(out: Path, asked: str, summary: ReportSummary) -> None:
    note: dict[str, Any] = {
        "asked": asked,
        "files": [str(file.relative_to(out)) for file in summary.files],
        "figures": summary.figures,
        "empty": summary.empty,
        "is_draft": summary.is_draft,
    }
    with contextlib.suppress(OSError):  # without a note it is written again
        write_whole_file(out / NOTE, json.dumps({**note, "digests": _digests(out)}))


def _digests(out: Path) -> dict[str, str]:
    """Digests of all files of the report, and of whatever else lies among them."""
    found = (path for part in _PARTS for path in out.glob(part) if path.is_file())
    return {str(path.relative_to(out)): sha256(path) for path in found}


@cache
def _code() -> str:
    """Digest of all that a page is made by: sources, queries, templates and texts of ours, and versions of others."""
    digests = [sha256(path.resolve()) for path in _sources()]  # some installers put links there
    return content_id([*digests, platform.python_version(), *(version(name) for name in _MAKES)])


def _sources() -> list[Path]:
    """Every file of the two packages that write reports, and what lies beneath all of them."""
    beneath = sorted(Path(terminal.__file__).parent.glob("*.py"))
    return beneath + [path for package in (reports, results) for _, path in source_files(package, "*.*")]
