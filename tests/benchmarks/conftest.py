"""Fixtures and hooks of all benchmarks; a run that measured nothing is a failure."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the benchmarks' shared modules

from goals import pytest_terminal_summary, record  # noqa: F401

if TYPE_CHECKING:
    from models import Pair


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--only-file", metavar="FILE", help="of what is chosen, benchmarks of this file alone")
    parser.addoption("--smollm2", metavar="DIR", help="folder of SmolLM2-135M-Instruct, from `exitbench convert`")
    parser.addoption("--peers", metavar="PYTHON", help="Python of other engines' environment (peer.py)")
    parser.addoption("--gguf", metavar="FILE", help="SmolLM2-135M-Instruct for llama.cpp")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    only = config.getoption("only_file")
    return (only is not None and collection_path.suffix == ".py" and collection_path != config.rootpath / only) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    only = config.getoption("only_file")
    if only is not None:  # files named on the command line are always collected
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid.partition("::")[0] != only])
        items[:] = [item for item in items if item.nodeid.partition("::")[0] == only]


@pytest.fixture(autouse=True, scope="session")
def threads() -> Iterator[None]:
    """Use one thread unless OMP_NUM_THREADS is set: a second thread would compete with other processes."""
    import torch  # not needed for mere collection

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with torch.inference_mode():
        yield


@pytest.fixture(autouse=True, scope="session")
def measured_forms() -> Iterator[None]:
    """Let the engine use the fastest matrix products on this machine, as in cells; tests use the defaults."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXITBENCH_PRODUCTS", "measured")
        yield


@pytest.fixture(scope="session")
def pair(
    threads: None, measured_forms: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """Yield the requested model (`models.SHAPES`).

    pytest finishes all benchmarks of one model before it builds the next.
    """
    from models import REAL_NAME, Pair

    if request.param == REAL_NAME:
        checkpoint = request.config.getoption("smollm2")
        if checkpoint is None:
            pytest.skip("without --smollm2 DIR, which `nox -s perf` adds")
        yield Pair(request.param, Path(checkpoint))
        return
    folder = tmp_path_factory.mktemp(request.param)
    yield Pair(request.param, folder)
    shutil.rmtree(folder)


def pytest_benchmark_generate_machine_info() -> dict[str, Any]:
    """Return this project's description of the machine in place of pytest-benchmark's."""
    import torch

    from exitbench.harness.running.environment import environment_and_hardware

    return environment_and_hardware(torch.get_num_threads())


def pytest_benchmark_generate_commit_info() -> dict[str, Any]:
    """Return the commit of the measured code, independent of the working directory."""
    from exitbench.harness.running.environment import environment

    info = environment()
    return {"id": info["git_commit"], "dirty": info["git_dirty"]}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Drop the time of a benchmark that fails after it was timed."""
    report = yield
    benchmark = getattr(item, "funcargs", {}).get("benchmark")
    if report.failed and benchmark is not None:
        benchmark.has_error = True
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    measured = getattr(session.config, "_benchmarksession", None)
    executes = not session.config.option.collectonly
    if executes and exitstatus == pytest.ExitCode.OK and not (measured and measured.benchmarks):
        print("\nno benchmark ran")
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
