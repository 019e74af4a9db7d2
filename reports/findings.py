"""Findings that forbid a final report."""

from pathlib import Path
from typing import Final

from exitbench.errors import UserError
from exitbench.results.database.connection import Database
from exitbench.terminal import visible

DO_NOT_CITE: Final = 3
"""Severity of findings with which no final report is made."""

_SEVERE: Final = """
    SELECT printf('%s/%s/%s: %s', model, task_label, method, message) AS finding
    FROM qc WHERE severity >= ? ORDER BY finding, attempt_id
"""


def severe_findings(database: Database) -> tuple[str, ...]:
    """Return the findings that forbid a final report, in words."""
    return tuple(visible(finding) for finding in database.query(_SEVERE, [DO_NOT_CITE])["finding"].to_pylist())


def require_final(severe: tuple[str, ...], path: Path, draft: bool) -> None:
    """Refuse what is not called a draft.

    Raises:
        UserError: There are findings, and no draft was asked for.
    """
    if severe and not draft:
        raise UserError(
            f"{len(severe)} findings say not to cite runs of {path}, for example: {severe[0]}\n"
            "See `exitbench check`. Run what it names again, or ask for a draft with --draft."
        )
