"""Trained gates: losses and gradients compared with loops, labels of each block, training, and features of each block.

The model of these tests uses a state as its logits, so that a block predicts the index of the largest number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from exitbench.methods.base import FitData
from exitbench.methods.exit_networks import LEAST_PRIOR, LOSSES, Examples, LossName, Perceptron, TrainedGate, exit_loss
from exitbench.methods.offline import score_states
from exitbench.methods.registry import get_method

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
L, D = 6, 4
NAMES = ("calm-classifier", "mee-mlp3", "mee-lstm")
SMALL: dict[str, dict[str, Any]] = {"calm-classifier": {}, "mee-mlp3": {}, "mee-lstm": {"hidden": 8}}


class Identity:
    """Fake model: logits are the state itself, and the final norm doubles a state."""

    n_blocks = L
    d_model = vocab_size = D

    def final_normed(self, hidden: Tensor) -> Tensor:
        return 2 * hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden


MODEL: Any = Identity()


def made(name: str, **params: Any) -> TrainedGate:
    method = get_method(name)(**{**SMALL[name], **params})
    assert isinstance(method, TrainedGate)
    return method


# ------------------------------------------------------------------------------------------ losses


def log_softmax(pair: Array) -> Array:
    return np.asarray(pair - np.log(np.exp(pair - pair.max()).sum()) - pair.max())


def calm_loss(logits: Array, right: Labels) -> float:
    """Return the mean over blocks of the cross-entropy with balanced labels."""
    blocks = []
    for block in range(len(right)):
        positive = sum(right[block]) / len(right[block])
        total = weights = 0.0
        for token in range(len(right[block])):
            label = right[block, token]
            weight = 1 - positive if label else positive
            total += weight * -log_softmax(logits[block, token])[label]
            weights += weight
        blocks.append(total / weights if weights else 0.0)
    return sum(blocks) / len(blocks)


def adjusted_loss(logits: Array, right: Labels) -> float:
    """Return the cross-entropy of logits adjusted by the labels' frequencies over all blocks and tokens."""
    positive = right.sum() / right.size
    log_prior = np.log([max(1 - positive, LEAST_PRIOR), max(positive, LEAST_PRIOR)])
    total = 0.0
    for block in range(len(right)):
        for token in range(len(right[block])):
            total += -log_softmax(logits[block, token] + log_prior)[right[block, token]]
    return float(total / right.size)


def geometric_loss(logits: Array, right: Labels) -> float:
    """Return the mean over tokens of -log P(exit at the first right block), or of -log P(no exit) if none is right."""
    total = 0.0
    for token in range(right.shape[1]):
        for block in range(len(right)):
            stay, leave = log_softmax(logits[block, token])
            if right[block, token]:
                total -= leave
                break
            total -= stay
    return total / right.shape[1]


SLOW: dict[LossName, Callable[[Array, Labels], float]] = {
    "calm": calm_loss,
    "logit-adjusted": adjusted_loss,
    "free-code": adjusted_loss,
    "geometric": geometric_loss,
}


def loss_and_gradient(name: LossName, logits: Array, right: Labels) -> tuple[float, Array]:
    """Return the project's loss and its gradient."""
    with torch.enable_grad():
        logits_MNC = torch.tensor(logits, requires_grad=True)
        loss = exit_loss(name, logits_MNC, Examples(torch.empty(0), torch.tensor(right)))
        (gradient,) = torch.autograd.grad(loss, logits_MNC)
    return loss.item(), gradient.numpy()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("share", [0.5, 0.9, 0.05])
def test_loss_and_gradient_equal_the_reference_loops(name: LossName, share: float) -> None:
    draw, step = np.random.default_rng(0), 1e-5
    logits, right = draw.normal(size=(4, 7, 2)) * 2, (draw.random((4, 7)) < share).astype(np.int64)
    loss, gradient = loss_and_gradient(name, logits, right)
    assert loss == pytest.approx(SLOW[name](logits, right), rel=1e-5, abs=1e-7)
    for place in np.ndindex(logits.shape):
        up, down = logits.copy(), logits.copy()
        up[place] += step
        down[place] -= step
        slope = (SLOW[name](up, right) - SLOW[name](down, right)) / (2 * step)
        assert gradient[place] == pytest.approx(slope, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("label", [0, 1])
def test_single_class_batch_has_a_finite_loss_and_gradient(name: LossName, label: int) -> None:
    logits = np.random.default_rng(1).normal(size=(3, 5, 2)) * 30
    right = np.full((3, 5), label)
    loss, gradient = loss_and_gradient(name, logits, right)
    assert math.isfinite(loss)
    assert np.isfinite(gradient).all()
    assert loss == pytest.approx(SLOW[name](logits, right), rel=1e-4, abs=1e-6)


def test_single_class_block_contributes_no_calm_loss_or_gradient() -> None:
    logits = np.random.default_rng(2).normal(size=(2, 6, 2))
    right = np.array([[1] * 6, [1, 0, 0, 1, 0, 0]])
    loss, gradient = loss_and_gradient("calm", logits, right)
    assert loss == pytest.approx(calm_loss(logits[1:], right[1:]) / 2, rel=1e-5)
    assert not gradient[0].any()


def test_losses_equal_values_computed_by_hand() -> None:
    """P(exit) is 1/2 at block 1 and 3/4 at block 2. The first token is right from block 1 on, the second at block 2."""
    logits = np.array([[[0.0, 0.0]] * 2, [[0.0, math.log(3)]] * 2])
    right = np.array([[1, 0], [1, 1]])
    assert loss_and_gradient("geometric", logits, right)[0] == pytest.approx(
        -(math.log(1 / 2) + math.log(1 / 2 * 3 / 4)) / 2
    )
    assert loss_and_gradient("calm", logits, right)[0] == pytest.approx(math.log(2) / 2)  # block 2 has one class
    never = np.array([[0, 0], [0, 0]])
    assert loss_and_gradient("geometric", logits, never)[0] == pytest.approx(-math.log(1 / 2 * 1 / 4))
    # Priors 1/4 and 3/4: odds of exit 3 and 9.
    pooled = -(math.log(3 / 4) + math.log(1 / 4) + 2 * math.log(9 / 10)) / 4
    assert loss_and_gradient("logit-adjusted", logits, right)[0] == pytest.approx(pooled, rel=1e-6)


# ------------------------------------------------------------------------------------------ labels and features


def fit_data(n_tokens: int = 40, seed: int = 0) -> FitData:
    """Return fit data in which neighboring blocks often agree, because states are cumulative sums."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(L + 1, n_tokens, D, generator=generator).cumsum(0)
    final = states[-1].argmax(-1)
    gold = torch.randint(0, D, (n_tokens,), generator=generator)
    return FitData(MODEL, states, final, gold, torch.arange(n_tokens) // 4)


FIRST = {"calm-classifier": 1, "mee-mlp3": 2, "mee-lstm": 1}


def labels(method: TrainedGate, data: FitData) -> dict[int, list[int]]:
    """Return for each block the label of each token: 1 if the block's prediction is right."""
    right_MN = method._examples(data).right_MN
    first = FIRST[method.name]
    assert len(right_MN) == L - first, "up to block L - 1"
    return {first + at: row.tolist() for at, row in enumerate(right_MN)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", ["final-argmax", "gold-token"])
def test_block_label_is_1_exactly_if_it_predicts_the_target(name: str, target: str) -> None:
    data = fit_data()
    choices = {block: data.states_LND[block].argmax(-1).tolist() for block in range(1, L + 1)}
    goals = choices[L] if target == "final-argmax" else data.gold_token_N.tolist()
    assert goals != choices[L] or target == "final-argmax"
    for loss in ("calm", "logit-adjusted", "geometric"):
        for block, right in labels(made(name, target=target, loss=loss), data).items():
            assert right == [int(choice == goal) for choice, goal in zip(choices[block], goals, strict=True)]


@pytest.mark.parametrize("name", NAMES)
def test_free_code_labels_are_shifted_by_one_block(name: str) -> None:
    """The published code's list of logits is shifted by one: entry i has layer i - 1, and entry 0 the last layer.

    It compares them with its last entry, which is the penultimate layer, not full depth.
    """
    data = fit_data()
    of_layer = [state.argmax(-1).tolist() for state in data.states_LND[1:]]  # 0-based
    entries = [of_layer[i - 1] for i in range(L)]
    reference = entries[L - 1]
    assert reference == of_layer[L - 2] != of_layer[L - 1], "(a) the penultimate layer, not the last"
    assert entries[0] == of_layer[L - 1], "(c) the first entry is the last layer"
    result = labels(made(name, loss="free-code"), data)
    for block, right in result.items():  # (b) features of a layer meet the label of the one before
        assert right == [int(a == b) for a, b in zip(entries[block - 1], reference, strict=True)]
    assert result != labels(made(name, loss="logit-adjusted"), data)


@pytest.mark.parametrize("name", NAMES)
def test_features_are_normed_states_of_the_expected_blocks(name: str) -> None:
    data = fit_data()
    features = made(name)._examples(data).features_MNF
    normed = 2 * data.states_LND
    for at, block in enumerate(range(FIRST[name], L)):
        back = (2, 1, 0) if name == "mee-mlp3" else (0,)
        expected = torch.cat([normed[block - n] for n in back], dim=-1)
        assert torch.equal(features[at], expected)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("calm-classifier", {}),
        ("calm-classifier", {"network": "mlp"}),
        ("mee-mlp3", {"min_exit": 1}),
        ("mee-lstm", {"min_exit": 1}),
        ("mee-lstm", {"min_exit": 2, "every": 3, "layers": 1}),
    ],
)
def test_gate_score_equals_the_networks_exit_probability(name: str, params: dict[str, Any]) -> None:
    method, data = made(name, **params), fit_data()
    torch.manual_seed(3)
    network = method.build_network(D)
    parts = method.parts(L, network.state_dict())
    scores, _ = score_states(parts, MODEL, data.states_LND)
    expected = torch.softmax(network(method._examples(data).features_MNF), dim=-1)[..., 1]
    for block in parts.gate_blocks(L):
        if block < FIRST[name]:
            assert not scores[block - 1].any(), "fewer than three states: 0"
        else:
            torch.testing.assert_close(scores[block - 1], expected[block - FIRST[name]], atol=1e-6, rtol=1e-5)
    assert expected.std() > 0.005


# ------------------------------------------------------------------------------------------ training


def separable(n_tokens: int = 400) -> FitData:
    """Return fit data in which a block is right exactly if the first number of its state is positive."""
    generator = torch.Generator().manual_seed(9)
    states = torch.randn(L + 1, n_tokens, D, generator=generator)
    states[..., 1:] = states[..., 1:].clamp(-0.5, 0.5) * 0.2 - 0.5
    states[..., 1] = 0.0
    states[L, :, 0] = 1.0
    final = states[-1].argmax(-1)
    assert not final.any()
    return FitData(MODEL, states, final, final, torch.arange(n_tokens) // 8)


@pytest.mark.parametrize(
    ("name", "loss"),
    [(name, loss) for name in NAMES for loss in LOSSES if name == "calm-classifier" or loss in ("calm", "geometric")],
)
def test_training_lowers_the_held_out_loss(name: str, loss: str) -> None:
    data = separable()
    if loss == "free-code":  # what it is taught at block l shows in block l - 1: give it states that do not move
        data.states_LND[1:L] = data.states_LND[1]
    method = made(name, loss=loss, epochs=25, learning_rate=0.02)
    shares: list[float] = []
    curve = method.fit(data, shares.append).curve
    assert [row["epoch"] for row in curve] == list(range(1, 26))
    assert shares == sorted(shares)
    assert shares[-1] == 1
    if loss == "free-code":  # block 1 is taught the opposite of the others here
        assert curve[-1]["held_out_loss"] < curve[0]["held_out_loss"]
        return
    assert curve[-1]["held_out_loss"] < 0.5 * curve[0]["held_out_loss"]
    assert curve[-1]["train_loss"] < 0.5 * curve[0]["train_loss"]
    if loss != "geometric":  # which is taught the first right block only
        assert curve[-1]["held_out_accuracy"] > 0.9


@pytest.mark.parametrize(
    ("name", "params"), [("calm-classifier", {}), ("calm-classifier", {"network": "mlp"}), ("mee-mlp3", {})]
)
def test_perceptron_output_equals_the_trained_module(name: str, params: dict[str, Any]) -> None:
    network = made(name, **params).build_network(D)
    x_AF = torch.randn(5, network[0].in_features)
    assert torch.equal(Perceptron(network.state_dict())(x_AF), network(x_AF))


def test_training_curve_ends_with_the_fitted_networks_held_out_loss() -> None:
    data, method = fit_data(), made("calm-classifier", epochs=2)
    fitted = method.fit(data, lambda share: None)
    _, unseen = data.split(0.2)
    examples = method._examples(unseen)
    logits = Perceptron(fitted.tensors)(examples.features_MNF)
    last = fitted.curve[-1]
    assert last["held_out_loss"] == pytest.approx(
        calm_loss(logits.double().numpy(), examples.right_MN.numpy()), rel=1e-5
    )
    hits = (logits.argmax(-1) == examples.right_MN).double().mean()
    assert last["held_out_accuracy"] == pytest.approx(hits.item())


@pytest.mark.parametrize("name", NAMES)
def test_fit_depends_only_on_its_seed_and_not_on_global_rng_state(name: str) -> None:
    data, fits = fit_data(600), []
    for noise in (1, 2):
        torch.manual_seed(noise)
        before = torch.get_rng_state()
        fits.append(made(name, epochs=2, fit_seed=5).fit(data, lambda share: None))
        assert torch.equal(torch.get_rng_state(), before), "fitting draws from a generator of its own"
    assert fits[0].curve == fits[1].curve
    assert all(torch.equal(value, fits[1].tensors[key]) for key, value in fits[0].tensors.items())
    other = made(name, epochs=2, fit_seed=6).fit(data, lambda share: None)
    assert any(not torch.equal(value, other.tensors[key]) for key, value in fits[0].tensors.items())


def test_fitting_does_not_modify_data_or_train_on_held_out_documents() -> None:
    data = fit_data()
    before = data.states_LND.clone()
    fitted = made("mee-mlp3", epochs=1).fit(data, lambda share: None)
    assert torch.equal(data.states_LND, before)
    data.states_LND[:, data.document_N >= 8] = 7.0  # the last two of ten documents
    again = made("mee-mlp3", epochs=1).fit(data, lambda share: None)
    assert all(torch.equal(value, again.tensors[key]) for key, value in fitted.tensors.items())
    assert fitted.curve[0]["train_loss"] == again.curve[0]["train_loss"]
    assert fitted.curve[0]["held_out_loss"] != again.curve[0]["held_out_loss"]


def test_epsilon_thresholds_of_a_trained_gate_use_held_out_documents() -> None:
    data = fit_data()
    method = made("calm-classifier", epochs=1, rule="epsilon", epsilon=0.0, decay="none")
    fitted = method.fit(data, lambda share: None)
    scores, _ = score_states(method.parts(L, fitted.tensors), MODEL, data.states_LND[:, data.document_N >= 8])
    for block in range(1, L):
        smallest = scores[block - 1].min()
        level = method.parts(L, fitted.tensors).threshold.value(block, 1, 10)
        assert level < smallest
        assert level == pytest.approx(smallest.item(), abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_fit_params_exclude_threshold_and_decoding_parameters(name: str) -> None:
    """A sweep over thresholds must not train the same network repeatedly."""
    asked = made(name).fit_params()
    assert asked["loss"] == "calm"
    for change in ({"threshold": 0.1}, {"kv_policy": "exact"}, {"min_exit": 2}, {"every": 2}, {"decay": "none"}):
        assert made(name, **change).fit_params() == asked
    if name == "mee-lstm":
        assert made(name, variant="code").fit_params() == asked, "both variants are taught alike"
    for change in ({"loss": "geometric"}, {"target": "gold-token"}, {"epochs": 1}, {"fit_seed": 1}):
        assert made(name, **change).fit_params() != asked
