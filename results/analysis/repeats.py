"""Compare two attempts at one cell, document by document: reproducibility, and where they part first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.results.files.arrow import parquet_path
from exitbench.results.files.memory import in_memory
from exitbench.results.spool.attempts import read_attempt
from exitbench.results.spool.schema import FITTED_FILE
from exitbench.results.tables import FILES

_REPEATABLE: Final = (
    *("samples", "tokens", "sequence_trace", "probe", "sublayers", "layer_pairs", "prompts", "scores"),
    *("fit_curve", "calibration"),
)
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    file: tuple(name for name in FILES[file].key if name != "attempt_id") for file in _REPEATABLE
}
"""What is repeatable, and what names a row of it: times are not, and metrics follow from these."""


SCORE_TOLERANCE: Final = 1e-4
"""By how much numbers of an exit may differ, relative where they are above 1: cells that share a pass run in batches of
other rows, whose products add up in another order (docs/measuring.md)."""
_NEAR: Final = ("score", "logprob", "full_logprob")
"""Which of a token's columns."""


@dataclass(frozen=True)
class Compared:
    """One file of two attempts.

    Attributes:
        file: Its name.
        rows: That either has; None for what has no rows.
        differing_rows: Of them.
        differing_documents: Documents (or steps) that they belong to.
        first: Where they differ first, in words; None where they do not.
    """

    file: str
    rows: int | None
    differing_rows: int
    differing_documents: int
    first: str | None

    @property
    def equal(self) -> bool:
        """Whether they say the same."""
        return self.first is None


def compare_attempts(stored: Path, repeated: Path) -> list[Compared]:
    """Compare what two attempts left.

    Args:
        stored: Folder of a finished attempt.
        repeated: Of a later one at the same cell.

    Raises:
        UserError: A file of one is missing or is not what was written, or nothing of theirs can be compared.
    """
    old, new = read_attempt(stored), read_attempt(repeated)
    freed = {f"{table}.parquet" for table in (*old.freed, *new.freed)}
    names = [*(f"{table}.parquet" for table in KEYS), FITTED_FILE]
    names = [name for name in names if name in old.digests or name in new.digests]
    if not names:
        raise UserError(f"{stored}: left nothing that a repetition must equal (only {', '.join(sorted(old.digests))}).")
    compared = []
    for name in names:
        if name not in old.digests or name not in new.digests:
            which = stored if name not in old.digests else repeated
            compared.append(Compared(name, None, 0, 0, f"{which} has no such file"))
        elif name == FITTED_FILE or name in freed:
            # Of rows that `gc` removed the digest is left, which equals wherever one version wrote both.
            same = old.digests[name] == new.digests[name]
            other = "other tensors" if name == FITTED_FILE else "other bytes, and gc removed the rows that say where"
            compared.append(Compared(name, None, 0, 0, None if same else other))
        else:
            compared.append(_tables(name, stored, repeated))
    return compared


def _tables(name: str, stored: Path, repeated: Path) -> Compared:
    """Compare rows, not bytes: another version of the writer spells the same rows otherwise."""
    keys = KEYS[name.removesuffix(".parquet")]
    with in_memory() as connection:
        for side, folder in (("old", stored), ("new", repeated)):
            connection.read_parquet(parquet_path(folder / name), hive_partitioning=False).create_view(side)
        columns = sorted(set(connection.table("old").columns) - set(keys))
        differs = " OR ".join(
            _differs(column, is_near=name == "tokens.parquet" and column in _NEAR) for column in columns
        )
        named = ", ".join(f'coalesce(o."{key}", n."{key}") AS "{key}"' for key in keys)
        matched = " AND ".join(f'o."{key}" IS NOT DISTINCT FROM n."{key}"' for key in keys)  # `choice` may be NULL
        connection.execute(
            f"""
            CREATE TABLE compared AS
            SELECT {named}, o.here IS NULL AS missing_old, n.here IS NULL AS missing_new,
                   o.here IS NULL OR n.here IS NULL OR {differs or "false"} AS differs,
                   {", ".join(f'o."{c}" AS "old_{c}", n."{c}" AS "new_{c}"' for c in columns) or "NULL AS nothing"}
            FROM (SELECT *, true AS here FROM old) AS o
            FULL JOIN (SELECT *, true AS here FROM new) AS n ON {matched}
            """
        )
        rows, differing, documents = connection.execute(
            f"SELECT count(*), count(*) FILTER (differs), count(DISTINCT {keys[0]}) FILTER (differs) FROM compared"
        ).fetchall()[0]
        cursor = connection.execute(f"SELECT * FROM compared WHERE differs ORDER BY {', '.join(keys)} LIMIT 1")
        names = [column[0] for column in cursor.description or ()]
        found = cursor.fetchone()
    first = None if found is None else _first(dict(zip(names, found, strict=True)), keys, columns)
    return Compared(name, rows, differing, documents, first)


def _differs(column: str, *, is_near: bool) -> str:
    distinct = f'o."{column}" IS DISTINCT FROM n."{column}"'
    if not is_near:
        return distinct
    near = f'abs(o."{column}" - n."{column}") <= {SCORE_TOLERANCE} * greatest(1, abs(o."{column}"))'
    return f"({distinct} AND NOT coalesce({near}, false))"


def _first(row: Mapping[str, Any], keys: Sequence[str], columns: Sequence[str]) -> str:
    where = ", ".join(f"{_KEY_WORDS.get(key, key)} {row[key]}" for key in keys if row[key] is not None)
    if row["missing_old"] or row["missing_new"]:
        return f"{where}: only in the {'repetition' if row['missing_old'] else 'stored attempt'}"
    changed = [column for column in columns if not _same(row[f"old_{column}"], row[f"new_{column}"])]
    told = "; ".join(_change(column, row[f"old_{column}"], row[f"new_{column}"]) for column in changed)
    return f"{where}: {told}"


_KEY_WORDS: Final = {"doc_key": "document"}


def _change(column: str, old: Any, new: Any) -> str:
    """Of lists (one entry a block, or a token) the first entry that differs."""
    if isinstance(old, list) and isinstance(new, list):
        for index, (before, now) in enumerate(zip(old, new, strict=False), start=1):
            if not _same(before, now):
                return f"{column}[{index}] {before!r} -> {now!r}"
        return f"{column} has {len(old)} -> {len(new)} entries"
    return f"{column} {old!r} -> {new!r}"


def _same(old: Any, new: Any) -> bool:
    """Equality in which NaN, which stands for "not asked", equals itself."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    return bool(old == new or (old != old and new != new))
