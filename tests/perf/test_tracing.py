"""What a traced decode pays for its trace, run by `nox -s perf`: seconds of writing over seconds of decoding.

A real quality pass of a shipped model, whose tokens are the cheapest there are, so that the share is the largest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from goals import record

from exitbench.harness import lm
from exitbench.harness.environment import environment_and_hardware
from exitbench.harness.passes import Session, quality
from exitbench.harness.plan import make_plan
from exitbench.harness.spec import WorkerSpec
from exitbench.harness.suite import load_suite
from exitbench.results.spool import AttemptWriter

GOAL = 0.05
ONLY = "vanilla/squad/calm-softmax*"


@dataclass
class Stopwatch:
    """Seconds spent in some functions."""

    seconds: float = 0.0

    @contextmanager
    def over(self, *targets: tuple[Any, str]) -> Iterator[None]:
        patches = [patch.object(owner, name, self._timed(getattr(owner, name))) for owner, name in targets]
        for one in patches:
            one.start()
        try:
            yield
        finally:
            for one in patches:
                one.stop()

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


def test_share_of_decoding_that_its_trace_costs(
    benchmark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = make_plan(load_suite("builtin"), tmp_path / "spool", tmp_path, None, only=ONLY, kinds=["quality"])
    (group,) = (group for group in plan.groups if group.cells)
    assert group.folder is not None
    spec = WorkerSpec(group.to_run("failed"), group.folder, None, tmp_path / "spool", "cpu", 1)
    session, env = Session(spec), environment_and_hardware(1)
    decoding, tracing = Stopwatch(), Stopwatch()

    def run() -> None:
        for item in spec.cells:
            with AttemptWriter(spec.spool, item.cell.to_json(), env) as writer:
                quality.quality_pass(session, item, writer, lambda done: None)
                writer.finish("ok")

    traced = ((quality, "_token_table"), (AttemptWriter, "write"), (AttemptWriter, "finish"))
    with decoding.over((lm, "decode"), (lm, "prefill")), tracing.over(*traced):
        benchmark.pedantic(run, rounds=1)
    share = tracing.seconds / decoding.seconds
    seconds = {"decoding_s": decoding.seconds, "tracing_s": tracing.seconds}
    note = f"tracing {tracing.seconds:.2f} s, decoding {decoding.seconds:.2f} s"
    record(benchmark, capsys, share, "%", at_most=GOAL, note=note, **seconds)
