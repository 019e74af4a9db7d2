"""Verdicts on claims as text: a table that fits the terminal, a table in Markdown, and one claim in full."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

from exitbench.reports.claims import VERDICTS, Verdict
from exitbench.reports.claims.claim import Claim

_VERDICT_WIDTH: Final = max(map(len, VERDICTS))
_NARROW: Final = 72
"""On a terminal narrower than this, columns stand one under the other."""
_GAP: Final = "  "
COLUMNS: Final = (
    *(
        "claim_id",
        "paper",
        "place",
        "text",
        "conditions",
        "kind_of_evidence",
        "verdict",
        "value",
        "low",
        "high",
        "unit",
    ),
    *("n", "n_of", "simulated", "direction", "bound", "tolerance", "published", "suite", "caveat", "reason"),
)
"""Columns of a verdict as a row."""


def as_row(verdict: Verdict) -> list[Any]:
    """Return the values of `COLUMNS`."""
    return [getattr(verdict if hasattr(verdict, name) else verdict.claim, name) for name in COLUMNS]


def counted(verdicts: Sequence[Verdict]) -> str:
    """Return how many claims have each verdict."""
    counts = Counter(verdict.verdict for verdict in verdicts)
    found = ", ".join(f"{counts[word]} {word}" for word in VERDICTS if counts[word])
    return f"{len(verdicts)} claims: {found}" if found else "no claims"


def table(verdicts: Sequence[Verdict], width: int) -> str:
    """Return verdict, claim and evidence of each, wrapped so that no line is longer than `width`."""
    if width < _NARROW:
        blocks = [
            [verdict.verdict, verdict.claim.claim_id, verdict.claim.text, verdict.evidence] for verdict in verdicts
        ]
        return "\n\n".join("\n".join(line for text in block for line in _wrapped(text, width)) for block in blocks)
    left = width - _VERDICT_WIDTH - 2 * len(_GAP)
    widths = (_VERDICT_WIDTH, left - left // 2, left // 2)
    rows = [("verdict", "claim", "evidence"), tuple("-" * each for each in widths)]
    lines = [line for row in rows for line in _lines(row, widths)]
    for verdict in verdicts:
        claim = f"{verdict.claim.claim_id}\n{verdict.claim.text}"
        lines += [*_lines((verdict.verdict, claim, verdict.evidence), widths), ""]
    return "\n".join(lines[:-1] if verdicts else lines)


def markdown(verdicts: Sequence[Verdict]) -> str:
    """Return a table in Markdown."""
    head = ("paper", "place", "claim", "verdict", "evidence", "caveat")
    claims = [(it.claim, it) for it in verdicts]
    rows = [(claim.paper, claim.place, claim.text, it.verdict, it.evidence, claim.caveat or "") for claim, it in claims]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in (head, ("---",) * len(head), *rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def in_full(verdict: Verdict, width: int) -> str:
    """Return all that is known of one claim, its query last."""
    told = {name: text for name, text in _told(verdict) if text}
    indent = max(map(len, told)) + len(_GAP)
    lines = [
        textwrap.fill(
            text, max(width, 2 * indent), initial_indent=f"{name:{indent}}", subsequent_indent=" " * indent,
            break_on_hyphens=False, break_long_words=False,
        )
        for name, text in told.items()
    ]  # fmt: skip
    query = verdict.claim.evidence_sql
    return "\n".join([verdict.claim.claim_id, "", *lines, *(["", query.strip()] if query else [])])


def _told(verdict: Verdict) -> Iterator[tuple[str, str]]:
    claim = verdict.claim
    yield "claim", claim.text
    yield "source", f"{claim.paper}, {claim.place}"
    yield "conditions", claim.conditions
    yield "verdict", verdict.verdict
    yield "evidence", verdict.evidence
    if claim.evidence_sql is not None:
        yield "must be", claim.criterion
        yield "kind", f"{claim.kind_of_evidence}{', simulated' if claim.simulated else ''}"
    if claim.published is not None:
        yield "published", f"{claim.published:.4g} {claim.unit}"
    yield "caveat", claim.caveat or ""
    yield "measured by", _measured_by(claim)


def _measured_by(claim: Claim) -> str:
    return f"`exitbench run {claim.suite}`" if claim.suite else ""


def _lines(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    cells = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
    for parts in zip_longest(*cells, fillvalue=""):
        yield _GAP.join(f"{part:{width}}" for part, width in zip(parts, widths, strict=True)).rstrip()


def _wrapped(text: str, width: int) -> list[str]:
    return [line for part in text.split("\n") for line in textwrap.wrap(part, width, break_on_hyphens=False)]
