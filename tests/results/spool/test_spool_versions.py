"""Attempts of every version of the spool are read: without the columns and tables that later versions brought."""

import hashlib
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.results.spool.attempts import read_attempt, scan_spool
from exitbench.results.spool.schema import SCHEMA_VERSION, TABLES

TABLES_OF_FIRST_VERSION = ("samples", "tokens", "probe", "metrics", "timings")


@pytest.fixture(params=range(1, SCHEMA_VERSION + 1))
def old(request: pytest.FixtureRequest, few_spool: Path, tmp_path: Path) -> Path:
    """The example as an earlier version left it: without the columns that may be NULL."""
    spool = tmp_path / "spool"
    shutil.copytree(few_spool, spool)
    for attempt in scan_spool(spool):
        status = json.loads((attempt.path / "status.json").read_text())
        (attempt.path / "status.json").write_text(json.dumps({**status, "schema_version": request.param}))
        for path in attempt.path.glob("*.parquet"):
            needed = [field.name for field in TABLES[path.stem] if not field.nullable]
            pq.write_table(pq.read_table(path, columns=needed), path)
        digests = json.loads((attempt.path / "DONE").read_text())
        digests = {name: hashlib.sha256((attempt.path / name).read_bytes()).hexdigest() for name in digests}
        (attempt.path / "DONE").write_text(json.dumps(digests))
    return spool


def test_every_table_is_read_and_what_is_missing_is_null(old: Path, few_database: Path) -> None:
    path = old.parent / "exitbench.duckdb"
    assert ingest(old, path).quarantined == ()
    counts = "SELECT (SELECT count(*) FROM sample), (SELECT count(*) FROM token_exit), (SELECT count(*) FROM metric)"
    with open_database(path) as database, open_database(few_database) as now:
        assert database.query(counts).to_pylist() == now.query(counts).to_pylist()
        assert database.query("SELECT count(head_rows) AS n FROM token_exit")["n"].to_pylist() == [0]
        scores = "SELECT doc_key, output_text, scores FROM sample ORDER BY ALL"
        assert database.query(scores).to_pylist() == now.query(scores).to_pylist()


def test_a_reader_gives_every_column_of_this_version(old: Path) -> None:
    read = set()
    for attempt in scan_spool(old):
        record = read_attempt(attempt.path)
        for table in record.tables:
            assert next(record.batches(table)).schema.equals(TABLES[table])
            read.add(table)
    assert read >= set(TABLES_OF_FIRST_VERSION)
