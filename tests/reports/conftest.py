"""Fixtures of small databases, built by the code of real runs: spool, ingest, views."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import duckdb
import pytest
from matplotlib.figure import Figure

from exitbench.reports import ReportSummary, render
from exitbench.reports.frame import Frame
from exitbench.reports.material import Material, read_material
from exitbench.reports.plotting import style
from exitbench.reports.registry import ReportSource, discover
from exitbench.reports.render import write_report
from exitbench.results.database.connection import Database, open_database

OpenComputed = Callable[[Path], AbstractContextManager[Database]]
OnFigure = Callable[[ReportSource, Frame], None]

sys.path.insert(0, str(Path(__file__).parent))  # for the module `print_rules`


@pytest.fixture(scope="session")
def small_database(example: ModuleType, database_of: Callable[[Any], Path]) -> Path:
    """Return a read-only database: two models on one task; quality, timing, probe, replay and failures."""
    return database_of(replace(example.WORLD, tasks=example.TASKS[:1]))


@pytest.fixture
def incomplete_database(small_database: Path, tmp_path: Path) -> Path:
    """Return a copy of the database with incomplete traces, a finding of severity 3."""
    path = Path(shutil.copy(small_database, tmp_path / "exitbench.duckdb"))
    with duckdb.connect(str(path)) as connection:
        connection.execute("DELETE FROM token_exit WHERE position = 1")
        connection.execute("UPDATE document_exit SET exit_layer = NULL, is_equal = NULL")  # as for a trace with a gap
    return path


@pytest.fixture(scope="session")
def world(example: ModuleType) -> Any:
    """Return settings of synthetic data: the decoder-only model on one task; tests override what they need."""
    return replace(example.WORLD, models=example.MODELS[1:], tasks=example.TASKS[:1])


@pytest.fixture
def make_database(tmp_path: Path) -> Callable[[Any], Path]:
    """Return a function that builds the database of a world in the test's folder."""
    return lambda world: world.make_database(tmp_path)


@pytest.fixture(scope="session")
def database_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Path]:
    """Return a function that builds the database of a world, for tests that share one."""
    return lambda world: world.make_database(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="session")
def one_task_database(example: ModuleType, database_of: Callable[[Any], Path]) -> Path:
    """Return a read-only database of one model on one task: full depth, static depths, random exits, a sweep."""
    return database_of(replace(example.FRONT, tasks=example.FRONT.tasks[:1]))


@pytest.fixture(scope="session")
def untrained_database(world: Any, database_of: Callable[[Any], Path]) -> Path:
    """Return a read-only database of a model with random weights."""
    return database_of(replace(world, random_weights=True))


@pytest.fixture
def empty_database(tmp_path: Path) -> Path:
    path = tmp_path / "empty.duckdb"
    open_database(path, read_only=False).close()
    return path


class DrawnReport(NamedTuple):
    """A report, its figures after layout, and what was read from the database for it."""

    summary: ReportSummary
    laid_out: list[Figure]
    material: Material
    frames: list[tuple[ReportSource, Frame]]


@pytest.fixture(scope="session")
def drawn_report(small_database: Path, tmp_path_factory: pytest.TempPathFactory) -> DrawnReport:
    """Return the read-only report of `small_database`."""
    laid_out, lay_out = [], style.lay_out
    materials: list[Material] = []
    frames: list[tuple[ReportSource, Frame]] = []

    def noted(database: Path, paper: str | None, draft: bool, on_figure: OnFigure, answers: Path) -> Material:
        def on_both(source: ReportSource, frame: Frame) -> None:
            frames.append((source, frame))
            on_figure(source, frame)

        materials.append(read_material(database, paper, draft, on_both, answers))
        return materials[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "lay_out", lambda figure: (laid_out.append(figure), lay_out(figure)))
        patch.setattr(render, "read_material", noted)
        summary = write_report(small_database, tmp_path_factory.mktemp("report"))
    return DrawnReport(summary, laid_out, materials[0], frames)


@pytest.fixture(scope="session")
def report(drawn_report: DrawnReport) -> ReportSummary:
    """Return the read-only report of `small_database`."""
    return drawn_report.summary


@pytest.fixture(scope="session")
def rows_of(
    open_computed: OpenComputed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Path, ModuleType, str], Frame]]:
    """Return a function that runs the query of one figure or table on a database: once while the file is unchanged.

    From a file's second query on, it reads a copy whose views are computed once, since tests may write to the file.
    """
    frames: dict[tuple[Path, int, str], Frame] = {}
    copies: dict[tuple[Path, int], Database | None] = {}

    def run(database: Path, package: ModuleType, name: str) -> Frame:
        source = next(source for source in discover(package) if source.name == name)
        file = (database, database.stat().st_mtime_ns)
        asked = (*file, source.sql)
        if asked in frames:
            return frames[asked]
        if file not in copies:
            copies[file] = None
            with open_database(database) as opened:
                frames[asked] = Frame.query(opened, source.sql)
            return frames[asked]
        if (copy := copies[file]) is None:
            path = Path(shutil.copy(database, tmp_path_factory.mktemp("computed")))
            copies[file] = copy = until_the_end.enter_context(open_computed(path))
        frames[asked] = Frame.query(copy, source.sql)
        return frames[asked]

    with ExitStack() as until_the_end:
        yield run
