"""Reuse an existing report if database, code and files are unchanged; else write it again."""

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
"""File next to the page that records the inputs and arguments of the report."""
_PARTS: Final = ("index.html", "figures/**/*", "tables/**/*")
_MAKES: Final = ("duckdb", "jinja2", "markupsafe", "matplotlib", "numpy", "pyarrow")


def current_report(
    database: Path,
    output_folder: Path,
    *,
    paper: str | None = None,
    draft: bool = False,
    single_file: bool = False,
    workers: int = 1,
    progress: bool = False,
) -> ReportSummary:
    """Return the report in `output_folder` if writing it again would give the same files; else call `write_report`.

    The digests of the database, the code, library versions and every written file must be unchanged. Arguments and
    errors are those of `render.write_report`, which writes the page, its pictures and the tables.
    """
    require_duckdb_file(database)
    state = file_state(database)
    request = None if state is None else content_id([_code(), sha256(database.resolve()), paper, draft, single_file])
    if request is not None and (existing := _existing_report(output_folder, request)) is not None:
        return existing
    # Imported here because matplotlib and DuckDB take a second to load, not needed if the report is current.
    from exitbench.reports.render import write_report

    summary = write_report(
        database, output_folder, paper=paper, draft=draft, single_file=single_file, workers=workers, progress=progress
    )
    if request is not None and file_state(database) == state and not summary.broken:  # database unchanged
        _remember(output_folder, request, summary)
    return summary


def _existing_report(folder: Path, request: str) -> ReportSummary | None:
    """Return the existing report's summary; None if a file or `request`, the digest of the report's inputs, changed."""
    try:
        note = json.loads((folder / NOTE).read_bytes())
        if note["asked"] != request or note["digests"] != _digests(folder):
            return None
        files = tuple(folder / name for name in note["files"])
        return ReportSummary(
            folder / "index.html", files, tuple(note["figures"]), tuple(note["empty"]), {}, bool(note["is_draft"])
        )
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _remember(folder: Path, request: str, summary: ReportSummary) -> None:
    note: dict[str, Any] = {
        "asked": request,
        "files": [str(file.relative_to(folder)) for file in summary.files],
        "figures": summary.figures,
        "empty": summary.empty,
        "is_draft": summary.is_draft,
    }
    with contextlib.suppress(OSError):  # without the note, the next call writes the report again
        write_whole_file(folder / NOTE, json.dumps({**note, "digests": _digests(folder)}))


def _digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of the report (page, figures, tables) by its path relative to `folder`."""
    paths = (path for part in _PARTS for path in folder.glob(part) if path.is_file())
    return {str(path.relative_to(folder)): sha256(path) for path in paths}


@cache
def _code() -> str:
    """Return one digest of what determines a report besides data: sources, queries, templates and library versions."""
    digests = [sha256(path.resolve()) for path in _sources()]  # some installers install links
    return content_id([*digests, platform.python_version(), *(version(name) for name in _MAKES)])


def _sources() -> list[Path]:
    """Return every file of the packages `reports` and `results`, and of the modules that all packages import."""
    beneath = sorted(Path(terminal.__file__).parent.glob("*.py"))
    return beneath + [path for package in (reports, results) for _, path in source_files(package, "*.*")]
