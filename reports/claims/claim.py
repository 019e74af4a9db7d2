"""What a claim of a paper is."""

from dataclasses import dataclass
from typing import Final

DIRECTIONS: Final = ("at_least", "at_most", "within")
MEASURED: Final = "measured"
PRINTED: Final = "published numbers"
NONE: Final = "none"
KINDS_OF_EVIDENCE: Final = (MEASURED, PRINTED, NONE)


@dataclass(frozen=True)
class Claim:
    """What a document claims, in our words, and the query that tests it.

    Attributes:
        claim_id: Its name, which begins with the ledger file's.
        ledger: Stem of the TOML file that it is from: mee, prune, natcap, heads or calm_free.
        paper: Who claims it: MEE, MEEBLOG, PRUNE, NATCAP, HEADS, or another paper.
        place: Section, figure or table.
        text: The claim.
        conditions: What it was claimed of: models, data, settings.
        kind_of_evidence: `measured` (by runs of ours), `published numbers` (the papers' own, against each other), or
            `none` where nothing here could compare.
        unit: Of the evidence, `bound`, `tolerance` and `published`.
        direction: `at_least`, `at_most`, or `within` (a value).
        bound: What the evidence must reach, must not exceed, or must be.
        tolerance: By how much it may miss.
        published: The paper's own number, where it has one.
        n_of: What the evidence counts: runs, documents, tokens, printed numbers.
        simulated: Whether evidence is from replays or full-depth passes, not from real decodes alone.
        exact: Whether evidence decides without an interval: numbers as printed, and what is so in every run or in none.
        suite: Shipped suite that measures it; None where nothing is to be run.
        caveat: How our evidence differs from what the paper did.
        reason: Why nothing here could compare; None where something can.
        evidence_sql: Query of one row: value (NULL where nothing was measured), low, high (its 95% interval, NULL where
            it has none) and n; None where `reason` says why.
    """

    claim_id: str
    ledger: str
    paper: str
    place: str
    text: str
    conditions: str
    kind_of_evidence: str
    unit: str
    direction: str
    bound: float
    tolerance: float
    published: float | None
    n_of: str
    simulated: bool
    exact: bool
    suite: str | None
    caveat: str | None
    reason: str | None
    evidence_sql: str | None

    def admits(self, value: float) -> bool:
        """Whether the claim holds if the evidence is exactly `value`."""
        return not self.excludes(value, value)

    def excludes(self, low: float, high: float) -> bool:
        """Whether the claim holds for no value from `low` to `high`."""
        too_low = self.direction != "at_most" and high < self.bound - self.tolerance
        too_high = self.direction != "at_least" and low > self.bound + self.tolerance
        return too_low or too_high

    @property
    def criterion(self) -> str:
        """What the evidence must be, in words."""
        margin = f" ± {self.tolerance:g}" if self.direction == "within" else ""
        missed = f", give or take {self.tolerance:g}" if self.tolerance and not margin else ""
        return f"{self.direction.replace('_', ' ')} {self.bound:g}{margin} {self.unit}{missed}"
