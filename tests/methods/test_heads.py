"""Heads: the ids that they read at each block, computed by hand, and what reading them costs.

The model of these tests uses states as logits. It has ids in place of weights, so that V can be large.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from fake_model import Identity, random_states
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from exitbench.methods.base import ActiveRows, BlockView, Head, Reading
from exitbench.methods.gates import SoftmaxMargin
from exitbench.methods.heads import Keeping, LMHead, PrunedHead
from exitbench.methods.registry import get_method

INF = math.inf
PUBLISHED = {"k_first": 35000, "k_min": 250, "schedule": "inverse"}  # VP: L = 24, V = 32128
V_T5, L_T5 = 32128, 24
KEEPINGS: tuple[Keeping, ...] = ("fixed", "decaying", "decaying-idsorted", "adaptive", "adaptive-code")


def views(
    head: Head, states_LAV: Tensor, blocks: Sequence[int], scores: dict[int, list[float]] | None = None
) -> list[BlockView]:
    """Return a view at each of these blocks, read in this order; ``scores`` contains the scores before each block."""
    model: Any = Identity(len(states_LAV) - 1, states_LAV.shape[-1])
    memory: dict[str, Tensor] = {}
    n_rows, result = states_LAV.shape[1], []
    for block in blocks:
        before = (scores or {}).get(block)
        view = BlockView(
            block=block,
            active=ActiveRows((1,) * n_rows, tuple(range(n_rows)), (0,) * n_rows, range(n_rows)),
            max_new_tokens=10,
            hidden_AD=states_LAV[block],
            memory=memory,
            model=model,
            head=head,
            earlier=states_LAV[:block].unbind(),
            previous_score_A=None if before is None else torch.tensor(before),
        )
        _ = view.logits_AK
        result.append(view)
    return result


def ids_read(view: BlockView) -> list[list[int]]:
    """Return the ids of each row whose logits are read, ordered by the logits of the first block."""
    ids_AK, logits_AK = view.ids_AK, view.logits_AK
    if ids_AK is None:
        return [list(range(logits_AK.shape[1]))] * len(logits_AK)
    return [
        [token for token, logit in zip(*row, strict=True) if logit > -INF]
        for row in zip(ids_AK.tolist(), logits_AK.tolist(), strict=True)
    ]


def pruned(keeping: Keeping, k_first: int = 6, k_min: int = 2, schedule: Any = "constant") -> PrunedHead:
    return PrunedHead(keeping, k_first, k_min, schedule)


# ------------------------------------------------------------------------------------------ sizes


@pytest.mark.parametrize(("block", "size"), [(1, 5153), (2, 2781), (7, 842), (19, 315)])
def test_pruned_sizes_equal_those_of_the_published_code(block: int, size: int) -> None:
    assert PrunedHead("fixed", **PUBLISHED).size(block, L_T5, V_T5) == size  # type: ignore[arg-type]


def test_pruned_sizes_fall_and_stay_between_k_min_and_the_vocabulary_size() -> None:
    head = PrunedHead("fixed", **PUBLISHED)  # type: ignore[arg-type]
    sizes = [head.size(block, L_T5, V_T5) for block in range(1, L_T5)]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) >= 250
    assert head.size(0, L_T5, V_T5) == V_T5, "k_1 = 35000 is more than there are"
    assert pruned("fixed", 90, 90, "inverse").size(20, L_T5, V_T5) == 90
    assert pruned("fixed", 35000).size(20, L_T5, V_T5) == V_T5
    assert pruned("fixed", 7).size(20, L_T5, V_T5) == 7


# ------------------------------------------------------------------------------------------ ids


@pytest.mark.parametrize("keeping", KEEPINGS)
def test_first_gated_block_and_last_block_read_the_whole_vocabulary(keeping: Keeping) -> None:
    states = random_states(6, 3, 20)
    first, last = views(pruned(keeping), states, [2, 6])
    for view, block in ((first, 2), (last, 6)):
        assert view.ids_AK is None
        assert torch.equal(view.logits_AK, states[block])
        assert view.head_rows == 20


def test_last_block_can_emit_a_pruned_token() -> None:
    states = torch.zeros(4, 1, 9)
    states[1, 0, :2] = torch.tensor([5.0, 4.0])
    states[2:, 0, 8] = 9.0
    at = views(pruned("fixed", 2), states, [1, 2, 3])
    best = [view.token(view.logits_AK.argmax(-1)).tolist() for view in at]
    assert best == [[0], [0], [8]]


@pytest.mark.parametrize("keeping", KEEPINGS)
def test_lowest_token_id_wins_ties_regardless_of_its_rank(keeping: Keeping) -> None:
    states = torch.zeros(4, 2, 6)
    states[1] = torch.tensor([[0.0, 6, 5, 4, 3, 9], [9.0, 1, 7, 2, 8, 3]])  # ranked 5 1 2 3 4 0 and 0 4 2 5 3 1
    states[2] = torch.tensor([[0.0, 2, 7, 0, 0, 7], [3.0, 0, 6, 0, 6, 0]])
    _, second, last = views(pruned(keeping, 6, 6), states, [1, 2, 3], {2: [0.0, 0.0]})
    assert second.ids_AK is not None
    assert SoftmaxMargin().choose(second).tolist() == [2, 2]
    assert SoftmaxMargin().choose(last).tolist() == [0, 0]


def test_fixed_pruning_keeps_the_top_ids_of_the_first_block_at_later_blocks() -> None:
    states = torch.tensor([[[0.0] * 5], [[1.0, 5, 3, 4, 2]], [[9.0, 1, 2, 3, 4]], [[9.0, 4, 3, 2, 1]], [[0.0] * 5]])
    _, second, third = views(pruned("fixed", 3), states, [1, 2, 3])
    assert ids_read(second) == ids_read(third) == [[1, 3, 2]]
    assert second.logits_AK.tolist() == [[1, 3, 2]]
    assert second.head_rows == 3


@pytest.mark.parametrize(
    ("keeping", "read"),
    [
        # k(l) = floor(12 / (1 + 2 l / 6)): 9, 7, 6, 5 of the 9 best ids of block 1, ranked or by id.
        ("fixed", [9, 9, 9]),
        ("decaying", [7, 6, 5]),
        ("decaying-idsorted", [7, 6, 5]),
    ],
)
def test_decaying_lists_shrink_with_the_schedule(keeping: Keeping, read: list[int]) -> None:
    states = random_states(6, 4, 20)
    _, *later = views(pruned(keeping, 12, 4, "inverse"), states, [1, 2, 3, 4])
    ranked = states[1].argsort(descending=True)[:, :9]
    kept = ranked.sort().values if keeping == "decaying-idsorted" else ranked
    for view, size in zip(later, read, strict=True):
        assert ids_read(view) == kept[:, :size].tolist()
        assert view.head_rows == size


def test_decaying_idsorted_keeps_the_smallest_ids_instead_of_the_top_ones() -> None:
    states = torch.zeros(7, 1, 20)
    states[1, 0, 11:20] = torch.arange(1.0, 10)  # ids 19, 18, ... are the best
    _, ranked = views(pruned("decaying", 12, 4, "inverse"), states, [1, 4])
    _, by_id = views(pruned("decaying-idsorted", 12, 4, "inverse"), states, [1, 4])
    assert ids_read(ranked) == [[19, 18, 17, 16, 15]]
    assert ids_read(by_id) == [[11, 12, 13, 14, 15]]


def test_fixed_list_has_the_size_of_the_first_gated_block() -> None:
    states = random_states(6, 1, 20)
    for first, size in ((1, 9), (2, 7), (3, 6)):
        _, later = views(pruned("fixed", 12, 4, "inverse"), states, [first, 5])
        assert len(ids_read(later)[0]) == size


@pytest.mark.parametrize(
    ("confidence", "size"),
    [
        (0.0, 20),  # all of k(j) = 20
        (0.1, 18),  # 20 * 0.91 = 18.2
        (0.5, 11),
        (0.9, 4),  # 20 * 0.19 = 3.8, but k_min = 4
        (1.0, 4),  # 20 * 0.1 = 2
        (-0.3, 20),  # a cosine may be negative
    ],
)
def test_adaptive_lists_shrink_with_the_previous_confidence(confidence: float, size: int) -> None:
    states = random_states(6, 1, 30)
    _, later = views(pruned("adaptive", 20, 4), states, [1, 2], {2: [confidence]})
    assert ids_read(later) == [states[1, 0].argsort(descending=True)[:size].tolist()]
    assert int(later.head_rows) == size


def test_adaptive_list_lengths_are_chosen_per_row() -> None:
    states, confidence = random_states(6, 5, 30), [0.0, 0.5, 1.0, 0.5, 0.1]
    _, together = views(pruned("adaptive", 20, 4), states, [1, 2], {2: confidence})
    assert [len(row) for row in ids_read(together)] == [20, 11, 4, 11, 18]
    assert torch.as_tensor(together.head_rows).tolist() == [20, 11, 4, 11, 18]
    for row in range(5):
        _, alone = views(pruned("adaptive", 20, 4), states[:, row : row + 1], [1, 2], {2: confidence[row : row + 1]})
        assert ids_read(alone)[0] == ids_read(together)[row]


def test_adaptive_code_sizes_use_the_whole_vocabulary_and_keep_ids_in_order() -> None:
    states = random_states(6, 1, 30)
    kept = states[1, 0].argsort(descending=True)[:20].sort().values.tolist()
    for confidence, size in ((0.0, 20), (0.3, 20), (0.4, 19), (0.9, 5), (0.95, 4)):  # int(30 (1 - 0.9 c))
        _, later = views(pruned("adaptive-code", 20, 4), states, [1, 2], {2: [confidence]})
        assert ids_read(later) == [kept[:size]], confidence


# ------------------------------------------------------------------------------------------ the published no-op


def test_published_sizes_are_never_shortened_by_adaptive_code_up_to_confidence_0_9() -> None:
    """Up to confidence 0.9, at least 6104 ids are allowed, more than the schedule keeps at any block."""
    head = PrunedHead("adaptive-code", **PUBLISHED)  # type: ignore[arg-type]
    assert int(V_T5 * (1 - 0.9 * 0.9)) == 6104
    assert all(head.size(first, L_T5, V_T5) < 6104 for first in range(1, L_T5))


@settings(max_examples=40)
@given(
    st.integers(1, L_T5 - 2).flatmap(lambda j: st.tuples(st.just(j), st.integers(j + 1, L_T5 - 1))), st.floats(0, 0.9)
)
def test_adaptive_code_equals_fixed_pruning_up_to_confidence_0_9(blocks: tuple[int, int], confidence: float) -> None:
    states = random_states(L_T5, 1, V_T5)
    read = {}
    for keeping in ("fixed", "adaptive-code"):
        head = PrunedHead(keeping, **PUBLISHED)  # type: ignore[arg-type]
        _, later = views(head, states, list(blocks), {blocks[1]: [confidence]})
        assert int(later.head_rows) == head.size(blocks[0], L_T5, V_T5)
        read[keeping] = dict(zip(ids_read(later)[0], later.logits_AK[0].tolist(), strict=True))
    assert read["fixed"] == read["adaptive-code"]


def test_adaptive_code_prunes_more_than_fixed_at_confidence_1() -> None:
    states = random_states(L_T5, 1, V_T5)
    _, later = views(PrunedHead("adaptive-code", **PUBLISHED), states, [1, 2], {2: [1.0]})  # type: ignore[arg-type]
    assert len(ids_read(later)[0]) == 3212 < 5153


# ------------------------------------------------------------------------------------------ one id


@pytest.mark.parametrize("keeping", KEEPINGS)
def test_single_kept_id_has_confidence_1(keeping: Keeping) -> None:
    """If one id is kept, every confidence is 1, and the token is the best one of the first block."""
    states = random_states(6, 3, 12)
    scores = {2: [0.5, 0.1, 0.9]}
    for name in ("calm-softmax", "max-prob", "entropy", "contrastive", "contrastive-reweighted"):
        gate = get_method(name)().parts(6).gate
        _, later = views(pruned(keeping, 1, 1), states, [1, 2], scores)
        assert gate.score(later).tolist() == [1, 1, 1], name
        assert gate.choose(later).tolist() == states[1].argmax(-1).tolist()


# ------------------------------------------------------------------------------------------ earlier blocks


@pytest.mark.parametrize("keeping", KEEPINGS)
def test_earlier_logits_cover_the_ids_of_the_current_block(keeping: Keeping) -> None:
    states = random_states(6, 4, 20)
    scores = {3: [0.0, 0.5, 0.9, 1.0], 4: [0.9, 0.2, 0.0, 0.4]}
    _, *later = views(pruned(keeping, 12, 4, "inverse"), states, [1, 3, 4], scores)
    for view in later:  # an adaptive list may grow again from one block to the next
        ids_AK = view.ids_AK
        assert ids_AK is not None
        expected = states[2].gather(1, ids_AK).masked_fill(view.logits_AK == -INF, -INF)
        assert torch.equal(view.earlier_logits(2), expected)


def test_earlier_logits_at_the_first_gated_block_cover_the_whole_vocabulary() -> None:
    states = random_states(6, 2, 20)
    (first,) = views(pruned("fixed", 3), states, [4])
    assert torch.equal(first.earlier_logits(2), states[2])
    assert first.head_rows == 40


def test_logits_of_a_copied_view_leave_the_views_work_unchanged() -> None:
    (view,) = views(LMHead(), random_states(6, 2, 20), [4])
    view.head_rows = torch.tensor([20, 3])
    changed = copy.copy(view)
    changed.set_logits(view.logits_AK + 1)
    assert torch.as_tensor(view.head_rows).tolist() == [20, 3]
    assert torch.equal(changed.logits_AK, view.logits_AK + 1)


def test_full_head_reads_an_earlier_block_once_per_token() -> None:
    states = random_states(6, 2, 20)
    third, fourth = views(LMHead(), states, [3, 4])
    assert torch.equal(third.earlier_logits(2), states[2])
    assert torch.equal(fourth.earlier_logits(2), states[2])
    assert (third.head_rows, fourth.head_rows) == (40, 20)


def test_logits_of_a_view_are_computed_once() -> None:
    class Counting(LMHead):
        asked = 0

        def read(self, view: BlockView) -> Reading:
            self.asked += 1
            return super().read(view)

    head = Counting()
    (view,) = views(head, random_states(6, 2, 20), [3])
    some = view.take([1], torch.tensor([1]))
    assert torch.equal(some.logits_AK, view.logits_AK[1:])
    assert head.asked == 1


def test_row_subset_keeps_its_pruned_ids() -> None:
    states = random_states(6, 3, 20)
    _, later = views(pruned("fixed", 3), states, [1, 2])
    some = later.take([0, 2], torch.tensor([0, 2]))
    everyone = later.token(later.logits_AK.argmax(-1)).tolist()
    assert some.token(some.logits_AK.argmax(-1)).tolist() == everyone[::2]


def test_head_cost_is_proportional_to_its_rows() -> None:
    model: Any = Identity(6, 20)
    cost = pruned("fixed").cost(model, 7)
    assert (cost.matmul_flops, cost.elementwise_flops, cost.read_numel) == (2 * 7 * 20, 0, 7 * 20)
