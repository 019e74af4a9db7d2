"""`db check` reads every block of a database that a query reads: the test damages one block after another."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import duckdb
import pytest

from exitbench.errors import UserError
from exitbench.results.database.connection import Database
from exitbench.results.maintenance.integrity import check

Opener = Callable[[Path], AbstractContextManager[Database]]
Digest = dict[str, object]

HEADERS = 3 * 4096
BLOCK = 262_144
AT = 100_000
"""Position of the changed byte in a block."""


def database_digest(path: Path, open_computed: Opener) -> Digest | None:
    """Return a digest of every table and view, and counts of rows found by key; None if the database is damaged."""
    try:
        with open_computed(path) as database:
            # A view that was computed once is a temporary table, too.
            names = database.duck.execute(
                "SELECT table_name FROM duckdb_tables() UNION SELECT view_name FROM duckdb_views() WHERE NOT internal"
            ).fetchall()
            messages: Digest = {
                name: database.duck.execute(f'SELECT count(*), bit_xor(hash(t)) FROM "{name}" AS t').fetchone()
                for (name,) in names
            }
            keys = database.duck.execute(
                "SELECT table_name, constraint_column_names[1] FROM duckdb_constraints() "
                "WHERE constraint_type = 'PRIMARY KEY' AND len(constraint_column_names) = 1"
            ).fetchall()
            for table, key in keys:
                first = database.duck.execute(f"SELECT min({key}) FROM {table}").fetchone()
                for operator in ("=", ">"):
                    query = f"SELECT count(*) FROM {table} WHERE {key} {operator} $1"
                    messages[f"{table} by its key, {operator}"] = database.duck.execute(query, first).fetchone()
            return messages
    except (duckdb.Error, UserError):
        return None


@pytest.fixture(scope="module")
def intact(few_spool: Path, few_database: Path, open_computed: Opener) -> Digest:
    """Return the digest of the undamaged database, about which `check` has nothing to report."""
    digest = database_digest(few_database, open_computed)
    assert digest is not None
    assert check(few_spool, few_database).problems == ()
    return digest


def blocks(path: Path) -> int:
    return (path.stat().st_size - HEADERS) // BLOCK


@pytest.mark.sampled(8)
@pytest.mark.parametrize("part", range(8))
def test_db_check_reports_every_damaged_block_that_changes_an_answer(
    part: int, intact: Digest, few_spool: Path, few_database: Path, open_computed: Opener, tmp_path: Path
) -> None:
    path, content = tmp_path / "exitbench.duckdb", few_database.read_bytes()
    named, damaged = 0, range(part, blocks(few_database), 8)
    for block in damaged:
        changed = bytearray(content)
        changed[HEADERS + block * BLOCK + AT] ^= 0x55
        path.write_bytes(changed)
        problems = check(few_spool, path).problems
        named += bool(problems)
        assert problems or database_digest(path, open_computed) == intact, block
        assert all("exitbench db rebuild" in problem for problem in problems), problems
    assert named > len(damaged) / 2
