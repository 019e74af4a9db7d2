"""Test the claims and printed numbers of papers on a database: `check_claims` gives each ledger entry a verdict.

`claim.py` defines an entry and reads the entries from the TOML files in this folder, one file per paper.
"""

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.reports.claims.claim import CLAIM, CONSISTENCY, KINDS, QUESTION, Claim, Scope, read_claims, scope_of
from exitbench.reports.frame import NAMING_VIEWS, computed_once, rounded
from exitbench.results.database.connection import Database

HOLDS: Final = "holds here"
FAILS: Final = "fails here"
CONSISTENT: Final = "consistent"
INCONSISTENT: Final = "inconsistent"
UNDECIDED: Final = "undecided"
NOT_COMPARABLE: Final = "not comparable"
NOT_MEASURED: Final = "not measured"
VERDICTS: Final = (HOLDS, FAILS, CONSISTENT, INCONSISTENT, UNDECIDED, NOT_COMPARABLE, NOT_MEASURED)
"""Measured claims hold or fail on this database's models and data; printed numbers are consistent or not."""

_PRINTED: Final = frozenset({"value", "low", "high", "n"})
_MEASURED: Final = _PRINTED | {"attempts"}
_EQUAL: Final = 1e-9
"""An interval narrower than this means equal values up to rounding."""
_MISSED: Final = 0.025
"""Probability of missing at each end of a 95% interval."""

_FEWEST_UNITS: Final = 3
_COARSE_UNITS: Final = ("models and tasks", "models, tasks and trainings", "models", "tasks", "trainings", "heads")
"""Units of `n_of` whose interval includes no variation between documents; fewer than `_FEWEST_UNITS` decide nothing."""


@dataclass(frozen=True)
class Verdict:
    """Verdict on a ledger entry (a claim, consistency check or question), from the data of one database.

    Attributes:
        claim: The entry.
        verdict: One of `VERDICTS`.
        value: The evidence in the entry's unit; None without evidence.
        low: Lower end of its 95% interval; None without one.
        high: Upper end.
        n: Sample size of the evidence, in the entry's unit `n_of`.
        scope: Models and data behind the evidence; None for printed numbers and without evidence.
    """

    claim: Claim
    verdict: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    scope: Scope | None = None

    @property
    def evidence(self) -> str:
        """The evidence, ``'value [low, high] unit, n = 12 runs; 0.9M parameters, ...'``, or the reason for none."""
        claim = self.claim
        if claim.reason is not None:
            return claim.reason
        if self.value is None:
            return f"measured by {claim.commands}" if claim.suite else "no such number is printed"
        return f"{self.measured} {self.basis}"

    @property
    def measured(self) -> str:
        """Value of the evidence with its interval, ``'value [low, high]'``; empty without evidence."""
        return "" if self.value is None else _with_interval("{:.4g}", self.value, self.low, self.high)

    @property
    def difference(self) -> str:
        """Evidence minus the published number, ``'value [low, high]'`` with signs; empty if one is missing."""
        if self.value is None or (published := self.claim.published) is None:
            return ""
        ends = (None if end is None else rounded(end - published) for end in (self.low, self.high))
        return _with_interval("{:+.3g}", rounded(self.value - published), *ends)

    @property
    def basis(self) -> str:
        """Unit, sample size and scope of the evidence: ``'unit, n = 12 runs; 0.9M parameters, 8 blocks, ...'``."""
        claim = self.claim
        simulated = " (simulated)" if claim.simulated else ""
        scope = f"; {self.scope}" if self.scope else ""
        return f"{claim.unit}{simulated}, n = {self.n:,} {claim.n_of}{scope}"


def _with_interval(form: str, value: float, low: float | None, high: float | None) -> str:
    interval = "" if low is None or high is None else f" [{form.format(low)}, {form.format(high)}]"
    return f"{form.format(value)}{interval}"


def check_claims(database: Database, claims: Sequence[Claim] | None = None) -> tuple[Verdict, ...]:
    """Return a verdict on every ledger entry, or on those of `claims`, by running each entry's query.

    Read access to the database is enough.

    Raises:
        UserError: A query fails, or does not give one row of the columns that its entry needs.
    """
    with computed_once(database, (*NAMING_VIEWS, "metric_values", "frontier", "published", "plain_probes")):
        return tuple(check_claim(database, claim) for claim in (read_claims() if claims is None else claims))


def check_claim(database: Database, claim: Claim) -> Verdict:
    """Return the verdict on one ledger entry, by running its query.

    Raises:
        UserError: The query fails, or does not give one row of the columns that the entry needs.
    """
    if claim.evidence_sql is None:
        return Verdict(claim, NOT_COMPARABLE)
    try:
        columns, rows = database.rows(claim.evidence_sql)
    except UserError as error:
        raise UserError(f"Claim {claim.claim_id}: {error}") from error
    needed = _PRINTED if claim.suite is None else _MEASURED
    if set(columns) - {"rows"} != needed or len(rows) != 1:
        names = ", ".join(sorted(needed))
        raise UserError(f"Claim {claim.claim_id}: its query must give one row of {names}.")
    row = dict(zip(columns, rows[0], strict=True))
    if row["value"] is None or not row["n"]:
        return Verdict(claim, NOT_MEASURED)
    value: float = rounded(float(row["value"]))
    low, high = (None if end is None else rounded(float(end)) for end in _interval(claim, row))
    scope = None if claim.suite is None else scope_of(database, row["attempts"] or ())
    return Verdict(claim, _verdict(claim, value, low, high, int(row["n"])), value, low, high, int(row["n"]), scope)


def _interval(claim: Claim, row: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the 95 % interval of the evidence; (None, None) without one.

    If all rows of the evidence are equal and `claim.limits` are known, it is an exact (Clopper-Pearson) interval.
    """
    value, low, high = row["value"], row["low"], row["high"]
    if claim.limits is None or not (low is None or high is None or _are_equal(low, high)):
        return low, high
    # Clopper and Pearson's bound, with none that differs in the sample: at most this share of all rows differs from
    # these, by anything within the limits.
    share = 1 - _MISSED ** (1 / row.get("rows", row["n"]))
    least, most = claim.limits
    return value - share * (value - least), value + share * (most - value)


def _verdict(claim: Claim, value: float, low: float | None, high: float | None, n: int) -> str:
    """Return the verdict: undecided, unless the entry holds, or fails, for all values from `low` to `high`.

    Without an interval, only evidence that the entry calls exact decides. One or two models and tasks decide nothing.
    """
    if not claim.exact and claim.n_of in _COARSE_UNITS and n < _FEWEST_UNITS:
        return UNDECIDED
    ends = (value, value) if low is None or high is None else (low, high)
    # Equal rows, or a single one, do not say how much other rows would differ.
    if not claim.exact and _are_equal(*ends):
        return UNDECIDED
    printed = claim.kind == CONSISTENCY
    if all(map(claim.admits, ends)):
        return CONSISTENT if printed else HOLDS
    return UNDECIDED if not claim.excludes(*ends) else INCONSISTENT if printed else FAILS


def _are_equal(low: float, high: float) -> bool:
    return math.isclose(low, high, rel_tol=_EQUAL, abs_tol=_EQUAL)


HEADINGS: Final = {
    CLAIM: "claims of the authors",
    CONSISTENCY: "consistency checks of printed numbers",
    QUESTION: "questions of ours",
}
_VERDICT_WIDTH: Final = max(map(len, VERDICTS))
_NARROW: Final = 72
"""On a terminal narrower than this, columns are stacked."""
_GAP: Final = "  "
_SCOPE: Final = ("parameters_low", "parameters_high", "blocks_low", "blocks_high", "data")
COLUMNS: Final = (
    *("claim_id", "kind", "paper", "place", "quotation", "unquoted", "text", "conditions", "verdict", "value", "low"),
    *("high", "unit", "n", "n_of", *_SCOPE, "simulated", "direction", "bound", "tolerance", "published", "suite"),
    *("caveat", "reason"),
)
"""Column names of `as_row`."""


def as_row(verdict: Verdict) -> list[Any]:
    """Return a verdict and its entry as one row of values, in the order of `COLUMNS`."""
    return [_value(verdict, name) for name in COLUMNS]


def _value(verdict: Verdict, name: str) -> Any:
    if name in _SCOPE:
        return getattr(verdict.scope, name, None)
    return getattr(verdict if hasattr(verdict, name) else verdict.claim, name)


def by_kind(verdicts: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    """Return the verdicts by kind of entry (claim, consistency, question), in this order, without empty kinds."""
    groups = {kind: [it for it in verdicts if it.claim.kind == kind] for kind in KINDS}
    return {kind: some for kind, some in groups.items() if some}


def counted(verdicts: Sequence[Verdict]) -> str:
    """Return as text how many entries of each kind have each verdict, one line per kind."""
    return "\n".join(_counted(HEADINGS[kind], some) for kind, some in by_kind(verdicts).items()) or "no claims"


def _counted(heading: str, verdicts: Sequence[Verdict]) -> str:
    counts = Counter(verdict.verdict for verdict in verdicts)
    return f"{len(verdicts)} {heading}: {', '.join(f'{counts[word]} {word}' for word in VERDICTS if counts[word])}"


def table(verdicts: Sequence[Verdict], width: int) -> str:
    """Return a text table of verdict, claim and evidence per kind of entry, wrapped at `width` characters."""
    return "\n\n".join(
        f"{_wrapped(HEADINGS[kind].capitalize(), width)[0]}\n\n{_table(some, width)}"
        for kind, some in by_kind(verdicts).items()
    )


def _table(verdicts: Sequence[Verdict], width: int) -> str:
    if width < _NARROW:
        blocks = [[it.verdict, it.claim.claim_id, _statement(it.claim), it.evidence] for it in verdicts]
        return "\n\n".join("\n".join(line for text in block for line in _wrapped(text, width)) for block in blocks)
    room = width - _VERDICT_WIDTH - 2 * len(_GAP)
    widths = (_VERDICT_WIDTH, room - room // 2, room // 2)
    rows = [("verdict", "claim", "evidence"), tuple("-" * each for each in widths)]
    lines = [line for row in rows for line in _lines(row, widths)]
    for it in verdicts:
        lines += [*_lines((it.verdict, f"{it.claim.claim_id}\n{_statement(it.claim)}", it.evidence), widths), ""]
    return "\n".join(lines[:-1])


def _statement(claim: Claim) -> str:
    return claim.text if claim.quotation is None else f"{claim.text}\n“{claim.quotation}”"


def markdown(verdicts: Sequence[Verdict]) -> str:
    """Return one Markdown table of verdicts per kind of entry."""
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


def full_entry(verdict: Verdict, width: int) -> str:
    """Return all that is known of one ledger entry as text, its SQL query last."""
    facts = {name: text for name, text in _facts(verdict) if text}
    indent = max(map(len, facts)) + len(_GAP)
    lines = [
        textwrap.fill(
            text, max(width, 2 * indent), initial_indent=f"{name:{indent}}", subsequent_indent=" " * indent,
            break_on_hyphens=False, break_long_words=False,
        )
        for name, text in facts.items()
    ]  # fmt: skip
    query = verdict.claim.evidence_sql
    return "\n".join([verdict.claim.claim_id, "", *lines, *(["", query.strip()] if query else [])])


def _facts(verdict: Verdict) -> Iterator[tuple[str, str]]:
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
