"""Compare environments of stored attempts: found by the beginning of an id, field by field.

The spool is asked first, which works while the database is busy; the database where the spool does not know the id.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.results.analysis.selection import MIN_PREFIX
from exitbench.results.files.canonical import content_id
from exitbench.results.spool.attempts import scan_spool

SECTIONS: Final = ("environment", "hardware")
_PRODUCTS: Final = "products"
"""What attempts have besides whose products were chosen by measurement."""
_SHOWN: Final = 8
_COLUMNS: Final = {
    "environment": ("python", "platform", "packages", "git_commit", "git_dirty", "env_vars"),
    "hardware": ("cpu", "cores", "ram_bytes", "gpu", "gpu_count", "driver", "cuda", "threads"),
}


@dataclass(frozen=True)
class Described:
    """An environment, a machine, or both.

    Attributes:
        name: What it is of: an attempt, or an id.
        sections: By name (`SECTIONS`), as in env.json.
    """

    name: str
    sections: Mapping[str, Mapping[str, Any]]

    @property
    def fields(self) -> dict[str, Any]:
        """Every value by its path, e.g. ``environment.packages.torch``."""
        return dict(_flat(self.sections))


@dataclass(frozen=True)
class Difference:
    """One field that differs; None stands for a field that one side does not have."""

    field: str
    a: Any
    b: Any


def differences(a: Described, b: Described) -> list[Difference]:
    """Return the fields in which two differ, in the order of their names; sections that one lacks do not count.

    Raises:
        UserError: They have no section in common.
    """
    shared = a.sections.keys() & b.sections.keys()
    if not shared:
        raise UserError(f"{a.name} and {b.name} cannot be compared: one is software, the other a machine.")
    left, right = a.fields, b.fields
    names = sorted(name for name in left.keys() | right.keys() if name.split(".")[0] in shared)
    return [Difference(name, left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)]


def find(prefix: str, spool_root: Path, database: Path) -> Described:
    """Return what an attempt, a cell (its latest attempt), an environment or a machine is, by the beginning of its id.

    Args:
        prefix: Of an attempt's, cell's, environment's or hardware's id; at least `MIN_PREFIX` characters.
        spool_root: The spool; need not exist.
        database: The database; need not exist.

    Raises:
        UserError: Nothing has such an id, or several things have.
    """
    if len(prefix) < MIN_PREFIX:
        raise UserError(f"{prefix!r} is too short: give at least {MIN_PREFIX} characters of an id, or 'now'.")
    found = _in_spool(prefix, spool_root)
    if not found and database.exists():
        found = _in_database(prefix, database)
    if len(found) != 1:
        where = f"{spool_root} or {database}"
        if not found:
            raise UserError(f"No attempt, cell, environment or machine in {where} has an id that begins {prefix!r}.")
        names = "".join(
            f"\n  {described.name}" for described in sorted(found.values(), key=lambda one: one.name)[:_SHOWN]
        )
        raise UserError(f"{len(found)} things in {where} have an id that begins {prefix!r}:{names}")
    return next(iter(found.values()))


def _in_spool(prefix: str, spool_root: Path) -> dict[str, Described]:
    """By id; of a cell the latest attempt that says where it ran."""
    found: dict[str, Described] = {}
    unseen = []
    for attempt in scan_spool(spool_root):
        if attempt.attempt_id.startswith(prefix) and (env := _read(attempt.path)):
            found[attempt.attempt_id] = Described(f"attempt {attempt.attempt_id}", env)
        elif attempt.cell_id.startswith(prefix) and (env := _read(attempt.path)):
            found[attempt.cell_id] = Described(f"attempt {attempt.attempt_id} at cell {attempt.cell_id[:12]}", env)
        else:
            unseen.append(attempt.path)
    for env in () if found else map(_read, unseen):
        found |= _sections(prefix, env)
    return found


def _sections(prefix: str, env: Mapping[str, Mapping[str, Any]]) -> dict[str, Described]:
    ids = {name: content_id(section) for name, section in env.items() if name in SECTIONS}
    return {
        section_id: Described(f"{name} {section_id[:12]}", {name: env[name]})
        for name, section_id in ids.items()
        if section_id.startswith(prefix)
    }


def _in_database(prefix: str, path: Path) -> dict[str, Described]:
    # Imported here: the spool usually knows, and SQLAlchemy takes longer to load than the answer.
    from exitbench.results.database.connection import open_database

    with open_database(path) as database:
        rows = database.query(
            "SELECT * FROM attempt JOIN environment USING (env_id) JOIN hardware USING (hw_id) "
            "WHERE starts_with(attempt_id, $p) OR starts_with(cell_id, $p) OR starts_with(env_id, $p) "
            "OR starts_with(hw_id, $p) ORDER BY attempt_id",
            {"p": prefix},
        ).to_pylist()
    found: dict[str, Described] = {}
    for row in rows:
        env = {name: {column: row[column] for column in columns} for name, columns in _COLUMNS.items()}
        for column in ("packages", "env_vars"):
            env["environment"][column] = json.loads(row[column] or "{}")
        if row["attempt_id"].startswith(prefix):
            found[row["attempt_id"]] = Described(f"attempt {row['attempt_id']}", env)
        elif row["cell_id"].startswith(prefix):
            found[row["cell_id"]] = Described(f"attempt {row['attempt_id']} at cell {row['cell_id'][:12]}", env)
        else:
            named = {"environment": row["env_id"], "hardware": row["hw_id"]}
            for name, section_id in named.items():
                if section_id.startswith(prefix):
                    found[section_id] = Described(f"{name} {section_id[:12]}", {name: env[name]})
    return found


def _read(path: Path) -> dict[str, Any]:
    """env.json of an attempt; empty where it is not there yet, or torn."""
    try:
        env = json.loads((path / "env.json").read_text(encoding="utf-8"))
        chosen = env.get(_PRODUCTS)
        return {name: env[name] for name in SECTIONS} | ({} if chosen is None else {_PRODUCTS: chosen})
    except (OSError, ValueError, KeyError):
        return {}


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item
