"""Every gate on given logits and states: scores computed by hand, ties, first and last blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fake_model import Identity
from numpy.typing import NDArray
from slow_rules import softmax
from torch import Tensor

from exitbench.methods.base import ActiveRows, BlockView
from exitbench.methods.contrastive import Contrast
from exitbench.methods.entropy import InversePerplexity
from exitbench.methods.gates import Always, Scheduled, SoftmaxMargin, margin
from exitbench.methods.heads import LMHead
from exitbench.methods.offline import score_states
from exitbench.methods.registry import get_method

Array = NDArray[np.float64]
INF = math.inf


def view(logits_AV: Tensor, **about: Any) -> BlockView:
    """Return a gate's view of rows at a block (by default block 1) of a six-block decoder."""
    model: Any = Identity(6, logits_AV.shape[1])
    default: dict[str, Any] = {"block": 1, "max_new_tokens": 10, "memory": {}, "head": LMHead()}
    active = ActiveRows((1,) * len(logits_AV), tuple(range(len(logits_AV))))
    return BlockView(**{**default, "active": active, "hidden_AD": logits_AV, "model": model, **about})


def scores_and_tokens(name: str, states: Any, /, **params: Any) -> tuple[list[float], list[int]]:
    """Return the score and the emitted token of a method after each block, given one token's states [L+1, V].

    The first state is the embedding.
    """
    states_L1V = torch.as_tensor(states, dtype=torch.float32)[:, None]
    model: Any = Identity(len(states_L1V) - 1, states_L1V.shape[-1])
    scores, tokens = score_states(get_method(name)(**params).parts(model.n_blocks), model, states_L1V)
    return scores[:, 0].tolist(), tokens[:, 0].tolist()


def logs(*rows: list[float]) -> Array:
    """Return logits of these probabilities per block, after an embedding with uniform logits."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.array([[1.0] * len(rows[0]), *rows])))


# ------------------------------------------------------------------------------------------ probabilities


def test_margin_is_the_difference_of_the_top_two_probabilities_and_0_for_ties() -> None:
    probabilities = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.4, 0.4, 0.2], [1.0, 0.0, 0.0]])
    score = SoftmaxMargin().score(view(probabilities.log()))
    assert score.tolist() == pytest.approx([0.2, 0.4, 0.0, 1.0], abs=1e-6)


def test_tie_never_exits_even_at_threshold_zero() -> None:
    parts = get_method("calm-softmax")(threshold=0.0).parts(4)
    score = parts.gate.score(view(torch.tensor([[2.0, 2.0, 1.0]])))
    assert score.item() == 0.0
    assert not score.item() > parts.threshold.value(1, 1, 10)


def test_margin_of_half_precision_logits_is_computed_in_single_precision() -> None:
    logits = torch.tensor([[8.0, 7.96875, 0.0]], dtype=torch.bfloat16)
    model: Any = Identity(6, 3, norm=torch.ones(3, dtype=torch.bfloat16))
    score = SoftmaxMargin().score(view(logits, model=model))
    exact = torch.softmax(logits.double(), -1)[0]
    assert score.item() == pytest.approx((exact[0] - exact[1]).item(), abs=1e-6)


def test_margin_of_a_single_candidate_is_its_probability() -> None:
    assert margin(torch.tensor([[1.0], [0.25]])).tolist() == [1.0, 0.25]


def test_max_prob_score_is_the_largest_probability_even_for_ties() -> None:
    scores, _ = scores_and_tokens("max-prob", logs([0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [1.0, 0.0, 0.0], [0.2, 0.2, 0.6]))
    assert scores[:3] == pytest.approx([0.5, 0.4, 1.0], abs=1e-6)
    assert math.isnan(scores[3]), "the last block is not asked"


def test_entropy_score_is_inverse_perplexity() -> None:
    rows = [
        [0.0, -INF, -INF, -INF],  # one-hot: H = 0
        [200.0, 0.0, 0.0, 0.0],  # one-hot as far as single precision tells
        [3.0, 3.0, 3.0, 3.0],  # uniform: H = ln 4
        [3.0, 3.0, -INF, -INF],  # columns that are not read have p = 0: H = ln 2
        [math.log(0.5), math.log(0.25), math.log(0.25), -INF],  # H = 1.5 ln 2
    ]
    score = InversePerplexity().score(view(torch.tensor(rows)))
    assert score.tolist() == pytest.approx([1, 1, 1 / 4, 1 / 2, 2**-1.5], abs=1e-6)


def test_entropy_exits_below_its_threshold_in_nats() -> None:
    scores, _ = scores_and_tokens("entropy", logs([0.5, 0.25, 0.25], [0.98, 0.01, 0.01], [1, 1, 1]))
    entropies = [1.5 * math.log(2), -0.98 * math.log(0.98) - 0.02 * math.log(0.01)]
    for threshold in (0.05, 0.2, 1.0, 1.1):
        rule = get_method("entropy")(threshold=threshold).parts(3).threshold
        exits = [score > rule.value(1, 1, 10) for score in scores[:2]]
        assert exits == [h < threshold for h in entropies]


# ------------------------------------------------------------------------------------------ patience


def test_patience_streak_restarts_at_every_change_and_the_lowest_id_wins_ties() -> None:
    states = [[0, 0, 0], [0, 9, 0], [0, 9, 9], [0, 8, 9], [9, 0, 9], [9, 9, 9], [0, 0, 1]]  # choices: 1 1 2 0 0
    scores, tokens = scores_and_tokens("patience", states)
    assert scores[:5] == [1, 2, 1, 1, 2]
    assert tokens == [1, 1, 2, 0, 0, 2]


def test_patience_streak_counts_gated_blocks_only() -> None:
    states = [[0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0], [0, 1, 0]]
    # Blocks 1, 3 and 5 are read, not blocks 2 and 4.
    assert scores_and_tokens("patience", states, every=2)[0][::2] == [1, 2, 3]
    assert scores_and_tokens("patience", states, min_exit=5)[0][4] == 1


@pytest.mark.parametrize(("counting", "needed"), [("formula", 3), ("sentence", 2)])
def test_patience_2_needs_three_equal_predictions_by_formula_and_two_by_sentence(counting: str, needed: int) -> None:
    threshold = get_method("patience")(patience=2, counting=counting).parts(6).threshold.value(1, 1, 10)
    assert next(streak for streak in range(1, 6) if streak > threshold) == needed


def test_patience_streak_compares_token_ids_not_columns_of_a_pruned_head() -> None:
    """The pruned list is ranked, so that its first column is another id than the first of the vocabulary."""
    states = [[0, 0, 0, 0], [0, 3, 2, 9], [0, 3, 2, 9], [5, 3, 2, 1], [9, 3, 2, 1], [0, 0, 0, 1]]
    pruned = {"head": "pruned-fixed", "k_schedule": "constant", "k_first": 3, "k_min": 1}
    scores, tokens = scores_and_tokens("patience", states, **pruned)
    assert scores[:4] == [1, 2, 1, 2]
    assert tokens == [3, 3, 1, 1, 3], "id 0 is not among the best three of block 1"


def test_patience_works_with_adaptive_pruned_heads() -> None:
    """Adaptive pruning uses the score as a probability. The score of patience is a count, which may exceed 1."""
    states = [[0.0] * 8] + [[0, 0, 9, 8, 7, 6, 0, 0]] * 5
    for head in ("pruned-adaptive", "pruned-adaptive-code"):
        scores, tokens = scores_and_tokens("patience", states, head=head, k_schedule="constant", k_first=4, k_min=2)
        assert scores[:4] == [1, 2, 3, 4], head
        assert tokens == [2] * 5, head


# ------------------------------------------------------------------------------------------ top 3


def best(*probabilities: float) -> Array:
    """Return logits of two tokens; the first has these probabilities at blocks 0, 1, ..."""
    p = np.array(probabilities)
    return np.asarray(np.log(np.stack([p, 1 - p], axis=1)))


def test_top3_score_is_the_top_probability_if_it_grew_strictly_over_three_blocks() -> None:
    states = best(0.5, 0.6, 0.7, 0.8, 0.9, 0.9, 0.95, 0.7)
    scores, _ = scores_and_tokens("mee-top3", states, min_exit=1)
    # Blocks 1 and 2 have no three blocks (the embedding is none); 5 stays at 0.9; 6 grew from a pair that did not.
    assert scores[:6] == pytest.approx([0, 0, 0.8, 0.9, 0, 0], abs=1e-6)


def test_top3_reads_the_two_previous_blocks_even_if_they_are_not_gated() -> None:
    states = best(0.5, 0.6, 0.7, 0.8, 0.9, 0.91, 0.95, 0.7)
    assert scores_and_tokens("mee-top3", states, min_exit=3, every=3)[0][2::3][:2] == pytest.approx(
        [0.8, 0.95], abs=1e-6
    )


def test_top3_code_variant_scores_1_above_the_undecayed_threshold() -> None:
    states = best(0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.5)
    method = get_method("mee-top3")(variant="code", threshold=0.85, min_exit=1)
    scores, _ = scores_and_tokens("mee-top3", states, variant="code", threshold=0.85, min_exit=1)
    assert scores[:5] == [0, 0, 0, 1, 1]
    decayed = method.parts(6).threshold.value(1, 10, 10)
    assert 0 < decayed < 0.85, "0.8 would pass the decayed one at block 3"
    assert scores_and_tokens("mee-top3", states, variant="text", threshold=0.85, min_exit=1)[0][2] == pytest.approx(
        0.8, abs=1e-6
    )


def test_top3_on_raw_logits_can_grow_while_probabilities_do_not() -> None:
    states = [[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]]
    assert scores_and_tokens("mee-top3", states, min_exit=1, signal="logits")[0][:3] == [0, 0, 3]
    assert scores_and_tokens("mee-top3", states, min_exit=1)[0][:3] == [0, 0, 0]


# ------------------------------------------------------------------------------------------ saturation

TURNING = [[1.0, 0.0], [1.0, 1.0], [1.0, 1.0], [-1.0, -1.0], [0.0, 2.0], [0.0, 0.0]]  # 45, 0, 180 and 135 degrees
COSINES = [math.sqrt(0.5), 1.0, -1.0, -math.sqrt(0.5)]


def test_saturation_compares_each_block_with_its_input_state() -> None:
    assert scores_and_tokens("calm-saturation", TURNING, states="raw")[0][:4] == pytest.approx(COSINES, abs=1e-6)
    assert scores_and_tokens("calm-saturation", TURNING, states="raw", min_exit=3)[0][2:4] == pytest.approx(
        COSINES[2:], abs=1e-6
    )


def test_saturation_with_first_zero_scores_0_at_the_first_gated_block() -> None:
    assert scores_and_tokens("calm-saturation", TURNING, states="raw", first="zero")[0][:4] == pytest.approx(
        [0, *COSINES[1:]]
    )
    scores, _ = scores_and_tokens("calm-saturation", TURNING, states="raw", first="zero", min_exit=2)
    assert scores[1:4] == pytest.approx([0, *COSINES[2:]])


def test_saturation_compares_with_the_directly_preceding_block_if_gated_sparsely() -> None:
    assert scores_and_tokens("calm-saturation", TURNING, states="raw", every=3)[0][::3] == pytest.approx(
        COSINES[::3], abs=1e-6
    )


def test_saturation_norms_both_states() -> None:
    model: Any = Identity(5, 2, norm=torch.tensor([3.0, 1.0]))
    states = torch.tensor(TURNING)[:, None]
    scores, _ = score_states(get_method("calm-saturation")().parts(5), model, states)
    normed = np.array(TURNING) * [3.0, 1.0]
    expected = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in itertools.pairwise(normed[:5])]
    assert scores[:4, 0].tolist() == pytest.approx(expected, abs=1e-6)


# ------------------------------------------------------------------------------------------ contrastive

P, Q = [0.6, 0.3, 0.1], [0.3, 0.6, 0.1]  # block 2 and its amateur, block 1: ratios 2, 1/2, 1


@pytest.mark.parametrize(
    ("alpha", "gate_score", "mass", "vector"),
    [
        (0.1, "plain", "one", P),
        (0.1, "lcd", "one", [4 / 7, 1 / 7, 2 / 7]),  # all inside
        (0.4, "lcd", "one", [0.8, 0.2, 0.0]),  # 0.1 < 0.24 is outside
        (0.4, "dcd", "one", [0.8, 0.2, 0.1]),  # sums to 1.1
        (0.4, "lcd", "head", [0.72, 0.18, 0.0]),  # 0.9 of it
        (0.4, "dcd", "head", [0.72, 0.18, 0.1]),  # sums to 1
        (0.9, "lcd", "one", [1.0, 0.0, 0.0]),  # one element: s = 1 ...
        (0.9, "lcd", "head", [0.6, 0.0, 0.0]),  # ... or its own probability
        (0.9, "dcd", "one", [1.0, 0.3, 0.1]),
        (0.9, "dcd", "head", [0.6, 0.3, 0.1]),
        (1.0, "lcd", "one", [1.0, 0.0, 0.0]),  # the best is always inside
        (0.0, "lcd", "one", [4 / 7, 1 / 7, 2 / 7]),
    ],
)
def test_contrastive_scores_equal_values_computed_by_hand(
    alpha: float, gate_score: str, mass: str, vector: list[float]
) -> None:
    first, second = sorted(vector, reverse=True)[:2]
    scores, _ = scores_and_tokens("contrastive", logs(Q, P, P), alpha=alpha, gate_score=gate_score, mass=mass)
    assert scores[1] == pytest.approx(first - second, abs=1e-6)


def score_vector(gate: Contrast, states: Array, block: int) -> Array:
    """Return the contrastive score of each token of the vocabulary, [V], at a block."""
    rows = torch.tensor(states, dtype=torch.float32)[:, None]
    model: Any = Identity(len(states) - 1, states.shape[1])
    at = view(rows[block], block=block, earlier=rows[:block].unbind(), model=model)
    return gate._vector(at, gate.gate_score)[0].double().numpy()


@pytest.mark.parametrize("amateur", ["half", "jsd", "dola-low", "dola-high"])
def test_lcd_and_dcd_score_sums_follow_the_mass_setting(amateur: str) -> None:
    draw = np.random.default_rng(1)
    partly_inside = 0
    for _ in range(50):
        states, block = draw.normal(size=(11, 12)) * 2, 9
        p = softmax(states[block])
        mass = p[p >= 0.1 * p.max()].sum()
        partly_inside += mass < 0.95
        sums = {
            (score, share): score_vector(Contrast(0.1, None, amateur, score, "plain", share), states, block).sum()
            for score in ("lcd", "dcd")
            for share in ("one", "head")
        }
        assert sums["lcd", "one"] == pytest.approx(1, abs=1e-5)
        assert sums["lcd", "head"] == pytest.approx(mass, abs=1e-5)
        assert sums["dcd", "one"] == pytest.approx(2 - mass, abs=1e-5)
        assert sums["dcd", "head"] == pytest.approx(1, abs=1e-5)
    assert partly_inside > 5


def test_tied_contrastive_scores_have_margin_0() -> None:
    scores, tokens = scores_and_tokens(
        "contrastive", logs([0.5, 0.4, 0.1], [0.5, 0.4, 0.1], [1, 1, 1]), gate_score="lcd", emit_score="lcd"
    )
    assert scores[1] == pytest.approx(0, abs=1e-6), "every ratio is 1, though the margin of p is 0.1"
    assert tokens[1] == 0


def test_contrastive_score_without_an_amateur_is_the_plain_margin() -> None:
    draw = np.random.default_rng(0).normal(size=(7, 5))
    plain, _ = scores_and_tokens("calm-softmax", draw)
    for name, blocks in (("contrastive", [1]), ("contrastive-reweighted", [1]), ("contrastive-jsd", [1, 2])):
        scores, _ = scores_and_tokens(name, draw)
        same = [block for block in range(1, 6) if scores[block - 1] == pytest.approx(plain[block - 1], abs=1e-6)]
        assert same == blocks, name


def test_default_amateur_is_the_block_at_half_depth_rounded_down() -> None:
    states = np.random.default_rng(3).normal(size=(8, 5))
    scores, _ = scores_and_tokens("contrastive", states, gate_score="lcd", alpha=0.0)
    for block in range(2, 7):
        lcd = softmax(np.log(softmax(states[block])) - np.log(softmax(states[block // 2])))
        assert scores[block - 1] == pytest.approx(top_margin(lcd), abs=1e-5)


@pytest.mark.parametrize("emit_score", ["plain", "lcd", "dcd"])
def test_last_block_always_emits_its_most_probable_token(emit_score: str) -> None:
    # Contrasted with block 1, token 1 grew the most at blocks 2 and 3.
    grown = logs([0.6, 0.1, 0.3], [0.5, 0.45, 0.05], [0.5, 0.45, 0.05], [0.5, 0.45, 0.05])
    _, tokens = scores_and_tokens("contrastive", grown, emit_score=emit_score, alpha=0.5)
    assert tokens == ([0, 0, 0, 0] if emit_score == "plain" else [0, 1, 1, 0])


def test_gate_score_and_emit_score_are_independent_settings() -> None:
    grown = logs([0.6, 0.1, 0.3], [0.5, 0.45, 0.05], [0.5, 0.45, 0.05])
    plain_gate = scores_and_tokens("contrastive", grown, gate_score="plain", emit_score="lcd", alpha=0.5)
    assert plain_gate[0][1] == pytest.approx(0.05, abs=1e-6)
    assert plain_gate[1][1] == 1
    lcd_gate = scores_and_tokens("contrastive", grown, gate_score="lcd", emit_score="plain", alpha=0.5)
    ratios = np.array([0.5 / 0.6, 0.45 / 0.1])
    assert lcd_gate[0][1] == pytest.approx((ratios[1] - ratios[0]) / ratios.sum(), abs=1e-6)
    assert lcd_gate[1][1] == 0


def test_hyperbolic_bound_falls_with_depth_and_with_previous_confidence() -> None:
    """A token is plausible above the bound alpha / (1 + decay l) (1 - c), with the confidence c of the block before.

    Numbers are chosen so that each factor decides whether the second token is plausible.
    """
    before = [0.4, 0.35, 0.25]  # margin 0.05 at block 1
    states = logs(before, [0.7, 0.15, 0.15], before, [1, 1, 1])
    bound = 0.9 / (1 + 1.0 * 2) * (1 - 0.05)
    assert 0.15 / 0.7 < bound < 0.9 / (1 + 1.0 * 2), "the second and third are outside"
    common = {"gate_score": "lcd", "alpha_schedule": "hyperbolic"}
    assert scores_and_tokens("contrastive", states, alpha=0.9, alpha_decay=1.0, **common)[0][1] == pytest.approx(
        1, abs=1e-6
    )
    ratios = np.array([0.7 / 0.4, 0.15 / 0.35, 0.15 / 0.25])
    everything_in = (ratios[0] - ratios[2]) / ratios.sum()
    # 0.66 / 3 = 0.22 alone would leave them outside; the confidence before brings it to 0.209 < 0.214
    assert 0.66 / 3 > 0.15 / 0.7 > 0.66 / 3 * 0.95
    assert scores_and_tokens("contrastive", states, alpha=0.66, alpha_decay=1.0, **common)[0][1] == pytest.approx(
        everything_in
    )
    assert scores_and_tokens("contrastive", states, alpha=0.66, alpha_decay=0.9, **common)[0][1] == pytest.approx(
        1, abs=1e-6
    )
    # Asked at block 2 first, there is no confidence before.
    first = scores_and_tokens("contrastive", states, alpha=0.66, alpha_decay=1.0, min_exit=2, **common)[0][1]
    assert first == pytest.approx(1, abs=1e-6)


def top_margin(s: Array) -> float:
    second, first = np.sort(s)[-2:]
    return float(first - second)


def divergence(p: Array, q: Array) -> float:
    """Return (KL(p||m) + KL(q||m)) / 2, where m is the mean of p and q, for vectors with any sum."""
    total = 0.0
    for a, b in zip(p, q, strict=True):
        m = (a + b) / 2
        total += a * math.log(a / m) / 2 + b * math.log(b / m) / 2
    return total


def normed(x: Array) -> Array:
    return np.asarray(x / x.sum())


Choice = Callable[[list[Array], int, NDArray[np.bool_]], int]


def jsd_choice(p: list[Array], block: int, inside: NDArray[np.bool_]) -> int:
    return max(range(2, block), key=lambda a: divergence(p[block][inside], p[a][inside]) / (block - a))


def without_discount(p: list[Array], block: int, inside: NDArray[np.bool_]) -> int:
    return max(range(2, block), key=lambda a: divergence(p[block][inside], p[a][inside]))


def unrestricted(p: list[Array], block: int, inside: NDArray[np.bool_]) -> int:
    return max(range(2, block), key=lambda a: divergence(p[block], p[a]) / (block - a))


def normalised_again(p: list[Array], block: int, inside: NDArray[np.bool_]) -> int:
    return max(range(2, block), key=lambda a: divergence(normed(p[block][inside]), normed(p[a][inside])) / (block - a))


def from_block_1(p: list[Array], block: int, inside: NDArray[np.bool_]) -> int:
    return max(range(1, block), key=lambda a: divergence(p[block][inside], p[a][inside]) / (block - a))


def dola_low(p: list[Array], block: int, inside: NDArray[np.bool_]) -> int:
    usable = [a for a in (0, 2, 4) if a < block]  # L = 10: even blocks of 0..4
    return max(usable, key=lambda a: divergence(p[block], p[a]))


def dola_high(p: list[Array], block: int, inside: NDArray[np.bool_]) -> int:
    usable = [a for a in (5, 7, 9) if a < block]
    return max(usable, key=lambda a: divergence(p[block], p[a]))


def expected_margin(states: Array, block: int, choose: Choice, alpha: float) -> float:
    p = [softmax(z) for z in states]
    inside = p[block] >= alpha * p[block].max()
    amateur = p[choose(p, block, inside)]
    s = p[block].copy()
    s[inside] = softmax(np.log(p[block][inside]) - np.log(amateur[inside]))
    return top_margin(s)


@pytest.mark.parametrize(
    ("amateur", "choose", "others"),
    [
        ("jsd", jsd_choice, [without_discount, unrestricted, normalised_again, from_block_1, dola_low]),
        ("dola-low", dola_low, [jsd_choice, dola_high]),
        ("dola-high", dola_high, [jsd_choice, dola_low]),
    ],
)
def test_amateur_choice_equals_its_definition_and_differs_from_similar_ones(
    amateur: str, choose: Choice, others: list[Choice]
) -> None:
    """Random tokens tell the definitions of the amateur apart: each other definition differs on at least two."""
    draw, block, alpha = np.random.default_rng(5), 7, 0.25
    tokens = draw.normal(size=(60, 11, 6)).cumsum(axis=1)
    differs = [0] * len(others)
    for states in tokens:
        score = scores_and_tokens("contrastive", states, amateur=amateur, alpha=alpha)[0][block - 1]
        expected = expected_margin(states, block, choose, alpha)
        assert score == pytest.approx(expected, abs=2e-4)
        for at, other in enumerate(others):
            differs[at] += abs(expected_margin(states, block, other, alpha) - expected) > 1e-3
    assert min(differs) >= 2, differs


def test_amateur_is_chosen_per_row() -> None:
    states = torch.tensor(np.random.default_rng(6).normal(size=(11, 30, 6)).cumsum(axis=0), dtype=torch.float32)
    model: Any = Identity(10, 6)
    scores_LN, _ = score_states(get_method("contrastive-jsd")().parts(10), model, states)
    alone = [scores_and_tokens("contrastive-jsd", states[:, row])[0] for row in range(30)]
    np.testing.assert_allclose(scores_LN[:-1].numpy(), np.array(alone).T[:-1], atol=1e-6)


# ------------------------------------------------------------------------------------------ oracles and schedules

FLICKERING = [[0, 0, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 0, 1]]  # choices 2 0 2 0 2 2


def test_oracle_first_match_may_change_later_and_stable_match_never_does() -> None:
    assert scores_and_tokens("oracle", FLICKERING)[0][:5] == [1, 0, 1, 0, 1]
    assert scores_and_tokens("oracle", FLICKERING, match="stable")[0][:5] == [0, 0, 0, 0, 1]


def test_scheduled_gate_exits_as_listed_and_at_full_depth_beyond_the_list() -> None:
    gate = Scheduled({7: [2, 4], 8: [6]})
    for position, layers in ((1, (2, 6)), (2, (4, 6)), (3, (6, 6))):
        memory: dict[str, Tensor] = {}
        scores = []
        for block in range(1, 6):
            at = view(torch.zeros(2, 3), block=block, active=ActiveRows((position,) * 2, (7, 8)), memory=memory)
            scores.append(gate.score(at).tolist())
        assert scores == [[float(layer <= block) for layer in layers] for block in range(1, 6)]


def test_always_gate_scores_1() -> None:
    assert Always().score(view(torch.zeros(3, 2))).tolist() == [1, 1, 1]
