"""Claims of papers, held against what has been measured: holds, does not hold, or not measured."""

from dataclasses import dataclass
from typing import Final

from exitbench.errors import UserError
from exitbench.results.database import Database

HOLDS: Final = "holds"
FAILS: Final = "does not hold"
UNMEASURED: Final = "not measured"


@dataclass(frozen=True)
class Claim:
    """What a paper claims, in our words, as in the view `claims`.

    Attributes:
        claim_id: Its name.
        paper: Who claims it.
        place: Section, figure or table.
        text: The claim.
        unit: Of the evidence, `bound` and `published`.
        direction: `at_least` or `at_most`.
        bound: What the evidence must reach or not exceed.
        tolerance: By how much it may miss.
        published: The paper's own number, where it has one.
        suite: Shipped suite that measures it.
        caveat: How our evidence differs from what the paper did.
        evidence_sql: Query of one row: value (NULL where nothing was measured) and n.
    """

    claim_id: str
    paper: str
    place: str
    text: str
    unit: str
    direction: str
    bound: float
    tolerance: float
    published: float | None
    suite: str
    caveat: str | None
    evidence_sql: str

    def admits(self, value: float) -> bool:
        """Whether the claim holds if `value` is what was measured."""
        if self.direction == "at_least":
            return value >= self.bound - self.tolerance
        return value <= self.bound + self.tolerance


@dataclass(frozen=True)
class Verdict:
    """What the runs of one database say about a claim.

    Attributes:
        claim: The claim.
        verdict: `holds`, `does not hold` or `not measured`.
        value: The evidence in the claim's unit; None where nothing was measured.
        n: Runs, documents or tokens that it is from.
    """

    claim: Claim
    verdict: str
    value: float | None
    n: int


def check_claims(database: Database) -> list[Verdict]:
    """Run every claim's query; it needs no more than a database open for reading.

    Raises:
        UserError: A claim's query fails, or gives anything but one row of value and n.
    """
    return [_check(database, Claim(**row)) for row in database.query("FROM claims").to_pylist()]


def _check(database: Database, claim: Claim) -> Verdict:
    try:
        evidence = database.query(claim.evidence_sql)
    except UserError as error:
        raise UserError(f"Claim {claim.claim_id}: {error}") from error
    if evidence.column_names != ["value", "n"] or evidence.num_rows != 1:
        raise UserError(f"Claim {claim.claim_id}: its query must give one row of value and n.")
    (row,) = evidence.to_pylist()
    if row["value"] is None or not row["n"]:
        return Verdict(claim, UNMEASURED, None, 0)
    return Verdict(claim, HOLDS if claim.admits(row["value"]) else FAILS, row["value"], row["n"])
