"""DuckDB reads exactly the named file, whatever its name."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from exitbench.errors import UserError
from exitbench.results.files.arrow import parquet_path

NAMES = ("a=1", "r[1]", "r1", "r[[]1]", "star*", "starring", "who?", "whom", "**", "two words", "it's", "{a,b}", "b\\c")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"name": [name]}), tmp_path / name / "t.parquet")
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_glob_characters_in_a_path_are_literal(name: str, folder: Path) -> None:
    file = folder / name / "t.parquet"
    read = "SELECT * FROM read_parquet($1, filename=true, hive_partitioning=false)"
    assert duckdb.execute(read, [parquet_path(file)]).fetchall() == [(name, str(file))]


def test_path_with_backslash_and_glob_characters_is_refused() -> None:
    with pytest.raises(UserError, match="backslash"):
        parquet_path(Path("b\\c/r[1]/t.parquet"))
