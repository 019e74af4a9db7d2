"""Shared passes against single cells: sixteen thresholds of a sweep, and the built-in suite's untimed cells.

Both include prefill and traces, as quality cells do. The sweep's models have random weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from goals import Recorder
from models import BASE_NAME, SMALL_NAME, Pair
from ratios import Timed, compare

from exitbench.harness.cells.job import WorkerSpec
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Generation, Request
from exitbench.harness.engine.decoding.stream import Stream
from exitbench.harness.planning.plan import make_plan
from exitbench.harness.planning.suite import SHIPPED, load_suite
from exitbench.harness.running import worker
from exitbench.harness.work.sharing import PASS_ROWS
from exitbench.methods.base import Parts
from exitbench.results.spool.attempts import latest_status

pytestmark = pytest.mark.benchmark(disable_gc=True)

THRESHOLDS, PROMPTS, SOURCE_TOKENS = 16, 4, 24
NEW_TOKENS = {SMALL_NAME: 24, BASE_NAME: 4}
SWEEP_ONES, SUITE_TIMES = 3.0, 5.0
"""Goals: time of a whole sweep over that of one threshold; speed-up of untimed cells over one row at a time."""
BUDGET_S = 3.0
DOCUMENTS = 50


def sweep(pair: Pair, requests: list[Request], new_tokens: int) -> list[Parts]:
    """Return settings whose thresholds are quantiles of the first block's scores, so that a prompt's rows diverge."""
    checkpoint, first = pair.checkpoint, pair.parts("calm-softmax", threshold=0.0)
    answers = decode(checkpoint, prefill(checkpoint.model, requests, new_tokens), first)
    margins = torch.tensor([score for answer in answers for score in answer.scores if score is not None])
    levels = margins.unique().quantile((torch.arange(THRESHOLDS) + 0.5) / THRESHOLDS).tolist()
    return [pair.parts("calm-softmax", threshold=level + 1e-6) for level in levels]


@pytest.mark.parametrize("pair", NEW_TOKENS, indirect=True)
def test_sweep_of_sixteen_thresholds(pair: Pair, benchmark: Any, record: Recorder) -> None:
    """Measure the time of sixteen thresholds in one pass, relative to one threshold decoded alone, row by row."""
    checkpoint, new_tokens = pair.checkpoint, NEW_TOKENS[pair.label]
    requests = [Request(prompt, seed) for seed, prompt in enumerate(pair.prompts(PROMPTS, SOURCE_TOKENS))]
    settings = sweep(pair, requests, new_tokens)

    def one_by_one(_: None) -> list[list[Generation]]:
        batches = (
            (parts, prefill(checkpoint.model, [request], new_tokens)) for request in requests for parts in settings
        )
        flat = [decode(checkpoint, batch, parts)[0] for parts, batch in batches]
        return [flat[start : start + THRESHOLDS] for start in range(0, len(flat), THRESHOLDS)]

    def together(_: None) -> list[list[Generation]]:
        rules = [parts.threshold for parts in settings]
        stream = Stream(checkpoint, requests, settings[0], rules, new_tokens, PASS_ROWS)
        stream.run()
        return [stream.answers_to(prompt) for prompt in range(PROMPTS)]

    expected, actual = one_by_one(None), together(None)
    differ = sum(
        (answer.token_ids, answer.exit_layers) != (other.token_ids, other.exit_layers)
        for row, other_row in zip(expected, actual, strict=True)
        for answer, other in zip(row, other_row, strict=True)
    )
    comparison = compare(benchmark, Timed(one_by_one), Timed(together), BUDGET_S)
    exits = [layer for row in expected for answer in row for layer in answer.exit_layers]
    record(
        THRESHOLDS / comparison.ratio,
        "x one threshold",
        at_most=SWEEP_ONES,
        note=f"exits at {sum(exits) / len(exits):.1f} of {pair.n_blocks}; {differ} answers differ; "
        f"{comparison.spread()}",
        differing_answers=differ,
        **comparison.about(),
    )


def test_untimed_cells_of_the_built_in_suite(benchmark: Any, record: Recorder, tmp_path: Path) -> None:
    """Time some quality cells batched and sharing passes, as in the suite, against one row and one cell at a time."""
    text = (SHIPPED / "builtin.toml").read_text()
    specs = {}
    for rows in (50, 1):
        path = tmp_path / f"rows{rows}.toml"
        few = text.replace("limit = 200", f"limit = {DOCUMENTS}")
        path.write_text(few.replace("batch_rows = 50", f"batch_rows = {rows}"))
        plan = make_plan(load_suite(path), tmp_path / f"spool{rows}", tmp_path / "models", None)
        group = next(group for group in plan.groups if group.model.name == "weighted")
        cells = [item for item in group.to_run("all") if "/wmt-en-fr/" in item.label and item.cell.kind == "quality"]
        cell_ids = {item.cell.cell_id for item in cells}
        cells = [item for item in cells if set(item.cell.depends_on) <= cell_ids]
        assert group.folder is not None
        specs[rows] = WorkerSpec(tuple(cells), group.folder, None, tmp_path / f"spool{rows}", "cpu", 1, shares=rows > 1)

    def run(spec: WorkerSpec) -> None:
        for attempt in spec.spool.glob("??"):
            attempt.rename(tmp_path / f"old{len(list(tmp_path.iterdir()))}")
        worker.run(spec, lambda event: None)
        assert {status.status for status in latest_status(spec.spool).values()} == {"ok"}

    comparison = compare(benchmark, Timed(lambda _: run(specs[1])), Timed(lambda _: run(specs[50])), BUDGET_S)
    note = f"{len(specs[1].cells)} cells of {DOCUMENTS} documents"
    record(comparison, "x one row at a time", at_least=SUITE_TIMES, note=note)
