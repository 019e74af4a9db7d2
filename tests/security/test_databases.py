"""Third-party databases: everything besides rows is neither run nor trusted, and no command imports one.

Each attack is SQL that its author ran in one of our databases. Files that it writes would be below `loot`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from exitbench.errors import UserError
from exitbench.results.database.connection import open_database

Ask = Callable[..., tuple[int, str, str]]
FolderContents = Callable[[Path], dict[str, str]]

QUESTION = "SELECT count(*) AS n, round(sum(value), 6) AS total, max(metric) AS last FROM metric_values"
COPY = "COPY (SELECT content FROM read_text('/etc/hostname')) TO '{loot}/written'"
STALE = "UPDATE view_source SET sha256 = 'other'"
COPY_TABLE = "CREATE TABLE again AS FROM metric; DROP TABLE metric; ALTER TABLE again RENAME TO metric"

NAME = f"attempt WHERE false; {COPY}; --"
PTH = "COPY (SELECT 'import os' || chr(59) || ' os.system(''id'')') TO '{loot}/zzz.pth' (FORMAT csv, HEADER false)"
CARRIED = {
    "a view whose name ends a statement": (
        f'CREATE VIEW "main"".""zzz""; {COPY}; --" AS SELECT 1; CREATE VIEW zzz AS SELECT 1; {STALE}'
    ),
    "a macro whose name ends a statement": f'CREATE MACRO "zzz""; {COPY}; --"() AS 1; {STALE}',
    "a macro that is called like a function of our views": "CREATE MACRO max(x) AS 'wrong'; CREATE MACRO sum(x) AS 42",
    "a macro that is called like an operator": 'CREATE MACRO "+"(a, b) AS 42; CREATE MACRO "||"(a, b) AS 42',
    "a table macro that is called like our means to look": "CREATE MACRO duckdb_views() AS TABLE SELECT 1 AS sql",
    "a table macro that is called like our reader": "CREATE MACRO read_parquet(x) AS TABLE SELECT 1 AS attempt_id",
    "another of our macros": "CREATE OR REPLACE MACRO half_width(s, c) AS 42",
    "another of our views, the digest as it was": (
        "CREATE OR REPLACE VIEW metric_values AS SELECT 7 AS value, 'wrong' AS metric"
    ),
    "a view that reads files": (
        "CREATE OR REPLACE VIEW metric_values AS SELECT 7 AS value, content AS metric FROM read_text('/etc/hostname')"
    ),
    "a type that is called like one of ours": "CREATE TYPE json AS ENUM ('a', 'b')",
    "tables of our names in another schema": (
        "CREATE SCHEMA evil; CREATE TABLE evil.attempt AS SELECT 1 AS attempt_id; "
        "CREATE TABLE evil.schema_version AS SELECT 99 AS version"
    ),
    "a trigger": (
        "CREATE TRIGGER t AFTER INSERT ON metric FOR EACH STATEMENT "
        "INSERT INTO view_source SELECT content FROM read_text('/etc/hostname')"
    ),
    "an index on an expression": "CREATE INDEX i ON metric ((value + 1))",
    "a table whose name ends a statement": f'CREATE TABLE "{NAME}" AS SELECT 1 AS attempt_id',
    "a table whose name writes a file that Python runs": (
        f'CREATE TABLE "attempt WHERE false; {PTH}; --" AS SELECT 1 AS attempt_id'
    ),
    "a table with control characters in its name": 'CREATE TABLE "\x1b[31mred\u202e" AS SELECT 1 AS attempt_id',
    "a table that is called like a keyword": 'CREATE TABLE "select" (x INT)',
}
"""Objects in a file besides our tables and views."""

HARMLESS = (
    "tables of our names in another schema",
    "a trigger",
    "an index on an expression",
    "a table whose name ends a statement",
    "a table whose name writes a file that Python runs",
    "a table with control characters in its name",
    "a table that is called like a keyword",
)
"""Attacks on which queries still run, because our tables, views and macros are unchanged. The others are refused."""

REFUSED = {
    "a column whose name ends a statement": (
        f'ALTER TABLE metric ADD COLUMN "a""; {COPY}; --" INTEGER',
        "table metric has a column 'a\"; COPY (SELECT content",
    ),
    "a view in the place of a table": (
        "ALTER TABLE cell RENAME TO hidden; CREATE VIEW cell AS FROM hidden",
        "has no table cell",
    ),
    "a view in the place of a table that is elsewhere": (
        "CREATE SCHEMA s; CREATE TABLE s.cell AS FROM cell; DROP TABLE cell; CREATE VIEW cell AS FROM s.cell",
        "has no table cell",
    ),
    "a column that is computed": (
        f"{COPY_TABLE}; ALTER TABLE metric DROP COLUMN n; ALTER TABLE metric ADD COLUMN n BIGINT; {COPY_TABLE}; "
        "CREATE TABLE other (attempt_id VARCHAR, ordinal INTEGER, metric VARCHAR, metric_version VARCHAR, "
        "value DOUBLE GENERATED ALWAYS AS (ordinal * 42.0), ci_low DOUBLE, ci_high DOUBLE, ci_method VARCHAR, "
        "n BIGINT, scored_at TIMESTAMP); DROP TABLE metric; ALTER TABLE other RENAME TO metric",
        "table metric: column value has an expression; only stored values are read",
    ),
    "a default that is computed": (
        "ALTER TABLE training_log ALTER COLUMN metric SET DEFAULT concat('a', 'b')",
        "table training_log: column metric has an expression",
    ),
    "an enumeration for a text": (
        "ALTER TABLE training_log ALTER COLUMN metric TYPE ENUM ('a', 'it''s \"b\"')",
        "table training_log: column metric is",
    ),
    "a structure for a text": (
        "ALTER TABLE training_log DROP COLUMN metric; "
        'ALTER TABLE training_log ADD COLUMN metric STRUCT("a""; DROP" INTEGER)',
        "table training_log: column metric is",
    ),
    "a column less": ("ALTER TABLE training_log DROP COLUMN metric", "table training_log has no column metric"),
    "a table less": ("DROP TABLE training_log", "has no table training_log"),
    "no schema": ("DELETE FROM schema_version", "does not contain the schema version of the database"),
    "a schema before the first": (
        "UPDATE schema_version SET version = -version",
        "does not contain the schema version",
    ),
    "a schema of another kind": (
        "DROP TABLE schema_version; CREATE TABLE schema_version AS "
        "SELECT 'x' AS version, now()::TIMESTAMP AS applied_at, 'a' AS tool",
        "table schema_version: column version is 'VARCHAR', not INTEGER",
    ),
}
"""Files without our tables, and words of the error message when they are read."""


@pytest.fixture(scope="module")
def newest(few_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the example database in DuckDB's newest storage format, which has the most features."""
    path = tmp_path_factory.mktemp("newest") / "theirs.duckdb"
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{few_database}' AS ours (READ_ONLY)")
        connection.execute(f"ATTACH '{path}' AS theirs (STORAGE_VERSION 'v2.0.0')")
        connection.execute("COPY FROM DATABASE ours TO theirs")
    open_database(path, read_only=False).close()  # the copied views have another text
    return path


def attacked(newest: Path, path: Path, sql: str) -> Path:
    """Return a copy of the example database in which an attacker has run SQL."""
    (path.parent / "loot").mkdir()
    shutil.copyfile(newest, path)
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{path}' AS theirs; USE theirs")
        connection.execute(sql.replace("{loot}", str(path.parent / "loot")))
    return path


def loot(path: Path) -> list[Path]:
    """Return the files that an attack wrote."""
    return list((path.parent / "loot").iterdir())


@pytest.fixture(scope="module")
def answer(few_database: Path) -> str:
    """Return the answer to `QUESTION` from the undamaged example database."""
    with open_database(few_database) as database:
        return str(database.query(QUESTION).to_pylist())


def answer_of(path: Path) -> str:
    with open_database(path) as database:
        return str(database.query(QUESTION).to_pylist())


@pytest.mark.parametrize("what", CARRIED)
def test_third_party_database_objects_other_than_rows_are_ignored_or_refused(
    what: str, newest: Path, answer: str, tmp_path: Path, folder_contents: FolderContents
) -> None:
    path = attacked(newest, tmp_path / "theirs.duckdb", CARRIED[what])
    before = folder_contents(tmp_path)
    if what in HARMLESS:
        assert answer_of(path) == answer
    else:
        with pytest.raises(UserError, match="has views of another version of ExitBench"):
            open_database(path)
    assert folder_contents(tmp_path) == before


@pytest.mark.parametrize("what", REFUSED)
def test_database_without_exitbench_tables_is_refused(
    what: str, newest: Path, tmp_path: Path, ask: Ask, folder_contents: FolderContents
) -> None:
    sql, says = REFUSED[what]
    path = attacked(newest, tmp_path / "theirs.duckdb", sql)
    before = folder_contents(tmp_path)
    code, output, complained = ask("sql", QUESTION, "--database", path)
    assert (code, output) == (2, "")
    assert says in complained and str(path) in complained
    assert folder_contents(tmp_path) == before


@pytest.mark.parametrize("sql", ["SELECT 1", CARRIED["a table whose name ends a statement"], CARRIED["a trigger"]])
def test_import_refuses_database_files(
    sql: str, newest: Path, tmp_path: Path, runs: Path, ask: Ask, folder_contents: FolderContents
) -> None:
    path = attacked(newest, tmp_path / "theirs.duckdb", sql)
    before = folder_contents(tmp_path)
    code, output, complained = ask("import", path, "--runs", runs)
    assert (code, output) == (2, "")
    assert f"{path} is a database" in complained and "exitbench export" in complained
    assert folder_contents(tmp_path) == before


@pytest.mark.parametrize(
    "command",
    [
        ("sql", QUESTION),
        ("report", "--format", "md", "--draft", "--out", "{folder}/out"),
        ("claims",),
        ("export", "{folder}/exported"),
        ("check",),
    ],
    ids=lambda command: command[0],
)
def test_reading_commands_do_not_modify_a_stale_database(
    command: tuple[str, ...], newest: Path, tmp_path: Path, ask: Ask
) -> None:
    stale = f'{STALE}; CREATE VIEW "main"".""zzz""; {COPY}; --" AS SELECT 1; CREATE VIEW zzz AS SELECT 1'
    path = attacked(newest, tmp_path / "theirs.duckdb", stale)
    before = path.read_bytes()
    code, _, complained = ask(*(word.format(folder=tmp_path) for word in command), "--database", path)
    assert code == 2
    assert (path.read_bytes(), loot(path)) == (before, [])
    assert "has views of another version" in complained and "db rebuild" in complained


def test_replayed_write_ahead_log_is_not_trusted(newest: Path, tmp_path: Path, runs: Path, ask: Ask) -> None:
    path = attacked(newest, tmp_path / "theirs.duckdb", "SELECT 1")
    hostile = "; ".join(CARRIED[what] for what in list(CARRIED)[:3]).replace("{loot}", str(tmp_path / "loot"))
    script = "import duckdb, os, sys; c = duckdb.connect(sys.argv[1]); c.execute(sys.argv[2]); os._exit(0)"
    subprocess.run([sys.executable, "-c", script, path, f"SET checkpoint_threshold = '1GB'; {hostile}"], check=True)
    log = path.with_name(f"{path.name}.wal")
    before = path.read_bytes(), log.read_bytes()
    with pytest.raises(UserError, match="has views of another version"):
        open_database(path)
    assert ask("import", path, "--runs", runs)[0] == 2
    assert ((path.read_bytes(), log.read_bytes()), loot(path)) == (before, [])


def test_sqlite_file_is_refused_without_installing_an_extension(tmp_path: Path, runs: Path, ask: Ask) -> None:
    path = tmp_path / "theirs.duckdb"
    path.write_bytes(b"SQLite format 3\0" + b"\x10\0\x01\x01\0\x40\x20\x20" + bytes(4072))
    for command in (("import", path, "--runs", runs), ("sql", QUESTION, "--database", path)):
        assert ask(*command)[0] == 2
    with pytest.raises(UserError, match="is a SQLite database, not a DuckDB database"):
        open_database(path, read_only=False)


@pytest.mark.parametrize("read_only", [True, False])
def test_connections_load_no_extensions_and_lock_their_configuration(
    read_only: bool, few_database: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copyfile(few_database, tmp_path / "exitbench.duckdb"))
    with open_database(path, read_only=read_only) as database:
        columns = database.query(
            "SELECT name, value FROM duckdb_settings() WHERE name IN "
            "('autoload_known_extensions', 'autoinstall_known_extensions', 'lock_configuration') ORDER BY name"
        )
        assert columns["value"].to_pylist() == ["false", "false", "true"]
        with pytest.raises(UserError, match="configuration has been locked"):
            database.query("SET autoload_known_extensions = true")


@pytest.mark.parametrize("what", ["a trigger", "a type that is called like one of ours"])
def test_writer_refuses_a_database_with_triggers_or_types(what: str, newest: Path, tmp_path: Path) -> None:
    path = attacked(newest, tmp_path / "theirs.duckdb", CARRIED[what])
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"has a trigger or type '.*db rebuild"):
        open_database(path, read_only=False)
    assert path.read_bytes() == before


TOGETHER = (
    ("a view whose name ends a statement", "a macro whose name ends a statement", "a view that reads files"),
    ("another of our macros", "another of our views, the digest as it was"),
    (
        "a table macro that is called like our means to look",
        "a table macro that is called like our reader",
        "a macro that is called like a function of our views",
        "a macro that is called like an operator",
    ),
)


@pytest.mark.parametrize(
    "attacks",
    [*TOGETHER, *(pytest.param((what,), marks=pytest.mark.exhaustive) for what in list(CARRIED)[:9])],
    ids=str,
)
def test_writer_recreates_every_view_and_macro(
    attacks: tuple[str, ...], newest: Path, answer: str, tmp_path: Path
) -> None:
    path = attacked(newest, tmp_path / "theirs.duckdb", "; ".join(CARRIED[what] for what in attacks))
    open_database(path, read_only=False).close()
    macros = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE NOT internal ORDER BY ALL"
    with open_database(path) as database, open_database(newest) as local:
        assert str(database.query(QUESTION).to_pylist()) == answer
        assert database.query(macros).to_pylist() == local.query(macros).to_pylist() != []
    assert loot(path) == []


@pytest.mark.parametrize(
    "query",
    [
        "WITH x AS (COPY (SELECT 1) TO '{path}' (USE_TMP_FILE false)) FROM x",
        "WITH x AS MATERIALIZED ( /* ( */ copy (SELECT 1) TO '{path}.wal' (USE_TMP_FILE false)) FROM x",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{path}' (USE_TMP_FILE false)",
        "EXPLAIN (ANALYZE, FORMAT json) COPY (SELECT 1) TO '{path}.wal' (USE_TMP_FILE false)",
        "FROM query('WITH x AS (COPY (SELECT 1) TO ''{path}'' (USE_TMP_FILE false)) FROM x')",
    ],
)
def test_query_cannot_overwrite_its_database(query: str, few_database: Path, tmp_path: Path, ask: Ask) -> None:
    path = Path(shutil.copyfile(few_database, tmp_path / "exitbench.duckdb"))
    before = path.read_bytes()
    code, output, _ = ask("sql", query.format(path=path), "--database", path)
    assert (code, output) == (2, "")
    assert path.read_bytes() == before
    assert not os.path.exists(f"{path}.wal")


def test_write_keywords_in_literals_and_comments_are_allowed(few_database: Path, ask: Ask) -> None:
    query = "SELECT 'copy' AS \"update\", replace('(delete', 'a', 'b') AS kv -- (copy"
    assert ask("sql", query, "--database", few_database, "--format", "csv")[0] == 0
