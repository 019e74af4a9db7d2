"""A perf run that measured nothing is a failure, not a success."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def threads() -> Iterator[None]:
    """One thread unless OMP_NUM_THREADS says otherwise: two would be shared with whatever else runs."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with torch.inference_mode():
        yield


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    measured = getattr(session.config, "_benchmarksession", None)
    asked = not session.config.option.collectonly
    if asked and exitstatus == pytest.ExitCode.OK and not (measured and measured.benchmarks):
        print("\nno benchmark ran")
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
