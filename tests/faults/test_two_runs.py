"""Two simultaneous runs of one suite share the work."""

from pathlib import Path
from typing import Any


def test_two_concurrent_runs_of_a_suite_run_each_cell_once(bench: Any, tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    assert bench.run(alone).returncode == 0
    both = [bench.start(bench.run_command(shared)) for _ in range(2)]
    outputs = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert bench.digests(shared) == bench.digests(alone)
    assert all(len(attempts) == 1 for attempts in bench.digests(shared).values())
    bench.check(shared)
