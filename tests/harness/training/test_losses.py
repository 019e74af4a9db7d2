"""Losses of early-exit training: weights as published, values and gradients as plain loops compute them."""

import math
from collections.abc import Callable
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from exitbench.errors import UserError
from exitbench.harness.training.losses import (
    JointLoss,
    block_weights,
    exit_head_loss,
    head_loss,
    lm_head_divergences,
    shallow_deep_weights,
    tuned_lens_loss,
)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Return seeded random float64 numbers, with gradients enabled."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def probabilities(row: Tensor) -> list[Tensor]:
    """Softmax of one row of logits, entry by entry."""
    total = torch.stack([z.exp() for z in row]).sum()
    return [z.exp() / total for z in row]


def assert_same(loss: Callable[..., Tensor], reference: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Assert that the loss and its reference have equal values and gradients for these inputs."""
    got, wanted = loss(*inputs), reference(*inputs)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(torch.autograd.grad(3 * got, inputs), torch.autograd.grad(3 * wanted, inputs))


# ---- weights of blocks ----


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [
        ("last", [0, 0, 0, 0, 1]),
        ("uniform", [1 / 5] * 5),
        ("weighted", [1 / 15, 2 / 15, 3 / 15, 4 / 15, 5 / 15]),
        ("geometric", [2 / 62, 4 / 62, 8 / 62, 16 / 62, 32 / 62]),
        ("branchynet", [1] * 5),
        ("last-70", [0, 1 / 4, 1 / 4, 1 / 4, 1 / 4]),
    ],
)
def test_joint_loss_weights_equal_published_values(loss: JointLoss, wanted: list[float]) -> None:
    assert block_weights(5, loss).tolist() == pytest.approx(wanted)


@given(st.sampled_from(get_args(JointLoss)), st.integers(1, 200))
def test_joint_loss_weights_do_not_decrease_with_depth_and_have_the_right_sum(loss: JointLoss, blocks: int) -> None:
    weights = block_weights(blocks, loss)
    assert weights.shape == (blocks,)
    assert (weights.diff() >= 0).all() and weights.isfinite().all()
    assert weights.sum().item() == pytest.approx(blocks if loss == "branchynet" else 1, rel=1e-5)


@pytest.mark.parametrize("blocks", [10, 20, 30, 100])
def test_last_70_loss_weights_70_percent_of_the_blocks(blocks: int) -> None:
    assert int((block_weights(blocks, "last-70") > 0).sum()) == blocks * 7 // 10


def test_blocks_outside_the_selection_have_no_weight() -> None:
    assert block_weights(6, "weighted", (2, 4, 6)).tolist() == pytest.approx([0, 1 / 6, 0, 1 / 3, 0, 1 / 2])
    assert block_weights(3, "branchynet", (1, 3)).tolist() == [1, 0, 1]
    with pytest.raises(UserError, match=r"blocks ends with 4\. Allowed: the model's last block, 6"):
        block_weights(6, "weighted", (2, 4))


def test_misspelt_joint_loss_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match="Did you mean 'weighted'"):
        block_weights(4, "wieghted")  # type: ignore[arg-type]


@given(st.integers(2, 60).flatmap(lambda blocks: st.tuples(st.just(blocks), st.integers(1, blocks - 1))))
def test_shallow_deep_weights_are_proportional_to_depth(depths: tuple[int, int]) -> None:
    blocks, shallow = depths
    weights = shallow_deep_weights(blocks, shallow)
    assert weights.nonzero().flatten().tolist() == [shallow - 1, blocks - 1]
    assert weights.sum().item() == pytest.approx(1)
    assert (weights[-1] / weights[shallow - 1]).item() == pytest.approx(blocks / shallow)


@pytest.mark.parametrize("shallow", [0, 6, 7])
def test_shallow_exit_outside_the_inner_blocks_is_refused(shallow: int) -> None:
    with pytest.raises(UserError, match="1 to 5"):
        shallow_deep_weights(6, shallow)


# ---- cross-entropy of one block ----


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_head_loss_equals_a_token_by_token_reference(smoothing: float) -> None:
    gold = [2, 0, 4]

    def reference(states: Tensor, head: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for state, label in zip(states, gold, strict=True):
            p = probabilities(torch.stack([(state * row).sum() for row in head]))
            for token, chance in enumerate(p):
                share = smoothing / len(p) + (1 - smoothing) * (token == label)
                total = total - share * chance.log()
        return total / len(gold)

    inputs = numbers(3, 4, seed=1), numbers(5, 4, seed=2)
    assert_same(lambda states, head: head_loss(states, head, torch.tensor(gold), smoothing), reference, *inputs)


@pytest.mark.parametrize("tokens", [7, 1100])
def test_sliced_head_loss_equals_torch_cross_entropy(tokens: int) -> None:
    gold = torch.randint(0, 30, (tokens,), generator=torch.Generator().manual_seed(0))
    inputs = numbers(tokens, 12, seed=1), numbers(30, 12, seed=2)
    assert_same(
        lambda states, head: head_loss(states, head, gold, 0.1),
        lambda states, head: F.cross_entropy(states @ head.T, gold, label_smoothing=0.1),
        *inputs,
    )


def test_head_loss_with_a_bias_equals_torch_cross_entropy() -> None:
    gold = torch.tensor([2, 0, 4, 4])
    inputs = numbers(4, 3, seed=1), numbers(5, 3, seed=2), numbers(5, seed=3)
    assert_same(
        lambda states, head, bias: head_loss(states, head, gold, 0.1, bias),
        lambda states, head, bias: F.cross_entropy(states @ head.T + bias, gold, label_smoothing=0.1),
        *inputs,
    )


def test_losses_of_bfloat16_inputs_are_float32() -> None:
    logits, gold = numbers(6, 9).detach().bfloat16(), torch.arange(6)
    assert head_loss(logits, torch.eye(9).bfloat16(), gold).dtype == torch.float32
    assert exit_head_loss(logits, gold, 0.5).dtype == torch.float32
    assert tuned_lens_loss(logits, logits).dtype == torch.float32


# ---- heads on a frozen model ----


@pytest.mark.parametrize("lam", [0.0, 0.1, 0.95])
@pytest.mark.parametrize("soft", [False, True])
def test_exit_head_loss_is_cross_entropy_minus_weighted_entropy(soft: bool, lam: float) -> None:
    target = numbers(3, 5, seed=3).detach().softmax(-1) if soft else torch.tensor([4, 1, 1])

    def reference(logits: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for n, row in enumerate(logits):
            p = probabilities(row)
            wanted = target[n].tolist() if soft else [float(v == target[n]) for v in range(5)]
            total = total - (1 - lam) * torch.stack([t * q.log() for t, q in zip(wanted, p, strict=True)]).sum()
            total = total + lam * torch.stack([q * q.log() for q in p]).sum()
        return total / len(logits)

    assert_same(lambda logits: exit_head_loss(logits, target, lam), reference, numbers(3, 5))


def test_one_hot_soft_target_equals_a_hard_target() -> None:
    ids, logits = torch.tensor([4, 1, 1]), numbers(3, 5)
    soft = F.one_hot(ids, 5).double()
    torch.testing.assert_close(exit_head_loss(logits, soft, 0.3), exit_head_loss(logits, ids, 0.3))


def test_exit_head_loss_with_entropy_weight_1_is_minus_the_entropy() -> None:
    assert exit_head_loss(torch.zeros(2, 8), torch.tensor([0, 5]), 1.0).item() == pytest.approx(-math.log(8))


def test_tuned_lens_loss_is_the_divergence_from_the_final_distribution() -> None:
    final = numbers(3, 5, seed=4).detach()

    def reference(logits: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for row, target in zip(logits, final, strict=True):
            for q, t in zip(probabilities(row), probabilities(target), strict=True):
                total = total + t * (t.log() - q.log())
        return total / len(logits)

    assert_same(lambda logits: tuned_lens_loss(logits, final), reference, numbers(3, 5))


@given(st.integers(0, 1000), st.floats(-5, 5))
def test_tuned_lens_loss_is_zero_only_for_the_final_distribution(seed: int, shift: float) -> None:
    final = numbers(4, 6, seed=seed).detach()
    assert tuned_lens_loss(final + shift, final).item() == pytest.approx(0, abs=1e-12)
    assert tuned_lens_loss(final.flip(-1), final).item() > 1e-3


def test_targets_of_frozen_models_get_no_gradient() -> None:
    logits, final = numbers(3, 5), numbers(3, 5, seed=5)
    (tuned_lens_loss(logits, final) + exit_head_loss(logits, final.softmax(-1), 0.5)).backward()
    assert final.grad is None and logits.grad is not None


# ---- several heads that end in one LM head ----


def divergences_one_by_one(states: list[Tensor], final: Tensor, head: Tensor, bias: Tensor | None) -> list[Tensor]:
    """Return each block's KL divergence from the last, agreement with it, and entropy, computed token by token."""
    targets = [probabilities(row) for row in F.linear(final, head, bias)]
    losses, agreements, entropies = [], [], []
    for state in states:
        ps = [probabilities(row) for row in F.linear(state, head, bias)]
        pairs = list(zip(targets, ps, strict=True))
        kls = [sum(t * (t.log() - q.log()) for t, q in zip(target, p, strict=True)) for target, p in pairs]
        losses.append(sum(kls) / len(kls))
        agreements.append(sum(target.index(max(target)) == p.index(max(p)) for target, p in pairs) / len(kls))
        entropies.append(sum(-sum(q * q.log() for q in p) for p in ps) / len(kls))
    return [torch.stack(losses), torch.tensor(agreements, dtype=torch.float64), torch.stack(entropies)]


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("slice_tokens", [2, 128])
def test_sliced_lm_head_divergences_equal_separate_ones(
    has_bias: bool, slice_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exitbench.harness.training.losses.VOCABULARY_SLICE_TOKENS", slice_tokens)
    final, head = numbers(5, 4, seed=1), numbers(6, 4, seed=2)
    bias = numbers(6, seed=3) if has_bias else None
    states = [final.detach().clone().requires_grad_(), numbers(5, 4, seed=4), numbers(5, 4, seed=5)]
    results, expected = (
        lm_head_divergences(states, final, head, bias),
        divergences_one_by_one(states, final, head, bias),
    )
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted)
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    gradients = torch.autograd.grad((results[0] * weights).sum(), states)
    torch.testing.assert_close(gradients, torch.autograd.grad((expected[0] * weights).sum(), states))
    assert results[0][0].item() == pytest.approx(0, abs=1e-12) and results[1][0] == 1
    assert not results[1].requires_grad and not results[2].requires_grad


def test_lm_head_divergences_of_bfloat16_states_are_float32() -> None:
    states = [numbers(6, 9, seed=n).detach().bfloat16() for n in range(2)]
    results = lm_head_divergences(states, states[0], torch.eye(9).bfloat16())
    assert {result.dtype for result in results} == {torch.float32}
