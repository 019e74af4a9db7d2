"""Batches: against transformers' batched `generate`, where nothing exits, and where rows leave at different depths.

A block of the rows that go on is timed beside one of all rows, to see whether splitting a batch pays.

Rows have sources of 4 to 8 tokens, so that little but decoding is timed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from goals import record
from ideals import ideal_of_batch, ideal_over_full
from models import BASE_NAME, SMALL_NAME, Pair
from ratios import Timed, compare
from torch import Tensor

from exitbench.methods.base import Parts, blocks_from
from exitbench.methods.gates import Always
from exitbench.methods.heads import LMHead
from exitbench.methods.kv_policies import KV_POLICIES
from exitbench.methods.thresholds import Constant

pytestmark = pytest.mark.benchmark(disable_gc=True)

ROWS = [1, 4, 16, 64]
STAYING = [0.95, 0.75, 0.5, 0.25]
SOURCE_TOKENS = 8
NEW_TOKENS = {SMALL_NAME: 24, BASE_NAME: 4}
BUDGET_S = 2.0
NO_SLOWER = 0.98
"""Goal of what should take as long as full depth: two equal things are measured to differ by as much."""
pairs = pytest.mark.parametrize("pair", NEW_TOKENS, indirect=True)
batches = pytest.mark.parametrize("rows", ROWS)


@batches
@pairs
def test_batch_at_full_depth(pair: Pair, rows: int, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Prefill and decoding, with padding, of a whole batch; the same greedy tokens."""
    prompts, new_tokens = pair.prompts(rows, SOURCE_TOKENS), NEW_TOKENS[pair.label]
    inputs, decoding = pair.inputs(prompts), pair.decoding(pair.full(), prompts, new_tokens)
    answers = [made.token_ids for made in decoding.once()]
    assert answers == pair.transformers(inputs, new_tokens), "what differs cannot be compared"
    engine = Timed(lambda _: decoding.once())
    found = compare(benchmark, Timed(lambda _: pair.transformers(inputs, new_tokens)), engine, BUDGET_S)
    tokens_per_s = rows * new_tokens / benchmark.stats.stats.median
    record(
        benchmark,
        capsys,
        found.ratio,
        "x transformers",
        note=f"{tokens_per_s:.0f} tokens/s; {found.spread()}",
        tokens_per_s=tokens_per_s,
        **found.about(),
    )


@batches
@pairs
def test_batch_in_which_nothing_exits(
    pair: Pair, rows: int, benchmark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Decoding with a gate that costs nothing, asked at every block, over decoding at full depth."""
    prompts, new_tokens = pair.prompts(rows, SOURCE_TOKENS), NEW_TOKENS[pair.label]
    blocks = blocks_from(1, pair.n_blocks)
    never = Parts(Always(), Constant(2.0), LMHead(), KV_POLICIES["state-copy"], blocks)
    full, gated = (pair.decoding(parts, prompts, new_tokens) for parts in (pair.full(), never))
    found = compare(benchmark, full, gated, BUDGET_S)
    record(
        benchmark,
        capsys,
        found.ratio,
        "%",
        at_least=NO_SLOWER,
        note=found.spread(),
        **found.about(),
    )


@batches
@pairs
def test_batch_whose_rows_leave(pair: Pair, rows: int, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Decoding where each row leaves at random, after half of the blocks on average, over decoding at full depth.

    What it saves if cost follows the sum of depths is the ideal by FLOPs; the ideal by bytes reads the weights of a
    block if any row runs it.
    """
    prompts, new_tokens = pair.prompts(rows, SOURCE_TOKENS), NEW_TOKENS[pair.label]
    leaving = pair.parts("random", mean_exit=pair.n_blocks / 2)
    full, early = (pair.decoding(parts, prompts, new_tokens) for parts in (pair.full(), leaving))
    answers = early.told()
    by_flops = ideal_over_full(pair, leaving, answers, SOURCE_TOKENS).by_flops
    by_bytes = ideal_of_batch(pair, answers, SOURCE_TOKENS)
    exits = [layer for made in answers for layer in made.exit_layers]
    mean_exit = sum(exits) / len(exits)
    found = compare(benchmark, full, early, BUDGET_S)
    tokens_per_s = rows * new_tokens / benchmark.stats.stats.median
    record(
        benchmark,
        capsys,
        found.ratio,
        "x full depth",
        note=(
            f"exits at {mean_exit:.1f} of {pair.n_blocks}; ideal {by_flops:.2f} by FLOPs, {by_bytes:.2f} by bytes; "
            f"{tokens_per_s:.0f} tokens/s; {found.spread()}"
        ),
        mean_exit_layer=mean_exit,
        ideal_by_flops=by_flops,
        ideal_by_bytes=by_bytes,
        tokens_per_s=tokens_per_s,
        **found.about(),
    )


@pytest.mark.parametrize("staying", STAYING)
@pytest.mark.parametrize("rows", ROWS[1:])
@pairs
def test_blocks_of_the_rows_that_go_on(
    pair: Pair, rows: int, staying: float, benchmark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every block once with a share of the rows, those that have left filled in passing, over all blocks with all rows.

    Where it is below 1, rows that have left should have been carried along.
    """
    model, length = pair.checkpoint.model, NEW_TOKENS[pair.label]
    cache, _ = model.start(pair.prompts(rows, SOURCE_TOKENS), length)
    cache.self_kv.zero_()
    cache.length = length // 2
    states_BTD, context = model.embed(torch.full((rows, 1), 5), cache)
    states_BD = states_BTD[:, 0]
    n_staying = min(rows - 1, max(1, round(staying * rows)))
    rows_A = torch.randperm(rows, generator=torch.Generator().manual_seed(rows))[:n_staying].sort().values

    def blocks(hidden_AD: Tensor, rows_A: Tensor | None, left_BD: Tensor | None) -> None:
        for block in range(1, pair.n_blocks + 1):
            hidden_AD = model.block(block, hidden_AD, context, rows_A, left_BD=left_BD)

    whole = Timed(lambda _: blocks(states_BD, None, None))
    some = Timed(lambda _: blocks(states_BD[rows_A], rows_A, states_BD.clone()))
    found = compare(benchmark, whole, some, BUDGET_S)
    record(
        benchmark,
        capsys,
        found.ratio,
        "x all rows",
        at_least=NO_SLOWER,
        note=f"{n_staying} rows; {found.spread()}",
        **found.about(),
    )
