"""Open a lake as a database: small tables are loaded, large ones become views over their Parquet files.

If the lake is a directory, a query opens only the files of its runs: large tables are partitioned by attempt, and
DuckDB skips the partitions of other attempts.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import duckdb

from exitbench.errors import UserError, one_line
from exitbench.results.database.access import AccessLock
from exitbench.results.database.connection import Database, open_database, sandbox
from exitbench.results.database.differences import fill_differences
from exitbench.results.database.tables import declared_tables, printable, quoted, quoted_text
from exitbench.results.ingest.manifest import require_sound
from exitbench.results.lake import tables
from exitbench.results.lake.tables import LOADED, SHARED, LakeTable
from exitbench.results.tables import SCHEMA_VERSION
from exitbench.terminal import number_of

_PLANNING: Final = ("disabled_optimizers = 'join_order'", "dynamic_or_filter_threshold = 100000")
"""Keep the order of joins in views, so that files of other attempts are skipped, also for more than 50 attempts."""


def open_lake(lake: str) -> Database:
    """Open a lake (a directory or s3://BUCKET/PREFIX) for reading, with every table, view and saved query.

    Raises:
        UserError: There is no lake of this version's schema, or a table is not as ExitBench writes it.
    """
    tables.require_lake(lake)
    attempts = tables.open_table(lake, "attempt")  # before the other tables, which then have all rows of its attempts
    if attempts is None or not attempts.files:
        schemas = sorted(name for name in tables.listing(lake, "") if name.startswith("schema="))
        has = f"; it has {', '.join(map(printable, schemas))}" if schemas else ""
        raise UserError(f"{lake}: no lake of schema {SCHEMA_VERSION}{has}. `exitbench export lake` creates one.")
    names = [name for name in tables.key_columns() if name != "attempt"]
    with ThreadPoolExecutor() as pool:
        tables_opened = pool.map(lambda name: tables.open_table(lake, name), names)
        opened = [attempts, *(table for table in tables_opened if table is not None and table.files)]
    folder = TemporaryDirectory(prefix="exitbench-")
    try:
        path = Path(folder.name) / "lake.duckdb"
        with open_database(path, read_only=False) as database:
            complete = _fill(database.duck, opened)
            require_sound(database.duck, {name: quoted(name) for name in LOADED}, lake)
            with database.engine.begin() as connection:
                fill_differences(connection)
        duck = sandbox([path], path.parent, [Path(lake).absolute()] if "://" not in lake else [], _PLANNING)
        for table in opened:
            _select(duck, table, complete)
        duck.execute(f"ATTACH {quoted_text(str(path))} AS results (READ_ONLY, TYPE duckdb)")
        duck.execute("USE results")
    except BaseException:
        folder.cleanup()
        raise
    return Database(Path(lake), duck, AccessLock(None), folder)


def _fill(duck: duckdb.DuckDBPyConnection, opened: list[LakeTable]) -> set[str]:
    """Load a lake's small tables into a database and create views over its large ones.

    `opened` has the lake's tables, `attempt` first.

    Returns:
        The ids of attempts that the lake has completely.
    """
    complete: set[str] = set()
    for table in opened:
        name, select = quoted(table.name), _select(duck, table, complete)
        try:
            if table.name in LOADED:
                duck.execute(f"INSERT INTO {name} BY NAME {select}").fetchall()
            else:
                duck.execute(f"DROP TABLE {name}")
                duck.execute(f"CREATE VIEW {name} AS {select}")
        except duckdb.Error as error:
            raise UserError(f"{table.url}: its rows do not fit: {one_line(error)}") from None
        if table.name == "attempt":
            complete = {attempt for (attempt,) in duck.execute("SELECT attempt_id FROM attempt").fetchall()}
    return complete


def _select(duck: duckdb.DuckDBPyConnection, table: LakeTable, complete: Collection[str]) -> str:
    """Return SQL that selects the rows of a lake's table that belong to the attempts with ids in `complete`.

    The SQL reads Parquet files of a directory. For a bucket, it reads an Arrow data set that is registered here.
    """
    types = declared_tables()[table.name]
    columns = ", ".join(f"{quoted(name)}::{column.type} AS {quoted(name)}" for name, column in types.items())
    is_by_attempt = tables.partitioned_by(table.name) == ["attempt_id"]
    if "://" in table.url:
        source = f"temp.lake_{table.name}"
        with tables.as_user_errors(table.url):
            partition_filter = [("attempt_id", "in", sorted(complete))] if is_by_attempt else None
            dataset = table.delta.to_pyarrow_dataset(partition_filter)
        duck.register(f"lake_{table.name}", dataset)
    else:
        files = [file for file, attempt in table.files.items() if not is_by_attempt or attempt in complete]
        listed = ", ".join(quoted_text(escape(str(Path(table.url, file).absolute()))) for file in files)
        source = f"read_parquet([{listed}], hive_partitioning=true, hive_types_autocast=false)"
        if not listed:  # an export was killed before any of the table's attempts was complete
            source = f"(SELECT {', '.join(f'NULL AS {quoted(name)}' for name in types)} LIMIT 0)"
    if key := SHARED.get(table.name):  # a cell is named by its newest attempt
        return f"SELECT DISTINCT ON ({key[0]}) {columns} FROM {source} ORDER BY {key[-1]} DESC"
    if "attempt_id" in types and table.name != "attempt" and not tables.partitioned_by(table.name):
        source += " SEMI JOIN (FROM attempt) USING (attempt_id)"
    return f"SELECT {columns} FROM {source}"


_MAX_SHOWN_CELLS: Final = 20
_ATTEMPTS: Final = """
    SELECT cell_id, status, left(hw_id, 8) || ' (' || concat_ws(', ', gpu, cpu, 'threads: ' || threads) || ')'
    FROM attempt JOIN hardware USING (hw_id) ORDER BY status <> 'interrupted', attempt_id
"""


def lake_lines(lake: str, labels: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield lines of text on the cells in a lake: numbers by status, machines that ran them, and missing cells.

    `labels` has the cells to report, with their names by id; None stands for all cells in the lake.
    """
    with open_lake(lake) as database:
        rows = database.duck.execute(_ATTEMPTS).fetchall()
    rows = [row for row in rows if labels is None or row[0] in labels]
    states = {cell: status for cell, status, _ in rows}
    missing = [label for cell, label in (labels or {}).items() if states.get(cell) != "ok"]
    counts = Counter(states.values()) + Counter(new=len((labels or {}).keys() - states.keys()))
    summary = ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none"
    yield f"{number_of(counts.total(), 'cell')}: {summary}; {number_of(len(rows), 'attempt')}"
    machines = defaultdict(set)
    for cell, _, machine in rows:
        machines[machine].add(cell)
    yield from (f"machine  {name}: {number_of(len(cells), 'cell')}" for name, cells in sorted(machines.items()))
    shared = Counter(cell for cells in machines.values() for cell in cells)
    if twice := sum(count > 1 for count in shared.values()):
        yield f"{number_of(twice, 'cell')} ran on more than one machine: shards overlapped, or machines were exchanged"
    yield from (f"missing  {label}" for label in missing[:_MAX_SHOWN_CELLS])
    if len(missing) > _MAX_SHOWN_CELLS:
        yield f"missing  and {len(missing) - _MAX_SHOWN_CELLS} more"
