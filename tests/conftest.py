"""Fixtures of small stored results, for tests of code that reads them, and settings for all tests."""

import functools
import gc
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard, cast

import duckdb
import pytest
from hypothesis import HealthCheck, settings

from exitbench.harness.cli import main as cli
from exitbench.reports.frame import NAMING_VIEWS, computed_once
from exitbench.results.database import connection as database
from exitbench.results.database import current
from exitbench.results.database.access import mark_verified_in_process
from exitbench.results.ingest.snapshot import write_snapshot
from exitbench.results.spool.attempts import scan_spool
from exitbench.tasks import builtin
from exitbench.tasks.document import Document

# The time that an example takes depends on the load of the machine.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

os.environ["EXITBENCH_PRODUCTS"] = "default"  # tests depend on no measured choice, and on no user's cache
TESTS = Path(__file__).parent
VIEWS = (*NAMING_VIEWS, "metric_values", "published", "frontier", "paired", "pareto")
SLOW = frozenset((TESTS / "slow.txt").read_text(encoding="utf-8").splitlines())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m fast`, do not collect (and so import) files that slow.txt lists as a whole."""
    return True if config.option.markexpr == "fast" and _name(collection_path) in SLOW else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as exhaustive what `sampled(n)` leaves out, and as fast every other test that is not in slow.txt."""
    sampled: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sampled"):
            sampled.setdefault(f"{_name(item.path)}::{item.originalname}", []).append(item)
    starts: defaultdict[str, count[int]] = defaultdict(count)
    for name, functions in sampled.items():
        chosen = _sample(next(starts[name.partition("::")[0]]), functions)
        for function in functions:
            if function not in chosen:
                function.add_marker("exhaustive")
    for item in items:
        file, test = _name(item.path), getattr(item, "originalname", item.name)
        if item.get_closest_marker("exhaustive") is None and file not in SLOW and f"{file}::{test}" not in SLOW:
            item.add_marker("fast")


def _sample(start: int, functions: list[pytest.Function]) -> list[pytest.Function]:
    """Return about one in n of a test's parameter sets: a diagonal of the product of its parameters.

    Every value of a parameter stays if another one has n values or more. The tests of a file start at different places,
    so that they leave out different values of a parameter that they share.
    """
    chosen = []
    ordinals: defaultdict[tuple[str, ...], dict[object, int]] = defaultdict(dict)
    for function in functions:
        params = function.callspec.params
        declared = [mark.args[0] for mark in function.iter_markers("parametrize")]
        groups = [tuple(re.split(r",\s*", names) if isinstance(names, str) else names) for names in declared]
        groups += [(argument,) for argument in params.keys() - set(chain(*groups))]
        place = start
        for group in groups:
            values = tuple(id(params[argument]) for argument in group)
            place += ordinals[group].setdefault(values, len(ordinals[group]))
        marker = function.get_closest_marker("sampled")
        assert marker is not None
        if place % marker.args[0] == 0:
            chosen.append(function)
    return chosen or functions[:1]


def _name(path: Path) -> str:
    return path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else ""


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Report only the differing rows of two databases; all rows would be megabytes of output."""
    if op != "==" or not (_is_rows_by_table(left) and _is_rows_by_table(right)):
        return None
    told = ["the same rows by table"]
    for table in sorted(left.keys() | right.keys()):
        ours, theirs = left.get(table, []), right.get(table, [])
        if ours != theirs:
            told.append(f"{table}: {len(ours)} rows and {len(theirs)}")
            told += [f"  only left:  {row}" for row in sorted(set(ours) - set(theirs))[:3]]
            told += [f"  only right: {row}" for row in sorted(set(theirs) - set(ours))[:3]]
    return told


def _is_rows_by_table(value: object) -> TypeGuard[dict[str, list[str]]]:
    return isinstance(value, dict) and "attempt" in value and all(isinstance(rows, list) for rows in value.values())


@pytest.fixture(scope="module", autouse=True)
def _garbage_is_looked_for_in_what_is_new() -> None:
    """Exclude existing objects (modules and ten thousand tests, two million objects) from garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _interrupts_reach_child_processes() -> None:
    # A shell's background job starts with SIGINT ignored, which child processes would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _a_test_has_one_core() -> Iterator[None]:
    """Pretend that the machine has one core: test processes with one thread per core each would block one another.

    Tests of parallel code set the number of cores themselves.
    """
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "sched_getaffinity", lambda process: {core}, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _databases_begin_as_copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Create the empty database of each schema version once per process, and copy it for each test that needs one."""
    made: dict[str, Path] = {}
    create = database._create

    def copy(path: Path) -> None:
        version = current.version()
        if version not in made:
            create(path)
            made[version] = tmp_path_factory.mktemp("empty") / "empty.duckdb"
            shutil.copyfile(path, made[version])
            return
        path.with_name(f"{path.name}.wal").unlink(missing_ok=True)
        shutil.copyfile(made[version], path)
        mark_verified_in_process(path, version)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(database, "_create", copy)
        yield


@pytest.fixture(scope="session", autouse=True)
def _the_parser_is_made_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cli, "whole_parser", functools.cache(cli.whole_parser))
        yield


@pytest.fixture(scope="session", autouse=True)
def _built_in_documents_are_made_once() -> Iterator[None]:
    """Cache the generated documents of each split per process, since generating them takes a second."""
    make = builtin.documents

    @functools.cache
    def made(*asked: Any, **named: Any) -> tuple[Document, ...]:
        return tuple(make(*asked, **named))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(builtin, "documents", lambda *asked, **named: list(made(*asked, **named)))
        yield


@pytest.fixture(scope="session")
def open_computed() -> Callable[[Path], AbstractContextManager[database.Database]]:
    """Return a function that opens a database read-only, with the views that most queries need computed once."""

    @contextmanager
    def run(path: Path) -> Iterator[database.Database]:
        with database.open_database(path) as opened, computed_once(opened, VIEWS):
            yield opened

    return run


@pytest.fixture(scope="session")
def example() -> ModuleType:
    """Return the module `results/make_spool.py`, which tests cannot import by name."""
    return _module("make_spool")


@pytest.fixture(scope="session")
def snippets() -> ModuleType:
    """Return the module `docs/snippets.py`, which runs commands in forks of a process with all modules imported."""
    return sys.modules.get("snippets") or _module("snippets", "docs")


@pytest.fixture(scope="session")
def forked() -> type[subprocess.Popen[Any]]:
    """Return the class `Forked` of `docs/server.py`: `Popen` that runs Python in forks of this process."""
    return cast(type[subprocess.Popen[Any]], _module("server", "docs").Forked)


def _module(name: str, folder: str = "results") -> ModuleType:
    path = TESTS / folder / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def choice_example() -> ModuleType:
    """Return the module `results/make_choices.py`, which tests cannot import by name."""
    return _module("make_choices")


@pytest.fixture(scope="session")
def classified_example() -> ModuleType:
    """Return the module `results/make_classified.py`, which tests cannot import by name."""
    return _module("make_classified")


@pytest.fixture(scope="session")
def choice_spool(example: ModuleType, choice_example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a read-only spool: full depth and two thresholds of one method on multiple-choice documents."""
    root = tmp_path_factory.mktemp("choices") / "spool"
    choice_example.write_choices(example, root)
    return root


@pytest.fixture(scope="session")
def choice_database(example: ModuleType, choice_spool: Path) -> Path:
    """Return the database of `choice_spool`. Open it read-only."""
    return Path(example.ingested(choice_spool.parent))


@pytest.fixture(scope="session")
def many_documents_database(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with enough documents that a third of them can bound a loss by 1 %. Open it read-only."""
    return Path(replace(example.FRONT, documents=1_500).make_database(tmp_path_factory.mktemp("many-documents")))


@pytest.fixture(scope="session")
def example_spool(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a read-only spool: two models, three tasks, five methods, all kinds of cells, and two that failed."""
    root = tmp_path_factory.mktemp("example") / "spool"
    example.WORLD.write(root)
    return root


@pytest.fixture(scope="session")
def example_database(example: ModuleType, example_spool: Path) -> Path:
    """Return the database of `example_spool`. Open it read-only."""
    return Path(example.ingested(example_spool.parent))


AS_ERRORS = """
    UPDATE metric SET
        value = 100 - value, ci_low = 100 - ci_high, ci_high = 100 - ci_low, lower_is_better = true
    WHERE role IN ('headline', 'task');
    UPDATE sample SET scores = to_json(map_from_entries(list_transform(
        map_entries(from_json(scores, '"MAP(VARCHAR, DOUBLE)"')), lambda one: {'k': one.key, 'v': 100 - one.value}
    )));
"""


@pytest.fixture(scope="session")
def as_errors(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Return a function that copies a database and replaces every score s by the error 100 - s (lower is better)."""

    def run(database: Path) -> Path:
        path = tmp_path_factory.mktemp("errors") / "exitbench.duckdb"
        shutil.copy(database, path)
        with duckdb.connect(str(path)) as connection:
            connection.execute(AS_ERRORS)
        return path

    return run


@pytest.fixture(scope="session")
def errors_database(example_database: Path, as_errors: Callable[[Path], Path]) -> Path:
    """Return the example database with errors in place of scores. Open it read-only."""
    return as_errors(example_database)


@pytest.fixture(scope="session")
def few_spool(example_spool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a read-only spool with every fifth attempt of each kind, for tests that copy or change a whole spool."""
    root = tmp_path_factory.mktemp("few") / "spool"
    by_kind: dict[str, list[Path]] = {}
    for attempt in scan_spool(example_spool):
        by_kind.setdefault(json.loads((attempt.path / "cell.json").read_text())["kind"], []).append(attempt.path)
    for path in (path for paths in by_kind.values() for path in paths[::5]):
        shutil.copytree(path, root / path.relative_to(example_spool))
    return root


@pytest.fixture(scope="session")
def few_database(example: ModuleType, few_spool: Path) -> Path:
    """Return the database of `few_spool`. Open it read-only."""
    return Path(example.ingested(few_spool.parent))


@pytest.fixture(scope="session")
def few_snapshot(few_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a read-only snapshot of `few_database`."""
    folder = tmp_path_factory.mktemp("few-snapshot") / "snapshot"
    with database.open_database(few_database) as opened:
        write_snapshot(opened.engine, folder)
    return folder


@pytest.fixture(scope="session")
def few_lake(few_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return `few_database` exported as a read-only lake."""
    pytest.importorskip("deltalake", reason="deltalake is not installed (pip install 'exitbench[lake]')")
    from exitbench.results.lake.export import export_lake

    lake = tmp_path_factory.mktemp("few-lake") / "lake"
    with database.open_database(few_database) as opened:
        export_lake(opened.duck, str(lake))
    return lake
