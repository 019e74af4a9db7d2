"""Losses over a classifier's blocks, compared with slow implementations of their definitions."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from exitbench.errors import UserError
from exitbench.harness.training.classifier_objectives import answer_loss, make_classifier_objective
from exitbench.harness.training.recipe import Recipe, load_recipe

WriteRecipe = Callable[..., Path]
BATCH = {
    "input_ids": torch.tensor([[5, 6, 7, 0], [8, 9, 10, 11]]),
    "attention_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]),
    "token_type_ids": torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1]]),
    "labels": torch.tensor([1, 0]),
}


def bert(n_labels: int = 2) -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=3, num_attention_heads=4, intermediate_size=32,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=n_labels, initializer_range=0.5,
    )  # fmt: skip
    return BertForSequenceClassification(config).eval()


def states(model: BertForSequenceClassification) -> list[Tensor]:
    """Return the states of the first token after each block, by transformers' own pass, each [B, D]."""
    inputs = {name: tensor for name, tensor in BATCH.items() if name != "labels"}
    result: list[Tensor] = [h[:, 0] for h in model(**inputs, output_hidden_states=True).hidden_states[1:]]
    return result


def pooled(model: BertForSequenceClassification, state_BD: Tensor) -> Tensor:
    dense = model.bert.pooler.dense
    return torch.tanh(state_BD @ dense.weight.T + dense.bias)


def by_own_classifier(model: BertForSequenceClassification) -> list[Tensor]:
    return [model.classifier(pooled(model, state)) for state in states(model)]


def recipe_of(write_recipe: WriteRecipe, loss: str, kind: str) -> Recipe:
    path = write_recipe(('"weighted"', f'"{loss}"'), ('"pooler-linear"', f'"{kind}"'))
    if loss in ("two-stage", "self-distillation"):  # what a start is plays no role here
        before, _, rest = path.read_text().partition("[tokenizer]")
        path.write_text(f'{before}[start]\ncheckpoint = "x"\n[off_ramps]{rest.partition("[off_ramps]")[2]}')
    return load_recipe(path)


def loss_of(recipe: Recipe, model: PreTrainedModel, step: int = 0) -> float:
    objective, _ = make_classifier_objective(recipe, model)
    return float(objective(model, BATCH, step)[0])


@pytest.mark.parametrize(
    ("loss", "weights"), [("weighted", [1 / 6, 2 / 6, 3 / 6]), ("branchynet", [1, 1, 1]), ("uniform", [1 / 3] * 3)]
)
def test_shared_head_loss_is_the_weighted_sum_over_all_blocks(
    loss: str, weights: list[float], write_recipe: WriteRecipe
) -> None:
    model = bert()
    slow = [F.cross_entropy(logits, BATCH["labels"]).item() for logits in by_own_classifier(model)]
    wanted = sum(weight * one for weight, one in zip(weights, slow, strict=True))
    assert loss_of(recipe_of(write_recipe, loss, "shared-head"), model) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("kind", ["linear", "pooler-linear", "shared-pooler"])
def test_off_ramp_loss_reads_all_blocks_but_the_last_by_off_ramps(kind: str, write_recipe: WriteRecipe) -> None:
    model = bert()
    objective, readers = make_classifier_objective(recipe_of(write_recipe, "uniform", kind), model)
    assert readers.learned is not None
    tensors = {name.replace("/", "."): tensor for name, tensor in readers.learned.items()}
    total = F.cross_entropy(by_own_classifier(model)[-1], BATCH["labels"])
    for block, state in enumerate(states(model)[:-1], start=1):
        read = state
        if kind == "shared-pooler":
            read = pooled(model, state)
        if kind == "pooler-linear":
            read = torch.tanh(state @ tensors[f"{block}.pool.weight"].T + tensors[f"{block}.pool.bias"])
        logits = read @ tensors[f"{block}.out.weight"].T + tensors[f"{block}.out.bias"]
        total = total + F.cross_entropy(logits, BATCH["labels"])
    assert float(objective(model, BATCH, 0)[0]) == pytest.approx(float(total) / 3, rel=1e-5)


def test_alternating_loss_switches_between_the_last_block_and_all_blocks(
    write_recipe: WriteRecipe,
) -> None:
    model, recipe = bert(), recipe_of(write_recipe, "alternating", "pooler-linear")
    last = F.cross_entropy(by_own_classifier(model)[-1], BATCH["labels"]).item()
    every = 3 * loss_of(recipe_of(write_recipe, "uniform", "pooler-linear"), model)
    # Steps are counted from 0 here, from 1 in the paper.
    assert [loss_of(recipe, model, step) for step in range(4)] == pytest.approx([last, every, last, every], rel=1e-5)


def test_two_stage_loss_sums_off_ramp_losses_and_has_no_gradient_in_the_model(
    write_recipe: WriteRecipe,
) -> None:
    model = bert()
    objective, readers = make_classifier_objective(recipe_of(write_recipe, "two-stage", "pooler-linear"), model)
    loss, _ = objective(model, BATCH, 0)
    *off_ramps, _ = readers.logits(BATCH)
    assert float(loss) == pytest.approx(sum(F.cross_entropy(one, BATCH["labels"]).item() for one in off_ramps))
    loss.backward()
    assert readers.learned is not None and all(tensor.grad is not None for tensor in readers.learned.values())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("kind", ["pooler-linear", "attention"])
def test_self_distillation_loss_is_the_divergence_of_off_ramps_from_the_last_block(
    kind: str, write_recipe: WriteRecipe
) -> None:
    model = bert()
    objective, readers = make_classifier_objective(recipe_of(write_recipe, "self-distillation", kind), model)
    *off_ramps, last = readers.logits(BATCH)
    slow = 0.0
    for logits in off_ramps:
        for row, taught in zip(logits.softmax(-1).tolist(), last.softmax(-1).tolist(), strict=True):
            slow += sum(t * math.log(t / s) for s, t in zip(row, taught, strict=True)) / 2
    assert float(objective(model, BATCH, 0)[0]) == pytest.approx(slow, rel=1e-4)


def test_self_distillation_is_refused_for_a_regression(write_recipe: WriteRecipe) -> None:
    with pytest.raises(UserError, match="self-distillation is of probabilities, which a rating has none of"):
        make_classifier_objective(recipe_of(write_recipe, "self-distillation", "pooler-linear"), bert(1))


def test_rating_loss_is_the_mean_squared_error() -> None:
    assert float(answer_loss(torch.tensor([[1.0], [4.0]]), torch.tensor([2.0, 2.0]))) == pytest.approx(2.5)
