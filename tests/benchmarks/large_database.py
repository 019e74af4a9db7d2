"""Build a large result database from synthetic attempts and time all queries; run by `nox -s scale`.

    python tests/benchmarks/large_database.py FOLDER [--layer-rows 100000000] [--threads 2] [--lake] [--readers]

The data are as in tests/results/make_spool.py, only larger: four models of 24 blocks on three tasks, seven methods and
three replays each. A database already in FOLDER is reused.

Prints the ingest rate, bytes per row, and the time of every view, saved query and report query, the slowest first. Each
query runs twice, and the smaller times count: wall time, and CPU seconds divided by the number of cores. The latter is
a lower bound of the wall time on an idle machine.

With --lake, it exports the database to FOLDER/lake instead, and compares the CPU seconds of each saved query in both.
With --readers, it ingests only probes into another database. This process opens that database repeatedly meanwhile, as
every reader does, and prints the waiting times.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "results"))
import make_spool

from exitbench.reports import figures, tables
from exitbench.reports.registry import discover
from exitbench.reports.render import write_report
from exitbench.results.database.connection import Database, open_database
from exitbench.results.ingest.ingest import ingest
from exitbench.results.lake.export import export_lake
from exitbench.results.lake.reading import open_lake
from exitbench.results.queries import SavedQuery, query_names, saved_query

BLOCKS, TOKENS, MODELS = 24, 100, 4

MOST_USED = (
    *("best_settings", "what_to_use", "fastest_within_loss", "speed_beyond_noise", "exit_by_position"),
    *("block_curves", "confidence_error_by_block", "threshold_for_agreement", "exit_reliability", "signal_quality"),
)
"""Saved queries assumed to be used most: those behind the report's first screen and the guides."""

INGESTER = """
import sys, time
from pathlib import Path
from exitbench.results.ingest.ingest import ingest
started = time.perf_counter()
report = ingest(Path(sys.argv[1]), Path(sys.argv[2]), on_wait=lambda line: print(line, file=sys.stderr))
assert report.added and not report.quarantined, report
print(time.perf_counter() - started)
"""

# A typical query per view: every row of a view of runs, a summary of a view of documents, tokens or layers.
SUMMARIES = {
    "layer_trace": "SELECT model, task, block, avg(p1), count(*) FROM layer_trace GROUP BY ALL",
    "probe_trace": "SELECT model, task, avg(stable_from), avg(p1[-1]), count(*) FROM probe_trace GROUP BY ALL",
    "token_trace": "SELECT model, task, method, params, avg(exit_layer), count(*) FROM token_trace GROUP BY ALL",
    "score_trace": "SELECT model, task, method, count(*) FROM score_trace GROUP BY ALL",
}


def make(spool: Path, layer_rows: int, *, probes: bool) -> None:
    """Write synthetic attempts to a spool: those of the probes, or all others."""
    n = layer_rows // (MODELS * len(make_spool.TASKS) * BLOCKS * TOKENS)
    models = tuple(make_spool.Model(f"made-up-{i}", "seq2seq", BLOCKS, BLOCKS) for i in range(MODELS))
    kinds = tuple(make_spool.KINDS[i % len(make_spool.KINDS)] for i in range(TOKENS))
    others = ("quality", "timing", "replay", "failures") if probes else ("probe",)
    omitted_kinds = frozenset({"scores", "fit", "calibration", *others})
    sizes = {"documents": n, "tokens": TOKENS, "vocabulary": 32_000, "kinds": kinds}
    make_spool.World(models=models, omitted_kinds=omitted_kinds, **sizes).write(spool)


def build(spool: Path, path: Path, layer_rows: int) -> None:
    """Generate and ingest synthetic attempts, probes first, and print the ingest rates."""
    for probes, table, rows in ((True, "probe_token", "sum(len(p1))"), (False, "token_exit", "count(*)")):
        generated_s = seconds(lambda probes=probes: make(spool, layer_rows, probes=probes))
        ingested_s, cpu_s = seconds_and_cpu(lambda: ingest(spool, path))
        with open_database(path) as database:
            (n,) = database.query(f"SELECT {rows}::BIGINT AS n FROM {table}")["n"].to_pylist()
        what = "layer rows" if probes else "tokens"
        print(
            f"{n / 1e6:.1f} million {what}: generated in {generated_s:.0f} s, ingested in {ingested_s:.1f} s:"
            f" {n / ingested_s / 1e6:.2f} million/s, {cpu_s:.1f} s of CPU",
            flush=True,
        )


def sizes(database: Database) -> Iterator[str]:
    """Yield a line per large table: its rows and bytes per row."""
    for table in ("probe_token", "token_exit", "sample"):
        (row,) = database.query(
            f"SELECT (SELECT count(DISTINCT block_id) FROM pragma_storage_info('{table}')) * 262144 AS bytes,"
            f" (SELECT count(*) FROM {table}) AS rows"
        ).to_pylist()
        yield f"{table}: {row['rows'] / 1e6:.1f} million rows of {row['bytes'] / row['rows']:.0f} bytes"


def seconds(action: Callable[[], object]) -> float:
    """Return the wall time of an action."""
    return seconds_and_cpu(action)[0]


def seconds_and_cpu(action: Callable[[], object]) -> tuple[float, float]:
    """Return wall time and CPU seconds over all cores, including child processes."""
    started, started_cpu = time.perf_counter(), cpu_s()
    action()
    return time.perf_counter() - started, cpu_s() - started_cpu


def cpu_s() -> float:
    """Return the CPU seconds of this process and of its finished child processes."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def best_of_two(action: Callable[[], object]) -> tuple[float, float]:
    """Run an action twice; return the smaller wall time and the smaller CPU time."""
    (first_s, first_cpu_s), (second_s, second_cpu_s) = seconds_and_cpu(action), seconds_and_cpu(action)
    return min(first_s, second_s), min(first_cpu_s, second_cpu_s)


def time_readers(folder: Path, layer_rows: int) -> None:
    """Ingest probes in a separate process, open the database meanwhile, and print how long each opening took."""
    spool, path = folder / "spool", folder / "exitbench.duckdb"
    make(spool, layer_rows, probes=True)
    open_database(path, read_only=False).close()
    waits = []
    with subprocess.Popen([sys.executable, "-c", INGESTER, str(spool), str(path)], stdout=subprocess.PIPE) as ingester:
        while ingester.poll() is None:
            started = time.perf_counter()
            with open_database(path) as database:
                waits.append(time.perf_counter() - started)
                database.query("SELECT model, task, method, count(*) FROM runs GROUP BY ALL")
            time.sleep(0.05)
        took_s = float(ingester.communicate()[0])
    if ingester.returncode:
        raise SystemExit("The ingest failed.")
    attempts = MODELS * len(make_spool.TASKS)
    print(
        f"{layer_rows / 1e6:.1f} million layer rows in {attempts} attempts ingested in {took_s:.1f} s beside a reader:"
        f" opened {len(waits)} times in {statistics.median(waits):.3f} s (median) to {max(waits):.2f} s (longest)"
    )


def queries(database: Database) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield name, SQL and parameters of one query per view, figure, table of the report, and saved query."""
    views = database.query("SELECT view_name AS v FROM duckdb_views() WHERE NOT internal ORDER BY 1")["v"].to_pylist()
    yield from ((f"view {view}", SUMMARIES.get(view, f"FROM {view}"), {}) for view in views)
    for source in (*discover(figures), *discover(tables)):
        yield f"report {source.name}", source.sql, {}
    for query in map(saved_query, query_names()):
        yield f"query {query.name}", query.sql, query.defaults


def compare_with_lake(path: Path, folder: Path, only: str) -> None:
    """Export missing attempts to a lake, then print CPU seconds of each saved query in the database and in the lake."""
    with open_database(path) as database:
        started = time.process_time()
        export = export_lake(database.duck, str(folder))
        print(f"{export.added} attempts exported in {time.process_time() - started:.1f} s of CPU")
        started = time.process_time()
        with open_lake(str(folder)) as lake:
            print(f"opened in {time.process_time() - started:.1f} s of CPU\n   database      lake   ratio")
            for query in (saved_query(name) for name in query_names() if only in name):
                database_s, lake_s = (min(cpu_seconds(source, query) for _ in range(2)) for source in (database, lake))
                often = "  (of the ten)" if query.name in MOST_USED else ""
                print(
                    f"{database_s:9.3f} s {lake_s:7.3f} s {lake_s / database_s:7.2f}  {query.name}{often}", flush=True
                )


def cpu_seconds(database: Database, query: SavedQuery) -> float:
    """Return the CPU seconds of a query over all cores."""
    started = time.process_time()
    database.query(query.sql, query.defaults)
    return time.process_time() - started


def main() -> None:
    """Build the database if it is missing, then time the queries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layer-rows", type=int, default=100_000_000)
    parser.add_argument("--threads", type=int, default=2, help="cores to use")
    parser.add_argument("--lake", action="store_true", help="compare saved queries in the database and in a lake")
    parser.add_argument("--readers", action="store_true", help="time a reader beside an ingest")
    parser.add_argument("--only", default="", help="time only what has this in its name")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.readers:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            time_readers(Path(folder), arguments.layer_rows)
        return
    spool, path = arguments.folder / "spool", arguments.folder / "exitbench.duckdb"
    if not path.exists():
        build(spool, path, arguments.layer_rows)
    if arguments.lake:
        compare_with_lake(path, arguments.folder / "lake", arguments.only)
        return
    with open_database(path) as database:
        print("\n".join(sizes(database)), flush=True)
        chosen = [query for query in queries(database) if arguments.only in query[0]]
        times = {name: best_of_two(lambda q=query: database.query(*q)) for name, *query in chosen}
    print(f"   clock   CPU / {arguments.threads}")
    for name, (took, cost) in sorted(times.items(), key=lambda item: -item[1][0]):
        print(f"{took:8.3f} s {cost / arguments.threads:8.3f} s  {name}")
    if not arguments.only:
        report_folder = arguments.folder / "report"
        shutil.rmtree(report_folder, ignore_errors=True)
        took, cost = seconds_and_cpu(lambda: write_report(path, report_folder, workers=arguments.threads))
        print(f"whole report {took:.1f} s, {cost:.1f} s of CPU")


if __name__ == "__main__":
    main()
