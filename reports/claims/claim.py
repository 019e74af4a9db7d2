"""Entries of the ledger: papers' claims, consistency checks of printed numbers, and this project's questions.

They are read from the TOML files of this folder, one file per paper.
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
"""Maximum number of words of a quotation."""


@dataclass(frozen=True)
class Claim:
    """Entry of the ledger: a statement in this project's words, its source, and the query that tests it.

    Attributes:
        claim_id: Unique name, which begins with the ledger's name.
        ledger: Stem of its TOML file: mee, prune, natcap, heads, calm_free, encoders or suitability.
        kind: `claim`: stated by the authors and tested on local runs; `consistency`: printed numbers compared with each
            other; `question`: raised by this project from what a paper shows, not claimed by its authors.
        paper: Source of the words or numbers, or of the question: MEE, MEEBLOG, PRUNE, NATCAP, HEADS, or another paper.
        place: Section, figure or table.
        text: The statement that is tested.
        conditions: Models, data and settings that the statement is about.
        shown_in: Name of the report's figure or table on the subject; None without one.
        quotation: The authors' words for a claim, at most `MOST_WORDS`; None for the other kinds, and for a claim with
            `unquoted`.
        unquoted: Reason why a claim has no quotation.
        unit: Unit of the evidence, `bound`, `tolerance` and `published`.
        direction: `at_least`, `at_most`, or `within` (a value).
        bound: Value that the evidence must reach, must not exceed, or must equal.
        tolerance: Allowed deviation from `bound`.
        published: The paper's own number, if it prints one.
        n_of: Unit of the sample size: runs, documents, tokens, printed numbers.
        limits: Smallest and largest possible value of a row of the evidence. With them, rows that are all equal get an
            exact interval. None if rows have no such limits or are not a sample.
        simulated: Whether evidence includes replays (exits recomputed from recorded predictions, without decoding) or
            full-depth passes.
        exact: Whether evidence decides without an interval: printed numbers, and facts true of every run or of none.
        suite: Bundled suite that produces the evidence; None if nothing needs to be run.
        follow_up_command: Command to run after the suite; None if the suite is enough.
        caveat: Difference between this project's evidence and the paper's experiment.
        reason: Reason why this project has no comparable evidence; None if it has.
        evidence_sql: Query that returns one row, with value (NULL if nothing was measured), low and high (its 95%
            interval, NULL without one) and n. Measurements also have attempts (ids of the runs). A query with `limits`
            whose n counts parts of rows also returns rows, the number of rows. None if `reason` is set.
    """

    claim_id: str
    ledger: str
    kind: str
    paper: str
    place: str
    text: str
    conditions: str
    shown_in: str | None = None
    quotation: str | None = None
    unquoted: str | None = None
    unit: str = ""
    direction: str = DIRECTIONS[0]
    bound: float = 0.0
    tolerance: float = 0.0
    published: float | None = None
    n_of: str = ""
    limits: tuple[float, float] | None = None
    simulated: bool = False
    exact: bool = False
    suite: str | None = None
    follow_up_command: str | None = None
    caveat: str | None = None
    reason: str | None = None
    evidence_sql: str | None = None

    def admits(self, value: float) -> bool:
        """Return whether the statement holds if the evidence is exactly `value`."""
        return not self.excludes(value, value)

    def excludes(self, low: float, high: float) -> bool:
        """Return whether the statement fails for all values of the evidence from `low` to `high`."""
        too_low = self.direction != "at_most" and high < self.bound - self.tolerance
        too_high = self.direction != "at_least" and low > self.bound + self.tolerance
        return too_low or too_high

    @property
    def commands(self) -> str:
        """Shell commands that produce the evidence; empty if nothing needs to be run."""
        typed = (f"exitbench run {self.suite}", self.follow_up_command) if self.suite else ()
        return ", then ".join(f"`{command}`" for command in typed if command)

    @property
    def criterion(self) -> str:
        """Value that the evidence must have, as text: ``'at least 0.5 unit'``."""
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
    """Size of the models, and kind of the data, behind the evidence of a ledger entry.

    Attributes:
        parameters_low: Number of weights of the smallest model.
        parameters_high: Number of weights of the largest model.
        blocks_low: Decoder blocks of the shallowest model.
        blocks_high: Decoder blocks of the deepest model.
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
    """Return the sizes of the models and the kind of data of these attempts (stored runs, by id); None without any."""
    if not attempts:
        return None
    (row,) = database.query(_QUERY, {"attempts": list(attempts)}).to_pylist()
    data = " and ".join(name for name in (GENERATED, REAL) if row.pop(name))
    return None if row["blocks_low"] is None else Scope(**row, data=data)


def _span(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _counted(n: int) -> str:
    """Return a number of weights as text with at least two digits: ``'930k'``, ``'8.0B'``."""
    for size, suffix in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if n >= size:
            return f"{n / size:.2g}{suffix}" if n < 10 * size else f"{n / size:.0f}{suffix}"
    return str(n)


LEDGERS: Final = ("mee", "prune", "natcap", "heads", "calm_free", "encoders", "suitability")
"""Stems of the ledger files, in the order of the page."""

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
_FIGURE_KEY: Final[Keys] = {"shown_in": str}
_OPTIONAL: Final[Keys] = {**_FIGURE_KEY, "tolerance": float, "published": float}
_OPTIONAL_MEASURED: Final[Keys] = {**_OPTIONAL, "simulated": bool, "exact": bool, "limits": list, "then": str}

_MEANING: Final = {
    CLAIM: f"a claim quotes its authors in at most {MOST_WORDS} words (or says why not: unquoted) and is measured",
    CONSISTENCY: "a consistency check compares printed numbers with each other: it has no quotation and runs nothing",
    QUESTION: "a question is this project's: it has no quotation and is measured",
}


@cache
def read_claims() -> tuple[Claim, ...]:
    """Return every entry of the ledger.

    Raises:
        UserError: A file is not TOML. Or an entry lacks a key, has a key that is unknown, of a wrong type or not for
            its kind, too long a quotation, or another entry's name. The message names file, entry and key.
    """
    claims = tuple(claim for stem in LEDGERS for claim in read_file(files(__package__) / f"{stem}.toml"))
    _require_distinct(claims)
    return claims


def read_file(file: Traversable) -> tuple[Claim, ...]:
    """Return the ledger entries of one TOML file.

    Raises:
        UserError: The file is not TOML, or an entry is malformed.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{file.name}: not TOML: {error}.") from None
    entries = content.pop("claim", None)
    if content or not isinstance(entries, list):
        raise UserError(f"{file.name}: must consist of [[claim]] tables.{_kind_of(content)}")
    claims = tuple(_claim(file.name, number, entry) for number, entry in enumerate(entries, start=1))
    _require_distinct(claims)
    return claims


def _kind_of(content: Mapping[str, Any]) -> str:
    return f" Found: {', '.join(content)}." if content else ""


def _claim(file: str, number: int, entry: Mapping[str, Any]) -> Claim:
    prefix = f"{file}, claim {entry.get('claim_id', number)}"
    kind = entry.get("kind")
    if kind not in KINDS:
        problem = "the key 'kind' is missing" if kind is None else f"kind is {kind!r}"
        raise UserError(f"{prefix}: {problem}.{suggestion(str(kind), KINDS)} {'; '.join(_MEANING.values())}.")
    _check_keys(prefix, kind, entry)
    direction = entry.get("direction", DIRECTIONS[0])
    if direction not in DIRECTIONS:
        raise UserError(f"{prefix}: direction is {direction!r}.{suggestion(direction, DIRECTIONS)}")
    if entry.get("tolerance", 0.0) < 0:
        raise UserError(f"{prefix}: tolerance is {entry['tolerance']}; it must be 0 or more.")
    words = len(entry.get("quotation", "").split())
    if words > MOST_WORDS:
        raise UserError(f"{prefix}: quotation has {words} words; at most {MOST_WORDS} are quoted.")
    return Claim(
        **{"exact": kind == CONSISTENCY, **{key: entry[key] for key in entry if key not in ("limits", "then")}},
        ledger=file.removesuffix(".toml"),
        limits=_limits(prefix, entry.get("limits")),
        follow_up_command=entry.get("then"),
    )


def _check_keys(prefix: str, kind: str, entry: Mapping[str, Any]) -> None:
    required, optional = _keys(kind, is_untested="reason" in entry, is_quoted="unquoted" not in entry)
    for key in entry:
        if key not in required and key not in optional:
            allowed = [*required, *optional]
            raise UserError(f"{prefix}: unknown key {key!r}: {_MEANING[kind]}.{suggestion(key, allowed)}")
    for key in required:
        if key not in entry:
            raise UserError(f"{prefix}: the key {key!r} is missing: {_MEANING[kind]}. Required: {', '.join(required)}.")
    for key, value in entry.items():
        wanted = required.get(key) or optional[key]
        if type(value) is not wanted or value == "":
            raise UserError(f"{prefix}: {key} must be {_TYPES[wanted]}, not {value!r}.")


def _keys(kind: str, *, is_untested: bool, is_quoted: bool) -> tuple[Keys, Keys]:
    """Return the required and the optional keys, with their types, of an entry of this kind in a ledger's TOML file.

    `is_untested`: the entry has a reason instead of evidence. `is_quoted`: a claim has the authors' words.
    """
    words = _QUOTED if is_quoted else _UNQUOTED
    common = {**_COMMON, **(words if kind == CLAIM else {})}
    if kind == CONSISTENCY:
        return {**common, **_TESTED}, _OPTIONAL
    return ({**common, **_UNTESTED}, _FIGURE_KEY) if is_untested else ({**common, **_MEASURED}, _OPTIONAL_MEASURED)


_TYPES: Final[Mapping[type, str]] = {
    str: "a text",
    float: "a number with a point",
    bool: "true or false",
    list: "a list of two numbers",
}


def _limits(prefix: str, limits: list[Any] | None) -> tuple[float, float] | None:
    if limits is None:
        return None
    if [type(it) for it in limits] != [float, float] or limits[0] >= limits[1]:
        raise UserError(f"{prefix}: limits must be two numbers with a point, the smaller first, not {limits!r}.")
    return limits[0], limits[1]


def _require_distinct(claims: Sequence[Claim]) -> None:
    files: dict[str, str] = {}
    for claim in claims:
        if claim.claim_id in files:
            raise UserError(f"{claim.ledger}.toml: claim {claim.claim_id} is already in {files[claim.claim_id]}.toml.")
        files[claim.claim_id] = claim.ledger
