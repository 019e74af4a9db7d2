"""Texts classified with exits, against a slow reference: one text at a time, rules from their definitions, float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from exitbench.harness.cells.texts import EncodedText
from exitbench.harness.engine.checkpoints.exit_head_files import new_off_ramps
from exitbench.harness.engine.encoders.classify import Classified, classify, pooled_states, text_cost
from exitbench.harness.engine.encoders.model import EncoderClassifier, OffRamps, RampKind
from exitbench.harness.engine.encoders.stack import find_encoder_stack
from exitbench.methods.base import Parts
from exitbench.methods.offline import score_states
from exitbench.methods.registry import get_method
from exitbench.methods.sampling import uniform

Array = NDArray[np.float64]
Classifier = Callable[..., Any]
L, D, C, N = 4, 16, 3, 12


@dataclass(frozen=True)
class World:
    """Model with off-ramps, texts, and every block's logits from a slow reference for every text: [N, L, C]."""

    model: EncoderClassifier
    texts: Sequence[EncodedText]
    reference_logits: Array
    states: Array


def texts(seed: int = 3) -> list[EncodedText]:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 13, (N,), generator=draw).tolist()
    rows = [torch.randint(5, 60, (length,), generator=draw).tolist() for length in lengths]
    return [EncodedText(tuple(row), None, seed=100 + place) for place, row in enumerate(rows)]


def world(classifier: Classifier, family: str, kind: RampKind | None = "linear", labels: int = C) -> World:
    lm, own = classifier(family, num_labels=labels), texts()
    ramps = None
    if kind is not None:
        drawn = new_off_ramps(kind, (1, 2), D, labels, torch.Generator().manual_seed(5))
        ramps = OffRamps(kind, (1, 2), {name: 3 * tensor for name, tensor in drawn.items()})
    in_double = {} if ramps is None else {name: value.double().numpy() for name, value in ramps.tensors.items()}
    said, states = [], []
    for text in own:
        hidden = lm(input_ids=torch.tensor([text.ids]), output_hidden_states=True).hidden_states
        # These families read the first token, and have no final norm.
        states.append([state[0, 0].double().numpy() for state in hidden])
        said.append([read_out(lm, in_double, kind, block, hidden[block][0]) for block in range(1, L + 1)])
    return World(EncoderClassifier(find_encoder_stack(lm), ramps), own, np.array(said), np.array(states))


def read_out(lm: Any, ramps: dict[str, Array], kind: RampKind | None, block: int, state_TD: Tensor) -> Array:
    if f"{block}.out.weight" not in ramps:  # the model's own classifier, the shared head
        pooled = lm.bert.pooler(state_TD[None])
        return np.asarray(lm.classifier(pooled)[0].double().numpy())

    def linear(part: str, x: Array) -> Array:
        return np.asarray(x @ ramps[f"{block}.{part}.weight"].T + ramps[f"{block}.{part}.bias"])

    x = state_TD[0].double().numpy()
    if kind == "attention":
        down = np.tanh(linear("down", state_TD.double().numpy()))
        halves = []
        for half in (slice(0, 64), slice(64, 128)):
            query, key, value = (linear(part, down)[:, half] for part in ("query", "key", "value"))
            halves.append(softmax(query[0] @ key.T / math.sqrt(64)) @ value)
        x = linear("proj", np.concatenate(halves))
    if kind != "linear":
        x = np.tanh(linear("pool", x))
    return linear("out", x)


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max())
    return np.asarray(e / e.sum())


def entropy(z: Array) -> float:
    p = softmax(z)
    return float(-sum(share * math.log(share) for share in p if share > 0))


def first(holds: Callable[[Array], bool]) -> Callable[[Array], int]:
    return lambda said: next((block for block in range(1, L) if holds(said[block - 1])), L)


def by_patience(said: Array, needed: int) -> int:
    """Return the block after which `needed` off-ramps in a row have repeated the label of the one before, or else L."""
    confirmed = 0
    for block in range(2, L):
        confirmed = confirmed + 1 if said[block - 1].argmax() == said[block - 2].argmax() else 0
        if confirmed == needed:
            return block
    return L


def by_oracle(said: Array) -> int:
    labels = said.argmax(-1).tolist()
    return labels.index(labels[-1]) + 1


RULES: dict[str, tuple[str, dict[str, Any], Callable[[Array], int]]] = {
    "full": ("full", {}, lambda said: L),
    "static": ("static", {"exit_layer": 2}, lambda said: 2),
    "max-prob": ("max-prob", {"threshold": 0.7}, first(lambda z: softmax(z).max() > 0.7)),
    "entropy": ("entropy", {"threshold": 0.6}, first(lambda z: entropy(z) < 0.6)),
    "deebert": ("deebert", {"threshold": 0.6}, first(lambda z: entropy(z) < 0.6)),
    "fastbert": ("fastbert", {"threshold": 0.5}, first(lambda z: entropy(z) / math.log(C) < 0.5)),
    "patience": ("patience", {"patience": 1}, lambda said: by_patience(said, 1)),
    "pabee": ("pabee", {"patience": 1}, lambda said: by_patience(said, 1)),
    "pabee-2": ("pabee", {"patience": 2}, lambda said: by_patience(said, 2)),
    "oracle": ("oracle", {}, by_oracle),
}


def parts_of(name: str, params: dict[str, Any], fitted: dict[str, Tensor] | None = None) -> Parts:
    return get_method(name).from_params(params).parts(L, fitted or {})


def in_batches_of(world: World, parts: Parts, size: int, **asked: Any) -> list[Classified]:
    return [
        answer
        for start in range(0, N, size)
        for answer in classify(world.model, world.texts[start : start + size], parts, **asked)
    ]


@pytest.fixture(scope="module", params=["linear", "pooler-linear", "attention", None])
def bert(request: pytest.FixtureRequest, classifier: Classifier) -> World:
    return world(classifier, "bert", request.param)


@pytest.mark.parametrize("case", RULES)
def test_exit_layers_and_labels_equal_the_reference_for_every_rule(case: str, bert: World) -> None:
    name, params, rule = RULES[case]
    answers = in_batches_of(bert, parts_of(name, params), size=5)
    expected = [rule(said) for said in bert.reference_logits]
    assert [answer.record.exit_layer for answer in answers] == expected
    assert [answer.label for answer in answers] == [
        int(said[layer - 1].argmax()) for said, layer in zip(bert.reference_logits, expected, strict=True)
    ]
    p = [softmax(said[layer - 1]).max() for said, layer in zip(bert.reference_logits, expected, strict=True)]
    assert [answer.value for answer in answers] == pytest.approx(p, abs=1e-5)


def test_reference_exit_layers_differ_between_texts(classifier: Classifier) -> None:
    """If all exits were equal, the comparisons above would show little."""
    said = world(classifier, "bert").reference_logits
    for case, (name, _, rule) in RULES.items():
        if name not in ("full", "static") and case != "pabee-2":  # of which all three off-ramps would have to agree
            assert len({rule(one) for one in said}) > 1, case


def test_random_exit_layers_increase_with_the_draw_from_each_texts_seed(bert: World) -> None:
    answers = in_batches_of(bert, parts_of("random", {"mean_exit": 2.5, "seed": 4}), size=5)
    draws = [uniform(4, text.seed, 1) for text in bert.texts]
    by_draw = [
        answer.record.exit_layer for _, answer in sorted(zip(draws, answers, strict=True), key=lambda pair: pair[0])
    ]
    assert by_draw == sorted(by_draw) and len(set(by_draw)) > 1


def test_learned_gate_exits_by_the_sigmoid_of_a_linear_map_of_the_state(bert: World) -> None:
    draw = torch.Generator().manual_seed(2)
    fitted = {"weight": torch.randn(D, generator=draw), "bias": torch.tensor(0.1)}
    answers = in_batches_of(bert, parts_of("berxit", {"threshold": 0.6}, fitted), size=5)
    w = fitted["weight"].double().numpy()
    scores = 1 / (1 + np.exp(-(bert.states @ w + 0.1)))
    expected = [next((block for block in range(1, L) if own[block] > 0.6), L) for own in scores]
    assert [answer.record.exit_layer for answer in answers] == expected and len(set(expected)) > 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [1, 5, N])
@pytest.mark.parametrize("case", ["max-prob", "pabee", "oracle"])
def test_batch_size_does_not_change_exit_records(case: str, size: int, bert: World) -> None:
    name, params, _ = RULES[case]
    alone, together = (in_batches_of(bert, parts_of(name, params), many) for many in (1, size))
    apart, mixed = ([(one.record._replace(score=None), one.blocks_read) for one in some] for some in (alone, together))
    assert apart == mixed


def test_pabee_with_batch_whole_exits_when_every_rows_prediction_repeats(bert: World) -> None:
    """PABEE's code counts a block only if the whole batch has the same predictions as after the previous block."""
    answers = in_batches_of(bert, parts_of("pabee", {"patience": 1, "batch": "whole"}), size=3)
    for start in range(0, N, 3):
        labels = bert.reference_logits[start : start + 3].argmax(-1)
        expected = next((b for b in range(2, L) if (labels[:, b - 1] == labels[:, b - 2]).all()), L)
        assert {answer.record.exit_layer for answer in answers[start : start + 3]} == {expected}


def test_deebert_with_nan_underflow_never_exits_when_a_probability_rounds_to_zero(classifier: Classifier) -> None:
    result = world(classifier, "bert")
    assert result.model.off_ramps is not None
    bias = torch.tensor([200.0, 0.0, 0.0])  # p = (1, 0, 0) in single precision: as sure as can be
    result.model.off_ramps.tensors["1.out.bias"].copy_(bias)
    result.model.off_ramps.tensors["2.out.bias"].copy_(bias)
    own_head = parts_of(
        "deebert", {"threshold": 0.0, "rule": "per-block", "levels": [0.3, 0.3, 0.0], "underflow": "nan"}
    )
    assert {answer.record.exit_layer for answer in in_batches_of(result, own_head, N)} == {L}
    safe = parts_of("deebert", {"threshold": 0.3})
    assert {answer.record.exit_layer for answer in in_batches_of(result, safe, N)} == {1}


@pytest.mark.parametrize("tolerance", [0.3, 1.0])
def test_pabee_counts_regression_outputs_within_the_tolerance_as_equal(
    tolerance: float, classifier: Classifier
) -> None:
    result = world(classifier, "bert", "linear", labels=1)
    answers = in_batches_of(result, parts_of("pabee", {"patience": 1, "tolerance": tolerance}), size=5)
    for said, answer in zip(result.reference_logits[:, :, 0], answers, strict=True):
        expected = next((b for b in range(2, L) if abs(said[b - 1] - said[b - 2]) < tolerance), L)
        assert answer.record.exit_layer == expected
        assert answer.value == pytest.approx(said[expected - 1], abs=1e-4)
    assert len({answer.record.exit_layer for answer in answers}) > 1


def test_every_evaluated_block_is_recorded_up_to_the_exit(bert: World) -> None:
    for said, answer in zip(
        bert.reference_logits, in_batches_of(bert, parts_of("max-prob", {"threshold": 0.7}), 5), strict=True
    ):
        blocks = list(range(1, answer.record.exit_layer + 1))
        assert [one.block for one in answer.readings] == answer.blocks_read == blocks
        assert [one.exited for one in answer.readings] == [block == blocks[-1] for block in blocks]
        assert answer.record.score == answer.readings[-1].score
        assert answer.record.head_rows == len(blocks) * bert.model.vocab_size
        for one in answer.readings:
            assert one.label == said[one.block - 1].argmax()
            assert one.value == pytest.approx(softmax(said[one.block - 1]).max(), abs=1e-5)
            assert (one.score is None) == (one.block == L)


@pytest.mark.parametrize("case", RULES)
def test_untraced_answers_equal_traced_answers(case: str, bert: World) -> None:
    name, params, _ = RULES[case]
    traced, plain = (in_batches_of(bert, parts_of(name, params), 5, traced=traced) for traced in (True, False))
    assert [(a.record.exit_layer, a.label) for a in traced] == [(a.record.exit_layer, a.label) for a in plain]
    assert [a.value for a in traced] == pytest.approx([a.value for a in plain], abs=1e-6)  # rows are read out together
    assert all(answer.readings == [] for answer in plain)


def test_scores_of_stored_states_equal_those_of_a_run(bert: World) -> None:
    parts = parts_of("deebert", {"threshold": 0.0})
    states_LND = pooled_states(bert.model, bert.texts)
    np.testing.assert_allclose(states_LND[..., :D].double().numpy().swapaxes(0, 1), bert.states, atol=1e-5)
    scores_LN, emitted_LN = score_states(parts, bert.model, states_LND)
    for place, answer in enumerate(in_batches_of(bert, parts, N)):
        noted = [one.score for one in answer.readings[:-1]]
        assert noted == pytest.approx(scores_LN[:-1, place].tolist(), abs=1e-5)
        assert [one.label for one in answer.readings] == emitted_LN[:, place].tolist()


def test_non_finite_logits_raise_an_error(classifier: Classifier) -> None:
    result = world(classifier, "bert")
    assert result.model.off_ramps is not None
    result.model.off_ramps.tensors["1.out.bias"].fill_(math.nan)
    with pytest.raises(ArithmeticError, match="after block 1 is not finite"):
        in_batches_of(result, parts_of("max-prob", {}), N)


@pytest.mark.parametrize("states", ["raw", "normed"])
def test_gates_on_states_ignore_the_attention_of_off_ramps(states: str, classifier: Classifier) -> None:
    params = {"threshold": 1.0, "states": states}
    with_attention, without = (
        [
            [one.score for one in answer.readings]
            for answer in in_batches_of(world(classifier, "bert", kind), parts_of("calm-saturation", params), 5)
        ]
        for kind in ("attention", "linear")
    )
    assert with_attention == without and any(score for scores in without for score in scores[1:-1])


@pytest.mark.parametrize(("family", "options"), [("modernbert", {"classifier_pooling": "mean"}), ("bert", {})])
def test_attention_of_off_ramps_reads_normed_states_of_the_texts_own_tokens(
    family: str, options: dict[str, Any], classifier: Classifier
) -> None:
    """In a batch with padding, each text has its own attention output, of states after the final norm."""
    stack = find_encoder_stack(classifier(family, **options))
    ramps = OffRamps("attention", (1, 2), new_off_ramps("attention", (1, 2), D, C, torch.Generator().manual_seed(5)))
    model = EncoderClassifier(stack, ramps)
    states_LBS = pooled_states(model, texts())
    assert states_LBS.shape == (L + 1, N, D + 128)
    for place, text in enumerate(texts()):
        hidden_BTD, context = model.embed([text])
        for block in (1, 2):
            hidden_BTD = stack.block(block, hidden_BTD, context)
            output = ramps.attention_output(block, stack.final_norm(hidden_BTD), torch.ones(1, len(text.ids)))
            assert torch.allclose(states_LBS[block, place, D:], output[0], atol=1e-5)
            assert torch.allclose(states_LBS[block, place, :D], stack.pooled(hidden_BTD, context)[0], atol=1e-5)


# ------------------------------------------------------------------------------------------------------- costs


def test_block_flops_equal_those_of_its_matrix_products(classifier: Classifier) -> None:
    """A block has four D x D products, two D x F products, and attention's two products over T x T."""
    model = world(classifier, "bert").model
    inner = 32
    for length in (3, 10):
        expected = 2 * length * (4 * D * D + 2 * D * inner) + 2 * 2 * length * length * D
        assert model.block_cost(length).matmul_flops == pytest.approx(expected, rel=1e-6)


def test_text_flops_are_those_of_its_blocks_and_exit_heads(bert: World) -> None:
    parts, length = parts_of("static", {"exit_layer": 2}), 7
    cost = text_cost(bert.model, parts, length, 2, [2])
    products = bert.model.exit_head_numel(2)
    ramps = bert.model.off_ramps
    if ramps is not None and ramps.kind == "attention":
        assert products == 128 * 128 + C * 128  # pool, out
        products += attention_products(length)
    assert cost.matmul_flops == pytest.approx(2 * bert.model.block_cost(length).matmul_flops + 2 * products)


def attention_products(length: int) -> int:
    """Return the multiplications of an attention: down, key and value of all tokens, query and proj of one."""
    return length * (128 * D + 2 * 128 * 128) + 2 * 128 * 128 + 2 * length * 128


@pytest.mark.parametrize(("name", "params"), [("calm-saturation", {}), ("random", {"mean_exit": 2.5, "seed": 4})])
def test_attention_counts_wherever_it_runs(
    name: str, params: dict[str, Any], classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs once for every block that is gated or remembered, whether or not a gate reads logits."""
    model, parts, (text, *_) = world(classifier, "bert", "attention").model, parts_of(name, params), texts()
    calls: list[int] = []
    run = OffRamps.attention_output

    def counted(ramps: OffRamps, block: int, *given: Tensor) -> Tensor:
        calls.append(block)
        return run(ramps, block, *given)

    monkeypatch.setattr(OffRamps, "attention_output", counted)
    (answer,) = classify(model, [text], parts, traced=False)
    assert len(calls) == len(set(calls)), "once per block"
    layer = answer.record.exit_layer
    ran = [block for block in calls if block in model.exit_blocks]
    costs = [text_cost(one, parts, 7, layer, []) for one in (model, world(classifier, "bert", "linear").model)]
    assert costs[0].matmul_flops - costs[1].matmul_flops == pytest.approx(2 * len(ran) * attention_products(7))
    assert len(ran) == min(2, layer), "blocks 1 and 2 have off-ramps"
