"""LayerSkip's training: rates and weights by its formulas, and the effect of a skipped block on a model."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_families import BLOCKS, FAMILIES, VOCABULARY
from torch import Tensor

from exitbench.harness.training.block_states import decoder_blocks, decoder_states, final_norm
from exitbench.harness.training.losses import head_loss
from exitbench.harness.training.objectives import (
    Curriculum,
    LayerDropout,
    dropout_rates,
    early_exit_weights,
)

BATCH = 6


@pytest.fixture(params=["t5", "llama", "qwen2", "gpt2", "mt5", "mistral", "qwen3", "phi3", "smollm3", "olmo2"])
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(1)
    return FAMILIES[request.param]().train()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch() -> dict[str, Tensor]:
    """Return a batch of texts without padding, with a label at every position."""
    ids = torch.randint(3, VOCABULARY, (BATCH, 5), generator=generator(2))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def skipped(model: Any) -> Tensor:
    """Run the model on a batch; return a mask [L, B] of the sequences that each block left unchanged."""
    seen: list[list[bool]] = []

    def watch(_module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        after = output[0] if isinstance(output, tuple) else output
        seen.append([torch.equal(a, b) for a, b in zip(inputs[0], after, strict=True)])

    hooks = [block.register_forward_hook(watch) for block in decoder_blocks(model)]
    with torch.no_grad():
        model(**batch())
    for hook in hooks:
        hook.remove()
    return torch.tensor(seen)


# ---- rates ----


def test_dropout_rates_rise_exponentially_to_the_last_block() -> None:
    assert dropout_rates(5, 0.2) == pytest.approx([0.2 * (2 ** (layer / 4) - 1) for layer in range(5)])


@given(st.integers(2, 80), st.floats(0.01, 1))
def test_dropout_rates_rise_from_zero_to_the_maximum(blocks: int, largest: float) -> None:
    rates = dropout_rates(blocks, largest)
    assert rates[0] == 0 and rates[-1] == pytest.approx(largest) and rates == sorted(rates)
    assert all(rate <= 1 for rate in rates)


def test_a_single_block_is_never_skipped() -> None:
    assert dropout_rates(1, 0.5) == [0.0]


# ---- weights on a curriculum ----


def weights_by_hand(blocks: int, e_scale: float, active: set[int]) -> list[float]:
    """The paper's normalised weights over active layers, counted from 0."""
    weights = []
    for layer in range(blocks):
        weight = e_scale * sum(range(layer + 1))
        if layer == blocks - 1:
            weight = blocks - 1 + e_scale * sum(range(blocks - 1))
        weights.append(weight if layer in active else 0.0)
    return [weight / sum(weights) for weight in weights]


def test_loss_weights_without_a_curriculum_follow_the_formula() -> None:
    # L = 4, e_scale = 0.5: 0, 0.5, 1.5 and 3 + 1.5.
    assert early_exit_weights(4, 0, 10, 0.5, "none").tolist() == pytest.approx([0, 0.5 / 6.5, 1.5 / 6.5, 4.5 / 6.5])


@pytest.mark.parametrize("step", range(8))
def test_rotational_curriculum_enables_every_third_block_in_turn(step: int) -> None:
    active = {layer for layer in range(7) if layer % 3 == step % 3} | {6}
    got = early_exit_weights(7, step, 100, 0.2, "rotational", 3)
    assert got.tolist() == pytest.approx(weights_by_hand(7, 0.2, active))


@pytest.mark.parametrize(("step", "active"), [(0, 1), (9, 1), (10, 2), (20, 3), (35, 4), (40, 5), (50, 5), (99, 5)])
def test_gradual_curriculum_adds_a_block_every_t_over_2l_steps(step: int, active: int) -> None:
    got = early_exit_weights(5, step, 100, 0.2, "gradual")
    assert got.tolist() == pytest.approx(weights_by_hand(5, 0.2, set(range(5 - active, 5))))


@given(
    st.integers(1, 40), st.integers(0, 99), st.floats(0, 2), st.sampled_from(["none", "rotational", "gradual"]),
    st.integers(1, 8),
)  # fmt: skip
def test_loss_weights_sum_to_1_and_include_the_last_block(
    blocks: int, step: int, e_scale: float, curriculum: Curriculum, rotation: int
) -> None:
    weights = early_exit_weights(blocks, step, 100, e_scale, curriculum, rotation)
    assert weights.shape == (blocks,) and (weights >= 0).all() and weights[-1] > 0
    assert weights.sum().item() == pytest.approx(1, rel=1e-5)


# ---- skipping blocks of a model ----


def test_skipped_sequences_keep_their_state_and_others_are_unchanged(model: Any) -> None:
    own = decoder_states(model, batch())
    with LayerDropout(model, [0, 0, 0, 0.5], generator()):
        got = decoder_states(model, batch())
    keep = (torch.rand(BATCH, generator=generator()) >= 0.5).repeat_interleave(len(own.gold) // BATCH)
    assert 0 < keep.sum() < len(keep)
    wanted = torch.where(keep[:, None], own.normed[-1], final_norm(model)(own.raw[-1]))
    torch.testing.assert_close(got.normed[-1], wanted)
    torch.testing.assert_close(got.raw, own.raw)


def test_training_reads_the_states_after_skipping(model: Any) -> None:
    decoder_states(model, batch())  # transformers has its recording hooks in place from now on
    with LayerDropout(model, [0, 1, 1, 1], generator()):
        states = decoder_states(model, batch())
    torch.testing.assert_close(states.raw, states.raw[:1] * 3)
    torch.testing.assert_close(states.normed, states.normed[:1] * 4)


@pytest.mark.parametrize("model", [pytest.param("t5", marks=pytest.mark.exhaustive), "llama"], indirect=True)
def test_blocks_are_skipped_independently_at_their_rates(model: Any) -> None:
    """Tested for one encoder-decoder and one decoder-only model; the random draws do not depend on the family."""
    rates, passes = [0.0, 0.25, 0.5, 0.75], 150
    with LayerDropout(model, rates, generator()):
        counts = torch.stack([skipped(model) for _ in range(passes)]).double()
    drawn = passes * BATCH
    for seen, rate in zip(counts.mean((0, 2)).tolist(), rates, strict=True):
        assert abs(seen - rate) <= 4 * math.sqrt(rate * (1 - rate) / drawn)
    # Sequences and blocks are drawn independently: no two blocks and no two sequences go together.
    assert torch.corrcoef(counts.transpose(0, 1)[1:].flatten(1)).fill_diagonal_(0).abs().max() < 0.15
    assert torch.corrcoef(counts[:, 2].T).fill_diagonal_(0).abs().max() < 0.35


def test_evaluation_skips_no_blocks_and_draws_no_random_numbers(model: Any) -> None:
    model.eval()
    rng = generator()
    before, wanted = rng.get_state(), model(**batch()).logits
    with LayerDropout(model, [1.0] * BLOCKS, rng):
        torch.testing.assert_close(model(**batch()).logits, wanted)
    assert torch.equal(rng.get_state(), before)


def test_no_blocks_are_skipped_after_the_context_exits_with_an_error(model: Any) -> None:
    wanted = model(**batch()).logits
    with pytest.raises(KeyError), LayerDropout(model, [1.0] * BLOCKS, generator()):
        raise KeyError
    torch.testing.assert_close(model(**batch()).logits, wanted)


@pytest.mark.sampled(2)
def test_restored_generator_state_skips_the_same_blocks(model: Any) -> None:
    rng = generator(5)
    with LayerDropout(model, [0.5] * BLOCKS, rng):
        skipped(model)
        saved = rng.get_state()
        wanted = [skipped(model) for _ in range(3)]
    torch.rand(7)  # the global generator has no say
    restored = torch.Generator()
    restored.set_state(saved)
    with LayerDropout(model, [0.5] * BLOCKS, restored):
        got = [skipped(model) for _ in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    assert not torch.equal(wanted[0], wanted[1])


def test_gradients_bypass_skipped_blocks(model: Any) -> None:
    with LayerDropout(model, [0, 0, 1, 0], generator()):
        states = decoder_states(model, batch())
        head_loss(states.head_input(BLOCKS), states.head, states.gold).backward()
    moved = [sum(p.grad.abs().sum().item() for p in block.parameters()) for block in decoder_blocks(model)]
    assert moved[2] == 0 and min(moved[0], moved[1], moved[3]) > 0


@pytest.mark.sampled(2)
def test_gradients_of_a_batch_equal_those_of_single_sequences(model: Any) -> None:
    def gradients(loss: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(loss, list(decoder_blocks(model).parameters()), materialize_grads=True))

    with LayerDropout(model, [0, 0, 0.5, 0], generator()):
        states = decoder_states(model, batch())
        got = gradients(head_loss(states.head_input(BLOCKS), states.head, states.gold))
    keep = (torch.rand(BATCH, generator=generator()) >= 0.5).tolist()
    losses = []
    for row, kept in enumerate(keep):
        one = {name: tensor[row : row + 1] for name, tensor in batch().items()}
        with LayerDropout(model, [0, 0, 0 if kept else 1, 0], generator()):
            states = decoder_states(model, one)
        losses.append(head_loss(states.head_input(BLOCKS), states.head, states.gold))
    torch.testing.assert_close(got, gradients(torch.stack(losses).mean()), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.sampled(3)
def test_activation_checkpointing_draws_random_numbers_once_per_block(model: Any, checkpointed: bool) -> None:
    if checkpointed:
        model.activation_checkpointing_enable()
    rng = generator()
    with LayerDropout(model, [0.5] * BLOCKS, rng):
        states = decoder_states(model, batch())
        head_loss(states.head_input(BLOCKS), states.head, states.gold).backward()
    wanted = generator()
    for _ in range(BLOCKS):
        torch.rand(BATCH, generator=wanted)
    assert torch.equal(rng.get_state(), wanted.get_state())
