"""Overhead of traces, run by `nox -s perf`: seconds of writing them over seconds of decoding.

Uses a real quality pass of a small bundled model. Its tokens are cheap to decode, so the share is an upper bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from goals import Recorder

from exitbench.harness.cells.job import WorkerSpec
from exitbench.harness.engine.decoding.stream import Stream
from exitbench.harness.planning.plan import make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.running.environment import environment_and_hardware
from exitbench.harness.running.passes import quality_pass
from exitbench.harness.work.generation import GenerationWork
from exitbench.harness.work.kinds import work_of
from exitbench.harness.work.loaded import LoadedModel
from exitbench.results.spool.attempts import AttemptWriter

GOAL = 0.05
ONLY = "vanilla/squad/calm-softmax*"


@dataclass
class Stopwatch:
    """Stopwatch of the total seconds spent in chosen functions."""

    seconds: float = 0.0

    @contextmanager
    def over(self, *targets: tuple[Any, str]) -> Iterator[None]:
        patches = [patch.object(owner, name, self._timed(getattr(owner, name))) for owner, name in targets]
        for patcher in patches:
            patcher.start()
        try:
            yield
        finally:
            for patcher in patches:
                patcher.stop()

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


class TracedPass:
    """Quality pass of a bundled model on a device, with decoding and tracing timed."""

    def __init__(self, folder: Path, device: str) -> None:
        plan = make_plan(load_suite("builtin"), folder / "spool", folder, None, only=ONLY, kinds=["quality"])
        (group,) = (group for group in plan.groups if group.cells)
        assert group.folder is not None
        self.spec = WorkerSpec(group.to_run("failed"), group.folder, None, folder / "spool", device, 1)
        self.model, self.env = LoadedModel(self.spec), environment_and_hardware(1)
        self.decoding, self.tracing = Stopwatch(), Stopwatch()

    def run(self) -> None:
        traced = ((GenerationWork, "_token_table"), (AttemptWriter, "write"), (AttemptWriter, "finish"))
        with self.decoding.over((Stream, "run")), self.tracing.over(*traced):
            for item in self.spec.cells:
                with AttemptWriter(self.spec.spool, item.cell.to_json(), self.env) as writer:
                    quality_pass(work_of(self.model, item), writer, lambda done: None)
                    writer.finish("ok")

    def seconds_by_stage(self) -> dict[str, float]:
        return {"decoding_s": self.decoding.seconds, "tracing_s": self.tracing.seconds}

    @property
    def share(self) -> float:
        """Return the seconds of tracing over those of decoding."""
        return self.tracing.seconds / self.decoding.seconds

    @property
    def note(self) -> str:
        return f"tracing {self.tracing.seconds:.2f} s, decoding {self.decoding.seconds:.2f} s"


def test_share_of_decoding_that_its_trace_costs(benchmark: Any, tmp_path: Path, record: Recorder) -> None:
    traced = TracedPass(tmp_path, "cpu")
    benchmark.pedantic(traced.run, rounds=1)
    record(traced.share, "%", at_most=GOAL, note=traced.note, **traced.seconds_by_stage())
