"""Entries of the ledger: claims of papers, consistency checks of printed numbers, questions of ours.

They are read from the TOML files of this folder, one per document.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final

from exitbench.errors import UserError, suggestion
from exitbench.results.database.connection import Database

CLAIM: Final = "claim"
CONSISTENCY: Final = "consistency"
QUESTION: Final = "question"
KINDS: Final = (CLAIM, CONSISTENCY, QUESTION)

DIRECTIONS: Final = ("at_least", "at_most", "within")
MOST_WORDS: Final = 25
"""Of a quotation."""


@dataclass(frozen=True)
class Claim:
    """What authors wrote or printed, or what we ask, in our words, and the query that tests it.

    Attributes:
        claim_id: Its name, which begins with the ledger file's.
        ledger: Stem of the TOML file that it is from: mee, prune, natcap, heads, calm_free or encoders.
        kind: `claim`: the authors write it, and runs of ours test it; `consistency`: printed numbers are held against
            each other; `question`: ours, raised by what a paper shows, and nobody's claim.
        paper: Whose words or numbers these are, or what raises the question: MEE, MEEBLOG, PRUNE, NATCAP, HEADS, or
            another paper.
        place: Section, figure or table.
        shown_in: Name of our figure or table that shows what it is about; None where none does.
        quotation: Of a claim, the authors' words, at most `MOST_WORDS`; None where `unquoted` says why, and of anything
            else.
        unquoted: Of a claim without a quotation, why it is told in our words.
        text: What is tested.
        conditions: What it is said or printed of: models, data, settings.
        unit: Of the evidence, `bound`, `tolerance` and `published`.
        direction: `at_least`, `at_most`, or `within` (a value).
        bound: What the evidence must reach, must not exceed, or must be.
        tolerance: By how much it may miss.
        published: The paper's own number, where it has one.
        n_of: What the evidence counts: runs, documents, tokens, printed numbers.
        limits: Between which values each row of the evidence lies, where it cannot lie elsewhere: rows that are all
            equal then have an exact interval. None where rows have no such limits, or are no sample of anything.
        simulated: Whether evidence is from replays or full-depth passes, not from real decodes alone.
        exact: Whether evidence decides without an interval: numbers as printed, and what is so in every run or in none.
        suite: Shipped suite that measures it; None where nothing is to be run.
        then: Command that must follow the suite; None where it is enough.
        caveat: How our evidence differs from what the paper did.
        reason: Why nothing here could compare; None where something can.
        evidence_sql: Query of one row: value (NULL where nothing was measured), low, high (its 95% interval, NULL where
            it has none) and n; of what is measured, also attempts (ids of the runs) and, where `limits` are given and n
            counts parts of rows that come together, rows. None where `reason` says why.
    """

    claim_id: str
    ledger: str
    kind: str
    paper: str
    place: str
    shown_in: str | None
    quotation: str | None
    unquoted: str | None
    text: str
    conditions: str
    unit: str
    direction: str
    bound: float
    tolerance: float
    published: float | None
    n_of: str
    limits: tuple[float, float] | None
    simulated: bool
    exact: bool
    suite: str | None
    then: str | None
    caveat: str | None
    reason: str | None
    evidence_sql: str | None

    def admits(self, value: float) -> bool:
        """Whether it holds if the evidence is exactly `value`."""
        return not self.excludes(value, value)

    def excludes(self, low: float, high: float) -> bool:
        """Whether it holds for no value from `low` to `high`."""
        too_low = self.direction != "at_most" and high < self.bound - self.tolerance
        too_high = self.direction != "at_least" and low > self.bound + self.tolerance
        return too_low or too_high

    @property
    def commands(self) -> str:
        """What measures it, as typed; empty where nothing is to be run."""
        typed = (f"exitbench run {self.suite}", self.then) if self.suite else ()
        return ", then ".join(f"`{command}`" for command in typed if command)

    @property
    def criterion(self) -> str:
        """What the evidence must be, in words."""
        margin = f" ± {self.tolerance:g}" if self.direction == "within" else ""
        missed = f", give or take {self.tolerance:g}" if self.tolerance and not margin else ""
        return f"{self.direction.replace('_', ' ')} {self.bound:g}{margin} {self.unit}{missed}"


GENERATED: Final = "generated"
REAL: Final = "real"

_QUERY: Final = """
    SELECT
        min(m.parameters) AS parameters_low, max(m.parameters) AS parameters_high,
        min(m.blocks) AS blocks_low, max(m.blocks) AS blocks_high,
        coalesce(bool_or(d.source = 'builtin'), false) AS generated,
        coalesce(bool_or(d.source <> 'builtin'), false) AS real
    FROM attempt AS a JOIN cell AS c USING (cell_id) JOIN dataset_artifact AS d USING (data_id)
    JOIN model_artifact AS m USING (model_id)
    WHERE list_contains($attempts, a.attempt_id)
"""


@dataclass(frozen=True)
class Scope:
    """Of which models and data evidence is.

    Attributes:
        parameters_low: Weights of the smallest model.
        parameters_high: Of the largest.
        blocks_low: Decoder blocks of the shallowest model.
        blocks_high: Of the deepest.
        data: `generated`, `real`, or both.
    """

    parameters_low: int
    parameters_high: int
    blocks_low: int
    blocks_high: int
    data: str

    def __str__(self) -> str:
        parameters = _span(_counted(self.parameters_low), _counted(self.parameters_high))
        return f"{parameters} parameters, {_span(str(self.blocks_low), str(self.blocks_high))} blocks, {self.data} data"


def scope_of(database: Database, attempts: Sequence[str]) -> Scope | None:
    """Return what the runs of these attempts were of; None where there are none."""
    if not attempts:
        return None
    (row,) = database.query(_QUERY, {"attempts": list(attempts)}).to_pylist()
    data = " and ".join(name for name in (GENERATED, REAL) if row.pop(name))
    return None if row["blocks_low"] is None else Scope(**row, data=data)


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _counted(n: int) -> str:
    """A number of weights to two digits: 930k, 8.0B."""
    for size, suffix in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if n >= size:
            return f"{n / size:.2g}{suffix}" if n < 10 * size else f"{n / size:.0f}{suffix}"
    return str(n)


LEDGERS: Final = ("mee", "prune", "natcap", "heads", "calm_free", "encoders")
"""Stems of the files, in the order of the page."""

Keys = dict[str, type]

_COMMON: Final[Keys] = {"claim_id": str, "kind": str, "paper": str, "place": str, "text": str, "conditions": str}
_QUOTED: Final[Keys] = {"quotation": str}
_UNQUOTED: Final[Keys] = {"unquoted": str}
_TESTED: Final[Keys] = {
    "unit": str,
    "direction": str,
    "bound": float,
    "n_of": str,
    "evidence_sql": str,
    "caveat": str,
}
_MEASURED: Final[Keys] = {**_TESTED, "suite": str}
_UNTESTED: Final[Keys] = {"reason": str}
_SHOWN: Final[Keys] = {"shown_in": str}
_OPTIONAL: Final[Keys] = {**_SHOWN, "tolerance": float, "published": float}
_OPTIONAL_MEASURED: Final[Keys] = {**_OPTIONAL, "simulated": bool, "exact": bool, "limits": list, "then": str}

_MEANING: Final = {
    CLAIM: f"a claim quotes its authors in at most {MOST_WORDS} words (or says why not: unquoted) and is measured",
    CONSISTENCY: "a consistency check holds printed numbers against each other: it quotes nobody and runs nothing",
    QUESTION: "a question is ours: it quotes nobody and is measured",
}


@cache
def read_claims() -> tuple[Claim, ...]:
    """Return every entry of the ledger.

    Raises:
        UserError: A file is not TOML, or an entry lacks a key, has one that is unknown, of a wrong type or not for its
            kind, too long a quotation, or a name that another entry has; names file, entry and key.
    """
    claims = tuple(claim for stem in LEDGERS for claim in read_file(files(__package__) / f"{stem}.toml"))
    _require_distinct(claims)
    return claims


def read_file(file: Traversable) -> tuple[Claim, ...]:
    """Return the entries of one file.

    Raises:
        UserError: As `read_claims`.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{file.name}: not TOML: {error}.") from None
    entries = content.pop("claim", None)
    if content or not isinstance(entries, list):
        raise UserError(f"{file.name}: must consist of [[claim]] tables.{_found(content)}")
    claims = tuple(_claim(file.name, number, entry) for number, entry in enumerate(entries, start=1))
    _require_distinct(claims)
    return claims


def _found(content: Mapping[str, Any]) -> str:
    return f" Found: {', '.join(content)}." if content else ""


def _claim(file: str, number: int, entry: Mapping[str, Any]) -> Claim:
    where = f"{file}, claim {entry.get('claim_id', number)}"
    kind = entry.get("kind")
    if kind not in KINDS:
        told = "the key 'kind' is missing" if kind is None else f"kind is {kind!r}"
        raise UserError(f"{where}: {told}.{suggestion(str(kind), KINDS)} {'; '.join(_MEANING.values())}.")
    _check_keys(where, kind, entry)
    direction = entry.get("direction", DIRECTIONS[0])
    if direction not in DIRECTIONS:
        raise UserError(f"{where}: direction is {direction!r}.{suggestion(direction, DIRECTIONS)}")
    if entry.get("tolerance", 0.0) < 0:
        raise UserError(f"{where}: tolerance is {entry['tolerance']}; it must be 0 or more.")
    words = len(entry.get("quotation", "").split())
    if words > MOST_WORDS:
        raise UserError(f"{where}: quotation has {words} words; at most {MOST_WORDS} are quoted.")
    return Claim(
        **{key: entry[key] for key in _COMMON},
        ledger=file.removesuffix(".toml"),
        shown_in=entry.get("shown_in"),
        quotation=entry.get("quotation"),
        unquoted=entry.get("unquoted"),
        unit=entry.get("unit", ""),
        direction=direction,
        bound=entry.get("bound", 0.0),
        tolerance=entry.get("tolerance", 0.0),
        published=entry.get("published"),
        n_of=entry.get("n_of", ""),
        limits=_limits(where, entry.get("limits")),
        simulated=entry.get("simulated", False),
        exact=entry.get("exact", kind == CONSISTENCY),
        suite=entry.get("suite"),
        then=entry.get("then"),
        caveat=entry.get("caveat"),
        reason=entry.get("reason"),
        evidence_sql=entry.get("evidence_sql"),
    )


def _check_keys(where: str, kind: str, entry: Mapping[str, Any]) -> None:
    required, optional = _keys(kind, is_untested="reason" in entry, is_quoted="unquoted" not in entry)
    for key in entry:
        if key not in required and key not in optional:
            known = [*required, *optional]
            raise UserError(f"{where}: unknown key {key!r}: {_MEANING[kind]}.{suggestion(key, known)}")
    for key in required:
        if key not in entry:
            raise UserError(f"{where}: the key {key!r} is missing: {_MEANING[kind]}. Required: {', '.join(required)}.")
    for key, value in entry.items():
        wanted = required.get(key) or optional[key]
        if type(value) is not wanted or value == "":
            raise UserError(f"{where}: {key} must be {_TYPES[wanted]}, not {value!r}.")


def _keys(kind: str, *, is_untested: bool, is_quoted: bool) -> tuple[Keys, Keys]:
    """Return the keys that an entry must have, and those that it may have."""
    words = _QUOTED if is_quoted else _UNQUOTED
    common = {**_COMMON, **(words if kind == CLAIM else {})}
    if kind == CONSISTENCY:
        return {**common, **_TESTED}, _OPTIONAL
    return ({**common, **_UNTESTED}, _SHOWN) if is_untested else ({**common, **_MEASURED}, _OPTIONAL_MEASURED)


_TYPES: Final[Mapping[type, str]] = {
    str: "a text",
    float: "a number with a point",
    bool: "true or false",
    list: "a list of two numbers",
}


def _limits(where: str, limits: list[Any] | None) -> tuple[float, float] | None:
    if limits is None:
        return None
    if [type(it) for it in limits] != [float, float] or limits[0] >= limits[1]:
        raise UserError(f"{where}: limits must be two numbers with a point, the smaller first, not {limits!r}.")
    return limits[0], limits[1]


def _require_distinct(claims: Sequence[Claim]) -> None:
    seen: dict[str, str] = {}
    for claim in claims:
        if claim.claim_id in seen:
            raise UserError(f"{claim.ledger}.toml: claim {claim.claim_id} is already in {seen[claim.claim_id]}.toml.")
        seen[claim.claim_id] = claim.ledger
