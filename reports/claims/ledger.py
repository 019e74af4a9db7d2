"""Reads the entries of the ledger from the TOML files of this folder, one file a document."""

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final

from exitbench.errors import UserError, suggestion
from exitbench.reports.claims.claim import CLAIM, CONSISTENCY, DIRECTIONS, KINDS, MOST_WORDS, QUESTION, Claim

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
