"""What every benchmark has in common; a run that measured nothing is a failure, not a success."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # of what benchmarks have in common

from goals import pytest_terminal_summary  # noqa: F401

if TYPE_CHECKING:
    from models import Pair


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--only-file", metavar="FILE", help="of what is chosen, benchmarks of this file alone")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    only = config.getoption("only_file")
    return (only is not None and collection_path.suffix == ".py" and collection_path != config.rootpath / only) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    only = config.getoption("only_file")
    if only is not None:  # files that are named are collected whatever else was said
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid.partition("::")[0] != only])
        items[:] = [item for item in items if item.nodeid.partition("::")[0] == only]


@pytest.fixture(autouse=True, scope="session")
def threads() -> Iterator[None]:
    """One thread unless OMP_NUM_THREADS says otherwise: two would be shared with whatever else runs."""
    import torch  # not where nothing runs

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with torch.inference_mode():
        yield


@pytest.fixture(autouse=True, scope="session")
def measured_forms() -> Iterator[None]:
    """Products in the forms that are fastest here, as cells run; tests leave them at the defaults."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXITBENCH_PRODUCTS", "measured")
        yield


@pytest.fixture(scope="session")
def pair(
    threads: None, measured_forms: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """The model of a name of `models.SHAPES`; pytest runs all that ask for one before it makes the next."""
    from models import Pair

    folder = tmp_path_factory.mktemp(request.param)
    yield Pair(request.param, folder)
    shutil.rmtree(folder)


def pytest_benchmark_generate_machine_info() -> dict[str, Any]:
    """In place of what pytest-benchmark tells, the machine's name first of all."""
    import torch

    from exitbench.harness.running.environment import environment_and_hardware

    return environment_and_hardware(torch.get_num_threads())


def pytest_benchmark_generate_commit_info() -> dict[str, Any]:
    """Of the code that is measured, wherever pytest was started."""
    from exitbench.harness.running.environment import environment

    known = environment()
    return {"id": known["git_commit"], "dirty": known["git_dirty"]}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A benchmark that fails after it was timed leaves no time."""
    report = yield
    benchmark = getattr(item, "funcargs", {}).get("benchmark")
    if report.failed and benchmark is not None:
        benchmark.has_error = True
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    measured = getattr(session.config, "_benchmarksession", None)
    asked = not session.config.option.collectonly
    if asked and exitstatus == pytest.ExitCode.OK and not (measured and measured.benchmarks):
        print("\nno benchmark ran")
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
