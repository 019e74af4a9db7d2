"""Tables are declared in one place; creation, filling, checks, exports and documentation follow the declarations."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from exitbench.results.database.catalogue import METADATA
from exitbench.results.database.connection import open_database
from exitbench.results.spool.schema import TABLES as SPOOL
from exitbench.results.tables import FILES, KEYS, REFERENCES, TABLES, schema_sql

DECLARED = Path(__file__).parents[3] / "results" / "tables"

BEYOND = """
import json, shutil, sys
from pathlib import Path
import pyarrow as pa
import exitbench.results
exitbench.results.__path__.insert(0, sys.argv[1])  # the declarations with a column and a table more

from exitbench.results.database import connection, current
from exitbench.results.database.access import mark_verified_in_process
from exitbench.results.database.connection import open_database
from exitbench.results.database.schema_doc import schema_markdown
from exitbench.results.ingest.ingest import ingest
from exitbench.results.ingest.importing import merge
from exitbench.results.ingest.snapshot import write_snapshot
from exitbench.results.maintenance.integrity import check
from exitbench.results.spool.attempts import AttemptWriter

folder, (cell, env) = Path(sys.argv[2]), json.loads(sys.argv[3])
create, empty = connection._create, folder / "empty.duckdb"

def copy(path):  # the first of four databases, since creating one takes most of a second
    if not empty.exists():
        create(empty)
    shutil.copyfile(empty, path)
    mark_verified_in_process(path, current.version())

connection._create = copy
token = {"doc_key": "a", "position": 1, "token_id": 7, "exit_layer": 2, "blocks_run": 2, "reason": "last"}
with AttemptWriter(folder / "spool", cell, env) as writer:
    writer.write("tokens", pa.Table.from_pylist([{**token, "luck": 0.5}]))
    writer.write("coins", pa.Table.from_pylist([{"doc_key": "a", "position": n, "text": "x"} for n in (1, 2)]))
    writer.finish("ok")
assert ingest(folder / "spool", folder / "x.duckdb").quarantined == ()
with open_database(folder / "x.duckdb") as database:
    write_snapshot(database.engine, folder / "snapshot", redistributable=[])
merge(folder / "snapshot", folder / "other" / "spool", folder / "other" / "x.duckdb")
for path in (folder, folder / "other"):
    with open_database(path / "x.duckdb") as database:
        print(database.rows("SELECT luck FROM token_exit")[1], database.rows("SELECT position, text FROM coin")[1])
        print(len(check(path / "spool", path / "x.duckdb").problems))
with open_database(folder / "x.duckdb", read_only=False) as database:
    database.duck.execute("INSERT INTO coin FROM coin LIMIT 1")
    database.duck.execute("UPDATE coin SET attempt_id = 'b' WHERE position = 2")
print(*(problem.partition(". ")[0] for problem in check(folder / "spool", folder / "x.duckdb").problems), sep="\\n")
picture, tables = (schema_markdown().partition(part)[2] for part in ("erDiagram", "## Tables"))
view = picture.partition("### token_trace")[2].partition("###")[0]
described = picture.partition("## Views")[0] + view + tables
print(*(line for line in described.splitlines() if "luck" in line or "coin" in line), sep="\\n")
"""


def test_new_columns_and_tables_need_only_one_declaration(
    cell: dict[str, Any], env: dict[str, Any], tmp_path: Path
) -> None:
    shutil.copytree(DECLARED, tmp_path / "more" / "tables", ignore=shutil.ignore_patterns("__pycache__"))
    traces = tmp_path / "more" / "tables" / "traces.py"
    text = traces.read_text()
    column = '            Column("luck", "FLOAT", "how lucky it was", required=False),\n'
    table = """TRACES: Final = (
    Table(
        "coin",
        "One row per coin.",
        (ATTEMPT_ID, DOC_KEY, _POSITION, Column("text", "VARCHAR", "what the coin says", redacted_sql="''")),
        file="coins",
        indexed=False,
    ),
"""
    text = text.replace("            _TRACED_POSITION,\n", f"            _TRACED_POSITION,\n{column}", 1)
    traces.write_text(text.replace("TRACES: Final = (\n", table))
    cell["task"]["source"] = "local"
    words = [sys.executable, "-c", BEYOND, str(tmp_path / "more"), str(tmp_path), json.dumps([cell, env])]
    process = subprocess.run(words, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    attempt_id = next((tmp_path / "spool").glob("*/*/*")).name
    assert process.stdout.splitlines() == [
        "[(0.5,)] [(1, 'x'), (2, 'x')]",
        "0",
        "[(0.5,)] [(1, ''), (2, '')]",
        "0",
        "coin: 1 row of a attempt_id that attempt does not have, such as b",
        f"coin: 1 row more than once, such as attempt_id {attempt_id}, doc_key a, position 1",
        "    attempt ||--o{ coin : attempt_id",
        "| luck | FLOAT | how lucky it was |",
        "### coin",
        "One row per coin.",
        "| text | VARCHAR NOT NULL | what the coin says |",
        "| luck | FLOAT | how lucky it was |",
    ]


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_table_is_described_and_has_a_key(table: Any) -> None:
    names = [column.name for column in table.columns]
    assert len(set(names)) == len(names)
    assert table.key and table.description.endswith(".")
    assert all(column.description for column in table.columns)
    assert set(table.import_key) <= set(names)


def test_references_point_to_the_key_of_their_table() -> None:
    for table, column, owner in REFERENCES:
        assert TABLES[owner].key == (column,), (table, column)


def test_tables_of_attempts_are_those_with_an_attempt_id_column() -> None:
    alone = {name for name, table in TABLES.items() if not table.is_of_attempts and not table.local} - KEYS.keys()
    assert alone == {"environment", "hardware", "model_artifact", "dataset_artifact", "cell"}
    with duckdb.connect() as connection:
        connection.execute(schema_sql())
        of_attempts = (
            "SELECT table_name FROM duckdb_columns() WHERE column_name = 'attempt_id' AND table_name <> 'attempt'"
        )
        ids = {name for (name,) in connection.execute(of_attempts).fetchall()}
    assert ids == {name for name, table in TABLES.items() if table.is_of_attempts}


def test_spool_schema_omits_the_columns_added_by_ingest() -> None:
    assert SPOOL["metrics"].names == [
        *("metric", "metric_version", "value", "ci_low", "ci_high", "ci_method", "n"),
        *("role", "lower_is_better", "scale_low", "scale_high"),
    ]
    assert [field.name for field in SPOOL["tokens"] if not field.nullable] == [
        *("doc_key", "position", "token_id", "exit_layer", "blocks_run", "reason"),
    ]
    assert SPOOL.keys() == FILES.keys()


COLUMNS = "SELECT column_name, data_type, is_nullable FROM duckdb_columns() WHERE table_name = ? ORDER BY column_index"


def test_sqlalchemy_tables_equal_those_of_the_database(tmp_path: Path) -> None:
    import sqlalchemy as sa

    engine = sa.create_engine(f"duckdb:///{tmp_path / 'described.duckdb'}")
    METADATA.create_all(engine)
    open_database(tmp_path / "x.duckdb", read_only=False).close()
    with engine.connect() as described, duckdb.connect(tmp_path / "x.duckdb", read_only=True) as written:
        for table in METADATA.tables:
            expected = written.execute(COLUMNS, [table]).fetchall()
            assert expected and described.exec_driver_sql(COLUMNS, (table,)).all() == expected, table
