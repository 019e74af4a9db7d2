"""Passes: what each kind of cell does with a loaded model, one file a kind.

A pass writes tables into the attempt's spool folder; it never touches the database.
"""

from __future__ import annotations

from collections.abc import Callable

from exitbench.harness.cells.cell import Kind
from exitbench.harness.cells.job import CellJob
from exitbench.harness.running.passes.calibration import calibration_pass
from exitbench.harness.running.passes.fit import fit_pass
from exitbench.harness.running.passes.probe import probe_pass
from exitbench.harness.running.passes.quality import quality_pass
from exitbench.harness.running.passes.replay import replay_pass
from exitbench.harness.running.passes.scores import scores_pass
from exitbench.harness.running.passes.session import Progress, Session, Skip
from exitbench.harness.running.passes.timing import timing_pass
from exitbench.results.spool.attempts import AttemptWriter

__all__ = ["PASSES", "Pass", "Session", "Skip"]

Pass = Callable[[Session, CellJob, AttemptWriter, Progress], None]

PASSES: dict[Kind, Pass] = {
    "quality": quality_pass,
    "probe": probe_pass,
    "scores": scores_pass,
    "replay": replay_pass,
    "fit": fit_pass,
    "calibration": calibration_pass,
    "timing": timing_pass,
}
