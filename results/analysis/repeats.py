"""Compare a repeated attempt with the stored one: files row by row, software, and machine."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.results.analysis.selection import MIN_PREFIX
from exitbench.results.files.arrow import parquet_path
from exitbench.results.files.duckdb_files import in_memory
from exitbench.results.files.formats import content_id
from exitbench.results.spool.attempts import read_attempt, scan_spool
from exitbench.results.spool.schema import ENV_KEYS, FITTED_FILE
from exitbench.results.tables import FILES

_REPEATABLE: Final = (
    *("samples", "tokens", "sequence_trace", "probe", "sublayers", "layer_pairs", "prompts", "scores"),
    *("fit_curve", "calibration"),
)
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    file: tuple(name for name in FILES[file].key if name != "attempt_id") for file in _REPEATABLE
}
"""Repeatable files with the key columns of their rows. Times are not repeatable; metrics follow from these files."""


SCORE_TOLERANCE: Final = 1e-4
"""Tolerance of scores and log-probabilities, relative above 1: cells that share a pass run in batches with other
rows, which changes the order of sums (docs/measuring.md).
"""
_NEAR: Final = ("score", "logprob", "full_logprob")
"""Token columns that are compared with `SCORE_TOLERANCE`."""


@dataclass(frozen=True)
class FileComparison:
    """Differences between two attempts in the file of the same name.

    Attributes:
        file: Name of the file.
        rows: Number of distinct row keys in both files together; None if the rows were not compared.
        differing_rows: Number of row keys whose rows differ or are missing in one file.
        differing_documents: Number of documents (steps of a calibration, epochs of a fit) with such rows.
        first: Description of the first difference; None if there is none.
    """

    file: str
    rows: int | None
    differing_rows: int
    differing_documents: int
    first: str | None

    @property
    def equal(self) -> bool:
        """True if no difference was found."""
        return self.first is None


def compare_attempts(stored: Path, repeated: Path) -> list[FileComparison]:
    """Compare a stored attempt's files with those of its repetition; return one comparison per file to be reproduced.

    Args:
        stored: Folder of the stored attempt.
        repeated: Folder of the repetition.

    Raises:
        UserError: A file is missing or changed, or the attempts have no file to compare.
    """
    old, new = read_attempt(stored), read_attempt(repeated)
    freed = {f"{table}.parquet" for table in (*old.freed, *new.freed)}
    names = [*(f"{table}.parquet" for table in KEYS), FITTED_FILE]
    names = [name for name in names if name in old.digests or name in new.digests]
    if not names:
        raise UserError(
            f"{stored}: has no files that a repetition must reproduce (only {', '.join(sorted(old.digests))})."
        )
    compared = []
    for name in names:
        if name not in old.digests or name not in new.digests:
            which = stored if name not in old.digests else repeated
            compared.append(FileComparison(name, None, 0, 0, f"{which} has no such file"))
        elif name == FITTED_FILE or name in freed:
            # If `gc` removed the rows, only the digests remain; they are equal if one version wrote both files.
            same = old.digests[name] == new.digests[name]
            other = "other tensors" if name == FITTED_FILE else "other bytes, and gc removed the rows that say where"
            compared.append(FileComparison(name, None, 0, 0, None if same else other))
        else:
            compared.append(_compare_file(name, stored, repeated))
    return compared


def _compare_file(name: str, stored: Path, repeated: Path) -> FileComparison:
    """Compare a Parquet file of two attempts by rows: another version of the writer may encode equal rows differently.

    Args:
        name: Name of the file.
        stored: Folder of the stored attempt.
        repeated: Folder of the repeated attempt.
    """
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
        first_row = cursor.fetchone()
    first = None if first_row is None else _first(dict(zip(names, first_row, strict=True)), keys, columns)
    return FileComparison(name, rows, differing, documents, first)


def _differs(column: str, *, is_near: bool) -> str:
    distinct = f'o."{column}" IS DISTINCT FROM n."{column}"'
    if not is_near:
        return distinct
    near = f'abs(o."{column}" - n."{column}") <= {SCORE_TOLERANCE} * greatest(1, abs(o."{column}"))'
    return f"({distinct} AND NOT coalesce({near}, false))"


def _first(row: Mapping[str, Any], keys: Sequence[str], columns: Sequence[str]) -> str:
    key_text = ", ".join(f"{_KEY_WORDS.get(key, key)} {row[key]}" for key in keys if row[key] is not None)
    if row["missing_old"] or row["missing_new"]:
        return f"{key_text}: only in the {'repetition' if row['missing_old'] else 'stored attempt'}"
    changed = [column for column in columns if not _same(row[f"old_{column}"], row[f"new_{column}"])]
    changes = "; ".join(_change(column, row[f"old_{column}"], row[f"new_{column}"]) for column in changed)
    return f"{key_text}: {changes}"


_KEY_WORDS: Final = {"doc_key": "document"}


def _change(column: str, old: Any, new: Any) -> str:
    """Return a text with a column's old and new value; for lists, with the first entry that differs."""
    if isinstance(old, list) and isinstance(new, list):
        for index, (before, now) in enumerate(zip(old, new, strict=False), start=1):
            if not _same(before, now):
                return f"{column}[{index}] {before!r} -> {now!r}"
        return f"{column} has {len(old)} -> {len(new)} entries"
    return f"{column} {old!r} -> {new!r}"


def _same(old: Any, new: Any) -> bool:
    """Return whether two values are equal, where NaN (not evaluated) equals itself."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    return bool(old == new or (old != old and new != new))


SECTIONS: Final = ("environment", "hardware")
_PRODUCTS: Final = "products"
"""Additional section of attempts whose matrix products were selected by measurement."""
_MAX_SHOWN_MATCHES: Final = 8


@dataclass(frozen=True)
class EnvironmentDescription:
    """Description of a software environment, a machine, or both.

    Attributes:
        name: Name for messages, such as ``attempt ID`` or ``hardware ID``.
        sections: Sections of env.json by name: `SECTIONS`, and `products` if matrix products were chosen by timing.
    """

    name: str
    sections: Mapping[str, Mapping[str, Any]]

    @property
    def fields(self) -> dict[str, Any]:
        """Values of all sections by dotted path, e.g. ``environment.packages.torch``."""
        return dict(flat_items(self.sections))


@dataclass(frozen=True)
class FieldDifference:
    """Field of env.json with different values in descriptions `a` and `b`; None stands for a missing field."""

    field: str
    a: Any
    b: Any


def differences(a: EnvironmentDescription, b: EnvironmentDescription) -> list[FieldDifference]:
    """Return the fields in which two descriptions differ, sorted by name; sections that only one has are ignored.

    Raises:
        UserError: The descriptions have no section in common.
    """
    shared = a.sections.keys() & b.sections.keys()
    if not shared:
        raise UserError(f"{a.name} and {b.name} cannot be compared: one is software, the other a machine.")
    fields_a, fields_b = a.fields, b.fields
    names = sorted(name for name in fields_a.keys() | fields_b.keys() if name.split(".")[0] in shared)
    return [
        FieldDifference(name, fields_a.get(name), fields_b.get(name))
        for name in names
        if fields_a.get(name) != fields_b.get(name)
    ]


def find(prefix: str, spool_root: Path, database: Path) -> EnvironmentDescription:
    """Describe the software and machine of an attempt, cell, environment or machine, given the beginning of its id.

    Args:
        prefix: First characters of the id, at least `MIN_PREFIX`; a cell stands for its latest attempt.
        spool_root: The spool; need not exist.
        database: The database; need not exist.

    Raises:
        UserError: No id or several ids have the prefix.
    """
    if len(prefix) < MIN_PREFIX:
        raise UserError(f"{prefix!r} is too short: give at least {MIN_PREFIX} characters of an id, or 'now'.")
    matches = _in_spool(prefix, spool_root)
    if not matches and database.exists():
        matches = _in_database(prefix, database)
    if len(matches) != 1:
        locations = f"{spool_root} or {database}"
        if not matches:
            raise UserError(
                f"No attempt, cell, environment or machine in {locations} has an id that begins with {prefix!r}."
            )
        by_name = sorted(matches.values(), key=lambda match: match.name)
        names = "".join(f"\n  {described.name}" for described in by_name[:_MAX_SHOWN_MATCHES])
        raise UserError(f"{len(matches)} ids in {locations} begin with {prefix!r}:{names}")
    return next(iter(matches.values()))


def _in_spool(prefix: str, spool_root: Path) -> dict[str, EnvironmentDescription]:
    """Return descriptions from the spool whose id begins with `prefix`, by id.

    A cell stands for its latest attempt with an env.json. Environments and machines are searched only if no attempt
    or cell matches.
    """
    matches: dict[str, EnvironmentDescription] = {}
    unseen = []
    for attempt in scan_spool(spool_root):
        if attempt.attempt_id.startswith(prefix) and (env := _read(attempt.path)):
            matches[attempt.attempt_id] = EnvironmentDescription(f"attempt {attempt.attempt_id}", env)
        elif attempt.cell_id.startswith(prefix) and (env := _read(attempt.path)):
            matches[attempt.cell_id] = EnvironmentDescription(
                f"attempt {attempt.attempt_id} at cell {attempt.cell_id[:12]}", env
            )
        else:
            unseen.append(attempt.path)
    for env in () if matches else map(_read, unseen):
        matches |= _sections(prefix, env)
    return matches


def _sections(prefix: str, env: Mapping[str, Mapping[str, Any]]) -> dict[str, EnvironmentDescription]:
    ids = {name: content_id(section) for name, section in env.items() if name in SECTIONS}
    return {
        section_id: EnvironmentDescription(f"{name} {section_id[:12]}", {name: env[name]})
        for name, section_id in ids.items()
        if section_id.startswith(prefix)
    }


def _in_database(prefix: str, path: Path) -> dict[str, EnvironmentDescription]:
    # Imported here: the spool usually has the answer, and importing SQLAlchemy takes longer than finding it.
    from exitbench.results.database.connection import open_database

    with open_database(path) as database:
        rows = database.query(
            "SELECT * FROM attempt JOIN environment USING (env_id) JOIN hardware USING (hw_id) "
            "WHERE starts_with(attempt_id, $p) OR starts_with(cell_id, $p) OR starts_with(env_id, $p) "
            "OR starts_with(hw_id, $p) ORDER BY attempt_id",
            {"p": prefix},
        ).to_pylist()
    matches: dict[str, EnvironmentDescription] = {}
    for row in rows:
        env = {name: {column: row[column] for column in ENV_KEYS[name]} for name in SECTIONS}
        for column in ("packages", "env_vars"):
            env["environment"][column] = json.loads(row[column] or "{}")
        if row["attempt_id"].startswith(prefix):
            matches[row["attempt_id"]] = EnvironmentDescription(f"attempt {row['attempt_id']}", env)
        elif row["cell_id"].startswith(prefix):
            matches[row["cell_id"]] = EnvironmentDescription(
                f"attempt {row['attempt_id']} at cell {row['cell_id'][:12]}", env
            )
        else:
            named = {"environment": row["env_id"], "hardware": row["hw_id"]}
            for name, section_id in named.items():
                if section_id.startswith(prefix):
                    matches[section_id] = EnvironmentDescription(f"{name} {section_id[:12]}", {name: env[name]})
    return matches


def _read(path: Path) -> dict[str, Any]:
    """Return the sections of the env.json in an attempt's folder; empty if the file is missing or incomplete."""
    try:
        env = json.loads((path / "env.json").read_text(encoding="utf-8"))
        chosen = env.get(_PRODUCTS)
        return {name: env[name] for name in SECTIONS} | ({} if chosen is None else {_PRODUCTS: chosen})
    except (OSError, ValueError, KeyError):
        return {}


def flat_items(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings, each with its keys joined by dots."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from flat_items(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item
