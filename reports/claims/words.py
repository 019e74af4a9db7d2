"""Verdicts as text: tables that fit the terminal, tables in Markdown, and one entry in full. Kinds stand apart."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

from exitbench.reports.claims import VERDICTS, Verdict
from exitbench.reports.claims.claim import CLAIM, CONSISTENCY, KINDS, QUESTION, Claim

HEADINGS: Final = {
    CLAIM: "claims of the authors",
    CONSISTENCY: "consistency checks of printed numbers",
    QUESTION: "questions of ours",
}
_VERDICT_WIDTH: Final = max(map(len, VERDICTS))
_NARROW: Final = 72
"""On a terminal narrower than this, columns stand one under the other."""
_GAP: Final = "  "
_SCOPE: Final = ("parameters_low", "parameters_high", "blocks_low", "blocks_high", "data")
COLUMNS: Final = (
    *("claim_id", "kind", "paper", "place", "quotation", "unquoted", "text", "conditions", "verdict", "value", "low"),
    *("high", "unit", "n", "n_of", *_SCOPE, "simulated", "direction", "bound", "tolerance", "published", "suite"),
    *("caveat", "reason"),
)
"""Columns of a verdict as a row."""


def as_row(verdict: Verdict) -> list[Any]:
    """Return the values of `COLUMNS`."""
    return [_value(verdict, name) for name in COLUMNS]


def _value(verdict: Verdict, name: str) -> Any:
    if name in _SCOPE:
        return getattr(verdict.scope, name, None)
    return getattr(verdict if hasattr(verdict, name) else verdict.claim, name)


def by_kind(verdicts: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    """Return the verdicts of each kind that there is, in the order of `KINDS`."""
    apart = {kind: [it for it in verdicts if it.claim.kind == kind] for kind in KINDS}
    return {kind: some for kind, some in apart.items() if some}


def counted(verdicts: Sequence[Verdict]) -> str:
    """Return how many entries of each kind have each verdict, a line a kind."""
    return "\n".join(_counted(HEADINGS[kind], some) for kind, some in by_kind(verdicts).items()) or "no claims"


def _counted(heading: str, verdicts: Sequence[Verdict]) -> str:
    counts = Counter(verdict.verdict for verdict in verdicts)
    return f"{len(verdicts)} {heading}: {', '.join(f'{counts[word]} {word}' for word in VERDICTS if counts[word])}"


def table(verdicts: Sequence[Verdict], width: int) -> str:
    """Return verdict, claim and evidence of each, a table a kind, wrapped so that no line is longer than `width`."""
    return "\n\n".join(
        f"{_wrapped(HEADINGS[kind].capitalize(), width)[0]}\n\n{_table(some, width)}"
        for kind, some in by_kind(verdicts).items()
    )


def _table(verdicts: Sequence[Verdict], width: int) -> str:
    if width < _NARROW:
        blocks = [[it.verdict, it.claim.claim_id, _said(it.claim), it.evidence] for it in verdicts]
        return "\n\n".join("\n".join(line for text in block for line in _wrapped(text, width)) for block in blocks)
    left = width - _VERDICT_WIDTH - 2 * len(_GAP)
    widths = (_VERDICT_WIDTH, left - left // 2, left // 2)
    rows = [("verdict", "claim", "evidence"), tuple("-" * each for each in widths)]
    lines = [line for row in rows for line in _lines(row, widths)]
    for it in verdicts:
        lines += [*_lines((it.verdict, f"{it.claim.claim_id}\n{_said(it.claim)}", it.evidence), widths), ""]
    return "\n".join(lines[:-1])


def _said(claim: Claim) -> str:
    return claim.text if claim.quotation is None else f"{claim.text}\n“{claim.quotation}”"


def markdown(verdicts: Sequence[Verdict]) -> str:
    """Return a table a kind in Markdown."""
    return "\n\n".join(
        f"### {HEADINGS[kind].capitalize()}\n\n{_markdown(some)}" for kind, some in by_kind(verdicts).items()
    )


def _markdown(verdicts: Sequence[Verdict]) -> str:
    head = ("paper", "place", "claim", "quotation", "verdict", "evidence", "caveat")
    rows = [
        (it.paper, it.place, it.text, it.quotation or "", verdict.verdict, verdict.evidence, it.caveat or "")
        for verdict in verdicts
        for it in (verdict.claim,)
    ]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in (head, ("---",) * len(head), *rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def in_full(verdict: Verdict, width: int) -> str:
    """Return all that is known of one entry, its query last."""
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
    yield claim.kind, claim.text
    yield "quotation", f"“{claim.quotation}”" if claim.quotation else ""
    yield "not quoted", claim.unquoted or ""
    yield "source", f"{claim.paper}, {claim.place}"
    yield "shown in", claim.shown_in or ""
    yield "conditions", claim.conditions
    yield "verdict", verdict.verdict
    yield "evidence", verdict.evidence
    if claim.evidence_sql is not None:
        yield "must be", claim.criterion
    if claim.published is not None:
        yield "published", f"{claim.published:.4g} {claim.unit}"
    yield "caveat", claim.caveat or ""
    yield "measured by", claim.commands


def _lines(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    cells = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
    for parts in zip_longest(*cells, fillvalue=""):
        yield _GAP.join(f"{part:{width}}" for part, width in zip(parts, widths, strict=True)).rstrip()


def _wrapped(text: str, width: int) -> list[str]:
    return [line for part in text.split("\n") for line in textwrap.wrap(part, width, break_on_hyphens=False)]
