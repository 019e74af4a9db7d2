"""Small databases, made by the same code that a benchmark uses: spool, ingest, views."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from exitbench.reports.frame import Frame
from exitbench.reports.registry import discover
from exitbench.reports.render import ReportSummary, write_report
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest


@pytest.fixture(scope="session")
def small_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models on one task: quality, timing, probe, replay and failures. Read only."""
    maker = _load_maker()
    maker.TASKS = maker.TASKS[:1]
    return _ingested(maker, tmp_path_factory.mktemp("small"))


@pytest.fixture
def maker() -> ModuleType:
    """A fresh copy of the maker of example spools, cut to one model and one task; tests change what it makes."""
    maker = _load_maker()
    maker.MODELS, maker.TASKS = maker.MODELS[1:], maker.TASKS[:1]
    return maker


@pytest.fixture
def random_weights(maker: ModuleType) -> None:
    """All cells that `maker` makes are of a model that was never trained."""
    write = maker.AttemptWriter
    maker.AttemptWriter = lambda root, cell, env: write(root, {**cell, "random_weights": True}, env)


@pytest.fixture
def make_database(tmp_path: Path, maker: ModuleType) -> Callable[[], Path]:
    """Make the database of what `maker` makes by now."""
    return lambda: _ingested(maker, tmp_path)


@pytest.fixture(scope="session")
def database_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Callable[[ModuleType], None]], Path]:
    """Make the database of what a fresh maker makes once a function has changed it, for tests that share one."""

    def make(change: Callable[[ModuleType], None]) -> Path:
        maker = _load_maker()
        change(maker)
        return _ingested(maker, tmp_path_factory.mktemp("made"))

    return make


@pytest.fixture
def empty_database(tmp_path: Path) -> Path:
    path = tmp_path / "empty.duckdb"
    open_database(path, read_only=False).close()
    return path


@pytest.fixture(scope="session")
def report(small_database: Path, tmp_path_factory: pytest.TempPathFactory) -> ReportSummary:
    """The report of `small_database`. Read only."""
    return write_report(small_database, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="session")
def rows_of() -> Callable[[Path, ModuleType, str], Frame]:
    """Run the query of one figure or table on a database."""

    def run(database: Path, package: ModuleType, name: str) -> Frame:
        source = next(source for source in discover(package) if source.name == name)
        with open_database(database) as opened:
            return Frame.query(opened, source.sql)

    return run


def _load_maker() -> ModuleType:
    path = Path(__file__).parents[1] / "results" / "make_spool.py"
    spec = importlib.util.spec_from_file_location("make_small_spool", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _ingested(maker: ModuleType, folder: Path) -> Path:
    maker.make_spool(folder / "spool")
    ingest(folder / "spool", folder / "exitbench.duckdb")
    return folder / "exitbench.duckdb"
