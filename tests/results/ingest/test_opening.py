"""Snapshots are read without a folder of results; bundled snapshots contain no texts of data sets."""

from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.results import snapshots
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.opening import open_snapshot, snapshot_names
from exitbench.results.ingest.snapshot import load_snapshot, write_snapshot
from exitbench.results.tables import TABLES

SNAPSHOTS = Path(snapshots.__file__).parent
LARGEST_BYTES = 8_000_000


def test_snapshot_folder_answers_like_its_database(few_database: Path, tmp_path: Path) -> None:
    query = "FROM frontier ORDER BY ALL"
    with open_database(few_database) as database:
        write_snapshot(database.engine, tmp_path / "taken")
        expected = database.query(query)
    with open_snapshot(str(tmp_path / "taken")) as opened:
        assert opened.query(query).equals(expected)
        assert expected.num_rows
        temporary = opened.path
    assert not temporary.exists()


def test_unknown_snapshot_name_lists_the_bundled_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"there is no such snapshot. Allowed: {', '.join(snapshot_names())}, or a"):
        open_snapshot(str(tmp_path))


@pytest.mark.parametrize("name", snapshot_names())
def test_a_bundled_snapshot_is_small_and_has_no_text_of_a_data_set(name: str, tmp_path: Path) -> None:
    with open_database(tmp_path / "exitbench.duckdb", read_only=False) as database:
        load_snapshot(database.engine, SNAPSHOTS / name)
        for table in TABLES.values():
            for column in (column for column in table.columns if column.redacted_sql is not None):
                kept = f"FROM {table.name} WHERE {column.name} IS DISTINCT FROM ({column.redacted_sql})::{column.type}"
                assert not database.query(kept).num_rows, (table.name, column.name)
        assert not database.query("FROM token_text").num_rows
        assert database.query("FROM frontier WHERE value IS NOT NULL").num_rows > 1
    assert sum(path.stat().st_size for path in (SNAPSHOTS / name).iterdir()) <= LARGEST_BYTES
