"""Reads the claims from the TOML files of this folder, one file a document."""

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final

from exitbench.errors import UserError, suggestion
from exitbench.reports.claims.claim import DIRECTIONS, MEASURED, NONE, PRINTED, Claim

LEDGERS: Final = ("mee", "prune", "natcap", "heads", "calm_free")
"""Stems of the files, in the order of the page."""

_COMMON: Final[Mapping[str, type]] = {"claim_id": str, "paper": str, "place": str, "text": str, "conditions": str}
_TESTED: Final[Mapping[str, type]] = {
    "unit": str,
    "direction": str,
    "bound": float,
    "n_of": str,
    "evidence_sql": str,
    "caveat": str,
}
_OPTIONAL: Final[Mapping[str, type]] = {
    "tolerance": float,
    "published": float,
    "simulated": bool,
    "exact": bool,
    "suite": str,
}
_UNTESTED: Final[Mapping[str, type]] = {"reason": str}


@cache
def read_claims() -> tuple[Claim, ...]:
    """Return every claim of the ledger.

    Raises:
        UserError: A file is not TOML, or a claim lacks a key, has one that is unknown or of a wrong type, or a name
            that another claim has; names file, claim and key.
    """
    claims = tuple(claim for stem in LEDGERS for claim in read_file(files(__package__) / f"{stem}.toml"))
    _require_distinct(claims)
    return claims


def read_file(file: Traversable) -> tuple[Claim, ...]:
    """Return the claims of one file.

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
    required = {**_COMMON, **(_UNTESTED if "reason" in entry else _TESTED)}
    optional = {} if "reason" in entry else _OPTIONAL
    for key in entry:
        if key not in required and key not in optional:
            raise UserError(f"{where}: unknown key {key!r}.{suggestion(key, [*required, *optional])}")
    for key in required:
        if key not in entry:
            raise UserError(f"{where}: the key {key!r} is missing; required: {', '.join(required)}.")
    for key, value in entry.items():
        kind = required.get(key) or optional[key]
        if type(value) is not kind or value == "":
            raise UserError(f"{where}: {key} must be {_KINDS[kind]}, not {value!r}.")
    direction = entry.get("direction", DIRECTIONS[0])
    if direction not in DIRECTIONS:
        raise UserError(f"{where}: direction is {direction!r}.{suggestion(direction, DIRECTIONS)}")
    if entry.get("tolerance", 0.0) < 0:
        raise UserError(f"{where}: tolerance is {entry['tolerance']}; it must be 0 or more.")
    return Claim(
        **{key: entry[key] for key in _COMMON},
        ledger=file.removesuffix(".toml"),
        kind_of_evidence=NONE if "reason" in entry else MEASURED if "suite" in entry else PRINTED,
        unit=entry.get("unit", ""),
        direction=direction,
        bound=entry.get("bound", 0.0),
        tolerance=entry.get("tolerance", 0.0),
        published=entry.get("published"),
        n_of=entry.get("n_of", ""),
        simulated=entry.get("simulated", False),
        exact=entry.get("exact", "suite" not in entry),
        suite=entry.get("suite"),
        caveat=entry.get("caveat"),
        reason=entry.get("reason"),
        evidence_sql=entry.get("evidence_sql"),
    )


_KINDS: Final[Mapping[type, str]] = {str: "a text", float: "a number with a point", bool: "true or false"}


def _require_distinct(claims: Sequence[Claim]) -> None:
    seen: dict[str, str] = {}
    for claim in claims:
        if claim.claim_id in seen:
            raise UserError(f"{claim.ledger}.toml: claim {claim.claim_id} is already in {seen[claim.claim_id]}.toml.")
        seen[claim.claim_id] = claim.ledger
