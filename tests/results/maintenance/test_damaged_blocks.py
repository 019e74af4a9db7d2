"""`db check` reads every block of a database that a query reads: the test damages one block after another."""

import shutil
from pathlib import Path

import duckdb
import pytest

from exitbench.results.maintenance.integrity import check

HEADERS = 3 * 4096
BLOCK = 262_144
AT = 100_000
"""Position of the changed byte in a block."""


def database_digest(path: Path) -> dict[str, object] | None:
    """Return a digest of every table and view, and counts of rows found by key; None if the database is damaged."""
    try:
        with duckdb.connect(path, read_only=True) as connection:
            names = connection.execute(
                "SELECT table_name FROM duckdb_tables() "
                "UNION ALL SELECT view_name FROM duckdb_views() WHERE NOT internal"
            ).fetchall()
            messages: dict[str, object] = {
                name: connection.execute(f'SELECT count(*), bit_xor(hash(t)) FROM "{name}" AS t').fetchone()
                for (name,) in names
            }
            keys = connection.execute(
                "SELECT table_name, constraint_column_names[1] FROM duckdb_constraints() "
                "WHERE constraint_type = 'PRIMARY KEY' AND len(constraint_column_names) = 1"
            ).fetchall()
            for table, key in keys:
                first = connection.execute(f"SELECT min({key}) FROM {table}").fetchone()
                for operator in ("=", ">"):
                    query = f"SELECT count(*) FROM {table} WHERE {key} {operator} $1"
                    messages[f"{table} by its key, {operator}"] = connection.execute(query, first).fetchone()
            return messages
    except duckdb.Error:
        return None


def blocks(path: Path) -> int:
    return (path.stat().st_size - HEADERS) // BLOCK


@pytest.mark.sampled(8)
@pytest.mark.parametrize("part", range(8))
def test_db_check_reports_every_damaged_block_that_changes_an_answer(
    part: int, few_spool: Path, few_database: Path, tmp_path: Path
) -> None:
    path = tmp_path / "exitbench.duckdb"
    shutil.copyfile(few_database, path)
    intact, content = database_digest(path), path.read_bytes()
    assert intact is not None
    assert check(few_spool, path).problems == ()
    named, damaged = 0, range(part, blocks(path), 8)
    for block in damaged:
        changed = bytearray(content)
        changed[HEADERS + block * BLOCK + AT] ^= 0x55
        path.write_bytes(changed)
        problems = check(few_spool, path).problems
        named += bool(problems)
        assert problems or database_digest(path) == intact, block
        assert all("exitbench db rebuild" in problem for problem in problems), problems
    assert named > len(damaged) / 2
