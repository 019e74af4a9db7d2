"""Estimates of how long a cell takes that was never run, on machines of known speed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from exitbench.harness.cells.cell import CalibrationSettings, Cell, TimingSettings
from exitbench.harness.cells.corpus import Corpus
from exitbench.harness.planning.first_run import (
    Lengths,
    Machine,
    document_seconds,
    first_run_estimate,
    this_machine,
    typical_lengths,
)
from exitbench.harness.planning.plan import make_plan
from exitbench.harness.planning.suite import load_suite

READS_ONLY = Machine(bytes_per_s=1e9, flops_per_s=math.inf, kernel_s=0.0)
COMPUTES_ONLY = Machine(bytes_per_s=math.inf, flops_per_s=1e9, kernel_s=0.0)
STARTS_ONLY = Machine(bytes_per_s=math.inf, flops_per_s=math.inf, kernel_s=1e-6)
LENGTHS = Lengths(read=20, generated=10)


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Cell:
    """Return a quality cell of full depth: 20 documents, batch size 1, float32, and a model of a million parameters."""
    root = tmp_path_factory.mktemp("runs")
    plan = make_plan(
        load_suite("builtin"), root / "spool", root / "models", None, only="weighted/squad/full/quality", limit=20
    )
    (planned,) = [planned for group in plan.groups for planned in group.cells]
    shipped = planned.item.cell
    return replace(shipped, batch_rows=1, model=replace(shipped.model, parameters=1_000_000))


def test_estimate_reads_the_weights_once_per_token_for_all_rows(cell: Cell) -> None:
    assert document_seconds(cell, LENGTHS, READS_ONLY, rows=1) == pytest.approx(10 * 4e6 / 1e9)
    assert document_seconds(replace(cell, dtype="int8"), LENGTHS, READS_ONLY, rows=1) == pytest.approx(10 * 1e6 / 1e9)
    assert document_seconds(cell, LENGTHS, READS_ONLY, rows=5) == pytest.approx(10 * 4e6 / 1e9 / 5)


def test_estimated_arithmetic_does_not_depend_on_batch_rows(cell: Cell) -> None:
    for rows in (1, 5):
        assert document_seconds(cell, LENGTHS, COMPUTES_ONLY, rows) == pytest.approx((20 + 10) * 2e6 / 1e9)


def test_estimate_counts_kernel_launches_for_the_prompt_and_each_token(cell: Cell) -> None:
    blocks = cell.model.blocks + cell.model.encoder_blocks
    assert document_seconds(cell, LENGTHS, STARTS_ONLY, 1) == pytest.approx((1 + 10) * blocks * 40e-6)


def test_estimate_counts_the_decodes_per_document_of_each_cell_kind(cell: Cell) -> None:
    def seconds(cell: Cell) -> float:
        """Return the estimated seconds that a cell spends on decoding, without its fixed time."""
        work = first_run_estimate(cell, LENGTHS, READS_ONLY).seconds
        idle = first_run_estimate(
            replace(cell, kind="replay", timing=None, calibration=None), LENGTHS, READS_ONLY
        ).seconds
        assert work is not None and idle is not None
        return work - idle

    document_s = 10 * 4e6 / 1e9
    assert seconds(cell) == pytest.approx(20 * document_s)
    calibration = CalibrationSettings((0.9, 0.5), 0.1, 0.1, "textual", "fixed-sequence")
    assert seconds(replace(cell, calibration=calibration)) == pytest.approx(3 * 20 * document_s)
    assert seconds(replace(cell, kind="replay")) == 0
    timing = TimingSettings(documents=4, seconds=None, max_rounds=20)
    assert seconds(replace(cell, timing=timing)) == pytest.approx(4 * 5 * 6 * document_s)
    assert seconds(replace(cell, timing=replace(timing, seconds=5.0))) == pytest.approx(3 * 5.0)


def test_estimated_lengths_are_a_quarter_of_the_characters_within_limits(cell: Cell) -> None:
    corpus = Corpus(1, "", {}, (), (), prompt_characters=400, answer_characters=4000)
    assert typical_lengths(cell, corpus, generates=True) == Lengths(101, cell.generation.max_new_tokens)
    short = replace(cell, generation=replace(cell.generation, max_prompt_tokens=50))
    assert typical_lengths(short, corpus, generates=True).read == 50
    assert typical_lengths(cell, corpus, generates=False) == Lengths(101 + 4 * 1001, 0)


def test_speed_of_this_machine_is_plausible(cell: Cell) -> None:
    assert min(this_machine().bytes_per_s, this_machine().flops_per_s) > 1e6
    assert 0 < this_machine().kernel_s < 0.1
