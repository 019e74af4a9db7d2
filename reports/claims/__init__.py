"""What papers claim, held against a database: `check_claims` gives each claim of the ledger a verdict with evidence.

`claim.py` says what a claim is; `ledger.py` reads the claims from the TOML files here, one file a document;
`words.py` writes verdicts for people.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from exitbench.errors import UserError
from exitbench.reports.claims.claim import Claim
from exitbench.reports.claims.ledger import read_claims
from exitbench.reports.frame import computed_once, rounded
from exitbench.results.database import Database

HOLDS: Final = "holds"
FAILS: Final = "does not hold"
UNDECIDED: Final = "undecided"
NOT_COMPARABLE: Final = "not comparable"
NOT_MEASURED: Final = "not measured"
VERDICTS: Final = (HOLDS, FAILS, UNDECIDED, NOT_COMPARABLE, NOT_MEASURED)

_EVIDENCE: Final = ["value", "low", "high", "n"]
_EQUAL: Final = 1e-9
"""Intervals narrower than this are of equal values, but for rounding."""


@dataclass(frozen=True)
class Verdict:
    """What one database says about a claim.

    Attributes:
        claim: The claim.
        verdict: One of `VERDICTS`.
        value: The evidence in the claim's unit; None where there is none.
        low: Lower end of its 95% interval; None where it has none.
        high: Upper end.
        n: How many of the claim's `n_of` it is from.
    """

    claim: Claim
    verdict: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0

    @property
    def evidence(self) -> str:
        """`value [low, high] unit, n = 12 runs`, or why there is none."""
        claim = self.claim
        if claim.reason is not None:
            return claim.reason
        if self.value is None:
            return f"`exitbench run {claim.suite}` measures it" if claim.suite else "no such number is printed"
        interval = "" if self.low is None or self.high is None else f" [{self.low:.4g}, {self.high:.4g}]"
        simulated = " (simulated)" if claim.simulated else ""
        return f"{self.value:.4g}{interval} {claim.unit}{simulated}, n = {self.n:,} {claim.n_of}"


def check_claims(database: Database, claims: Sequence[Claim] | None = None) -> tuple[Verdict, ...]:
    """Run the query of every claim, or of those given; it needs no more than a database open for reading.

    Raises:
        UserError: A claim's query fails, or gives anything but one row of value, low, high and n.
    """
    with computed_once(database, ("frontier", "published")):
        return tuple(check_claim(database, claim) for claim in (read_claims() if claims is None else claims))


def check_claim(database: Database, claim: Claim) -> Verdict:
    """Run one claim's query.

    Raises:
        UserError: As `check_claims`.
    """
    if claim.evidence_sql is None:
        return Verdict(claim, NOT_COMPARABLE)
    try:
        evidence = database.query(claim.evidence_sql)
    except UserError as error:
        raise UserError(f"Claim {claim.claim_id}: {error}") from error
    if evidence.column_names != _EVIDENCE or evidence.num_rows != 1:
        raise UserError(f"Claim {claim.claim_id}: its query must give one row of value, low, high and n.")
    *ends, n = evidence.to_pylist()[0].values()
    value, low, high = (None if end is None else rounded(float(end)) for end in ends)
    if value is None or not n:
        return Verdict(claim, NOT_MEASURED)
    return Verdict(claim, _verdict(claim, value, low, high), value, low, high, int(n))


def _verdict(claim: Claim, value: float, low: float | None, high: float | None) -> str:
    """The whole interval decides; without one, only what is exact."""
    ends = (value, value) if low is None or high is None else (low, high)
    # Rows that are all equal, or a single one, do not say how much others would differ from them.
    if not claim.exact and math.isclose(*ends, rel_tol=_EQUAL, abs_tol=_EQUAL):
        return UNDECIDED
    if all(map(claim.admits, ends)):
        return HOLDS
    return FAILS if claim.excludes(*ends) else UNDECIDED
