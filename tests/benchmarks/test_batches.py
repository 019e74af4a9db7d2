"""Batched decoding: against transformers' `generate`, without exits, and with rows that exit at different depths.

A block over the remaining rows is also timed against one over all rows, to see whether splitting a batch pays.

Sources have 4 to 8 tokens, so that decoding dominates.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from goals import Recorder
from ideals import ideal_of_batch, ideal_over_full
from models import BASE_NAME, REAL_NAME, SMALL_NAME, Pair
from ratios import Timed, compare
from test_full_depth import against_generate
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
NEW_TOKENS = {REAL_NAME: 4, SMALL_NAME: 24, BASE_NAME: 4}
BUDGET_S = 2.0
NO_SLOWER = 0.98
"""Goal of ratios that should be 1: measurements of equal things differ by this much."""
pairs = pytest.mark.parametrize("pair", NEW_TOKENS, indirect=True)
batches = pytest.mark.parametrize("rows", ROWS)


@batches
@pairs
def test_batch_at_full_depth(pair: Pair, rows: int, benchmark: Any, record: Recorder) -> None:
    """Time a padded batch, prefill included, against transformers' `generate`; the greedy tokens are equal."""
    prompts = pair.prompts(rows, SOURCE_TOKENS)
    against_generate(pair, prompts, NEW_TOKENS[pair.label], benchmark, record, budget_s=BUDGET_S)


@batches
@pairs
def test_batch_in_which_nothing_exits(pair: Pair, rows: int, benchmark: Any, record: Recorder) -> None:
    """Time decoding with a gate at every block that costs nothing and never opens, against full depth."""
    prompts, new_tokens = pair.prompts(rows, SOURCE_TOKENS), NEW_TOKENS[pair.label]
    blocks = blocks_from(1, pair.n_blocks)
    never = Parts(Always(), Constant(2.0), LMHead(), KV_POLICIES["state-copy"], blocks)
    full, gated = (pair.decoding(parts, prompts, new_tokens) for parts in (pair.full(), never))
    comparison = compare(benchmark, full, gated, BUDGET_S)
    record(
        comparison,
        "%",
        at_least=NO_SLOWER,
    )


@batches
@pairs
def test_batch_whose_rows_leave(pair: Pair, rows: int, benchmark: Any, record: Recorder) -> None:
    """Time decoding with random exits, after half of the blocks on average, against full depth.

    The ideal by FLOPs assumes that cost follows the sum of depths; the ideal by bytes reads the weights of a block if
    any row runs it.
    """
    prompts, new_tokens = pair.prompts(rows, SOURCE_TOKENS), NEW_TOKENS[pair.label]
    leaving = pair.parts("random", mean_exit=pair.n_blocks / 2)
    full, early = (pair.decoding(parts, prompts, new_tokens) for parts in (pair.full(), leaving))
    answers = early.run_traced()
    by_flops = ideal_over_full(pair, leaving, answers, SOURCE_TOKENS).by_flops
    by_bytes = ideal_of_batch(pair, answers, SOURCE_TOKENS)
    exits = [layer for answer in answers for layer in answer.exit_layers]
    mean_exit = sum(exits) / len(exits)
    comparison = compare(benchmark, full, early, BUDGET_S)
    tokens_per_s = rows * new_tokens / benchmark.stats.stats.median
    record(
        comparison,
        "x full depth",
        note=(
            f"exits at {mean_exit:.1f} of {pair.n_blocks}; ideal {by_flops:.2f} by FLOPs, {by_bytes:.2f} by bytes; "
            f"{tokens_per_s:.0f} tokens/s"
        ),
        mean_exit_layer=mean_exit,
        ideal_by_flops=by_flops,
        ideal_by_bytes=by_bytes,
        tokens_per_s=tokens_per_s,
    )


@pytest.mark.parametrize("staying", STAYING)
@pytest.mark.parametrize("rows", ROWS[1:])
@pairs
def test_blocks_of_the_rows_that_go_on(pair: Pair, rows: int, staying: float, benchmark: Any, record: Recorder) -> None:
    """Time all blocks over a share of the rows, filling the other rows' caches, against all blocks over all rows.

    A ratio below 1 means that keeping exited rows in the batch would be faster.
    """
    model, length = pair.checkpoint.model, NEW_TOKENS[pair.label]
    cache, _ = model.start(pair.prompts(rows, SOURCE_TOKENS), length)
    cache.self_kv.zero_()
    cache.length = length // 2
    states_BTD, context = model.embed(torch.full((rows, 1), 5), cache)
    states_BD = states_BTD[:, 0]
    n_staying = min(rows - 1, max(1, round(staying * rows)))
    rows_A = torch.randperm(rows, generator=torch.Generator().manual_seed(rows))[:n_staying].sort().values

    def blocks(hidden_AD: Tensor, rows_A: Tensor | None, exited_BD: Tensor | None) -> None:
        for block in range(1, pair.n_blocks + 1):
            hidden_AD = model.block(block, hidden_AD, context, rows_A, exited_BD=exited_BD)

    whole = Timed(lambda _: blocks(states_BD, None, None))
    some = Timed(lambda _: blocks(states_BD[rows_A], rows_A, states_BD.clone()))
    found = compare(benchmark, whole, some, BUDGET_S)
    record(found, "x all rows", at_least=NO_SLOWER, note=f"{n_staying} rows")
