"""KV policies: their calls to the cache, and their declared cost compared with a slow count of all blocks run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from exitbench.methods.base import Cost, Drafting
from exitbench.methods.kv_policies import KV_POLICIES, Rollback, RollbackCode, Speculation

L, D, KV = 5, 8, 3


class Shape:
    """Fake model with the sizes from which costs are computed."""

    n_blocks, d_model, kv_width = L, D, KV


MODEL: Any = Shape()
PROJECTION = 2 * KV * D  # numbers of one block's key and value projections


class Spy:
    """Recorder of a policy's calls to the cache."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def fill_from_state(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        self.calls.append(("fill", block))

    def run_rest(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> Tensor:
        self.calls.append(("run", block))
        return hidden_AD + 100

    def defer(self, block: int, hidden_AD: Tensor, rows_A: Tensor | None) -> None:
        self.calls.append(("defer", block))


@pytest.mark.parametrize(
    ("name", "calls", "emits_deep"),
    [
        ("state-copy", ["fill"], False),
        ("state-copy-lazy", ["defer"], False),
        ("sync-parallel", ["defer"], False),
        ("recompute-backlog", ["defer"], False),
        ("exact", ["run"], False),
        ("noisy", ["run", "fill"], True),
    ],
)
def test_kv_policy_makes_the_expected_cache_calls_on_exit(name: str, calls: list[str], emits_deep: bool) -> None:
    cache, state = Spy(), torch.zeros(2, D)
    deep_AD = KV_POLICIES[name].on_exit(cache, 3, state, None)
    assert cache.calls == [(call, 3) for call in calls]
    assert (deep_AD is not None) == emits_deep
    assert deep_AD is None or bool((deep_AD == 100).all())


def test_only_exact_and_noisy_policies_run_all_blocks() -> None:
    assert {name for name, policy in KV_POLICIES.items() if policy.runs_all_blocks} == {"exact", "noisy"}
    assert set(KV_POLICIES) == {policy.name for policy in KV_POLICIES.values()}


# ------------------------------------------------------------------------------------------ cost

answers = st.lists(st.tuples(st.integers(1, L), st.integers(1, 100)), max_size=9)
"""(exit layer, work of one block) of every token."""


def reference_cost(name: str, exit_layers: list[int], work: list[float]) -> tuple[float, float]:
    """Return FLOPs and elements read for skipped blocks, in addition to the blocks up to the exit layers.

    It follows which blocks each token has run, and when the others are run. Here, a block reads ten times its FLOPs.
    """
    flops, reads = 0.0, 0.0
    has: list[int] = []  # blocks whose keys and values each token has
    for now, layer in enumerate(exit_layers):
        if name in ("exact", "noisy"):
            for _ in range(layer + 1, L + 1):
                flops, reads = flops + work[now], reads + 10 * work[now]
        if name in ("state-copy", "noisy"):
            for _ in range(layer + 1, L + 1):
                flops, reads = flops + 2 * PROJECTION, reads + PROJECTION
        for block in range(1, layer + 1):
            late = [token for token, done in enumerate(has) if done == block - 1]
            if name == "state-copy-lazy" and late:
                flops, reads = flops + 2 * PROJECTION * len(late), reads + PROJECTION
            if name == "sync-parallel":
                flops += work[now] * len(late)
            for token in late:
                has[token] = block
        has.append(layer)
    if name == "recompute-backlog":
        backlog: list[int] = []
        for now, layer in enumerate(exit_layers):
            flops += sum(work[now] for _ in backlog for _ in range(layer))
            backlog = [] if layer == L else [*backlog, now]
    return flops, reads


@pytest.mark.parametrize("name", KV_POLICIES)
@given(answers)
def test_declared_cost_equals_the_reference_count(name: str, answer: list[tuple[int, int]]) -> None:
    exit_layers, work = [layer for layer, _ in answer], [float(flops) for _, flops in answer]
    cost = KV_POLICIES[name].cost(MODEL, exit_layers, [Cost(matmul_flops=w, read_numel=10 * w) for w in work])
    assert (cost.matmul_flops, cost.read_numel) == reference_cost(name, exit_layers, work)
    assert cost.elementwise_flops == 0


@pytest.mark.parametrize("name", KV_POLICIES)
def test_kv_policies_add_no_cost_at_full_depth(name: str) -> None:
    assert KV_POLICIES[name].cost(MODEL, [L] * 4, [Cost(5.0)] * 4) == Cost()


def test_kv_policy_costs_equal_values_computed_by_hand() -> None:
    """Tokens exit after 2, 1, 4 and 5 of 5 blocks, with a work of 1, 10, 100 and 1000 per block."""
    layers, work = [2, 1, 4, 5], [Cost(1.0), Cost(10.0), Cost(100.0), Cost(1000.0)]
    flops = {name: policy.cost(MODEL, layers, work).matmul_flops for name, policy in KV_POLICIES.items()}
    assert flops == {
        "state-copy": 8 * 2 * PROJECTION,
        # The third token runs block 2 for the second, 3 and 4 for both; the fourth block 5 for all three.
        "state-copy-lazy": 8 * 2 * PROJECTION,
        "sync-parallel": 5 * 100 + 3 * 1000,
        "recompute-backlog": 1 * 1 * 10 + 2 * 4 * 100 + 3 * 5 * 1000,
        "evict": 0,
        "exact": 3 + 40 + 100,
        "noisy": 3 + 40 + 100 + 8 * 2 * PROJECTION,
    }


def test_lazy_policies_pay_only_for_blocks_that_run_later() -> None:
    for name in ("state-copy-lazy", "sync-parallel"):
        assert KV_POLICIES[name].cost(MODEL, [3, 2, 3, 1], [Cost(1.0)] * 4).matmul_flops == (
            2 * PROJECTION if name == "state-copy-lazy" else 1.0
        ), "only block 3 of the second token, by the third"


# ------------------------------------------------------------------------------------------ verification


class ShapeWithHead(Shape):
    """Fake model that also has an LM head."""

    vocab_size = 7


SHAPE_WITH_HEAD: Any = ShapeWithHead()
HEAD = 7 * D


def test_verification_cost_includes_work_and_weight_reads_of_rejected_drafts() -> None:
    """The answer has five tokens; drafts exit after 2 of 5 blocks. Before the fourth token, three drafts are rejected.

    The other two drafts before it are accepted by the same pass. The last token is a draft that ends the answer.
    """
    policy, layers = Speculation(), [5, 2, 2, 5, 2]
    work = [Cost(matmul_flops=float(10**n), read_numel=10.0 * 10**n) for n in range(5)]
    # Block 3 to 5 of the two drafts beside the fourth token, and of the last draft on its own: weights read.
    kept = policy.cost(SHAPE_WITH_HEAD, layers, work)
    assert kept == Cost(matmul_flops=2 * 3 * 1e3 + 3 * 1e4, read_numel=3 * 1e5)
    drafting = Drafting(rejected_layers=[(), (), (), (2, 2, 2), ()], n_fed_rejected=[0, 0, 0, 3, 0])
    lost = policy.verification_cost(SHAPE_WITH_HEAD, layers, work, drafting)
    # Six drafts are read out by two passes: beside the fourth token, and the last draft alone.
    assert lost == Cost(matmul_flops=3 * 5 * 1e3, read_numel=3 * 2 * 1e4 - 5 * HEAD)


def test_rejected_end_token_wastes_one_position_less() -> None:
    """Two drafts are rejected at the first. The second would have ended the answer, so that it was never fed."""
    drafting = Drafting(rejected_layers=[(2, 2)], n_fed_rejected=[1])
    lost = Rollback(0.5).verification_cost(SHAPE_WITH_HEAD, [5], [Cost(1.0, 0.0, 10.0)], drafting)
    assert lost == Cost(matmul_flops=5.0, elementwise_flops=2 * 5 * 7, read_numel=1 * 2 * 10.0 - 1 * HEAD)


def test_rejected_drafts_of_different_depths_each_pay_their_weight_reads() -> None:
    """Two drafts, after 1 and 3 of 5 blocks, are rejected by the deep pass of the next token."""
    drafting = Drafting(rejected_layers=[(1, 3)], n_fed_rejected=[2])
    lost = Speculation().verification_cost(SHAPE_WITH_HEAD, [5], [Cost(1.0, 0.0, 10.0)], drafting)
    assert lost == Cost(matmul_flops=2 * 5.0, read_numel=(1 + 3) * 10.0 - 2 * HEAD)


def test_rollback_code_adds_no_verification_cost_for_unverified_drafts() -> None:
    """This policy keeps a last draft without verification, so that it costs no further blocks and no read-out."""
    policy, layers = RollbackCode(0.5), [5, 2, 2, 5, 2]
    work = [Cost(matmul_flops=float(10**n), read_numel=10.0 * 10**n) for n in range(5)]
    assert policy.cost(SHAPE_WITH_HEAD, layers, work) == Cost(matmul_flops=2 * 3 * 1e3)
    drafting = Drafting(rejected_layers=[(), (), (), (2, 2, 2), ()], n_fed_rejected=[0, 0, 0, 3, 0])
    lost = policy.verification_cost(SHAPE_WITH_HEAD, layers, work, drafting)
    # Five drafts are read out beside the fourth token; the sixth never is.
    assert lost == Cost(matmul_flops=3 * 5 * 1e3, elementwise_flops=5 * 5 * 7, read_numel=3 * 2 * 1e4 - 5 * HEAD)
    everything = policy.verification_cost(SHAPE_WITH_HEAD, [2, 2], work[:2], Drafting([(), ()], [0, 0]))
    assert (policy.cost(SHAPE_WITH_HEAD, [2, 2], work[:2]), everything) == (Cost(), Cost()), "an answer of drafts alone"


def test_rollback_rejects_drafts_whose_full_depth_nll_exceeds_the_bound() -> None:
    logits_NV = torch.tensor([[0.2, 0.5, 0.3]]).log().repeat(3, 1)
    token_N = torch.tensor([0, 1, 2])
    for bound, expected in ((1.0, [True, False, True]), (1.3, [True, False, False]), (0.0, [True] * 3)):
        assert Rollback(bound).rejects(logits_NV, token_N).tolist() == expected
    assert Speculation().rejects(logits_NV, token_N).tolist() == [True, False, True]
