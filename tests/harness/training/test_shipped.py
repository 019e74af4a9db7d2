"""Bundled models are small, were trained with the current recipes and data, and reach the quality in their cards."""

import functools
import json
from pathlib import Path

import pytest
import torch

from exitbench.harness.engine.checkpoints.exit_head_files import read_exit_blocks
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.engine.encoders.stack import find_encoder_stack
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.training import Recipe, data, find_trained, load_recipe
from exitbench.harness.training.classifier_objectives import Readers, predictions
from exitbench.harness.training.classifiers import encode_texts, pad_texts, read_classifier, task_of
from exitbench.harness.training.data import cut_batches, encode, pad, read_text
from exitbench.harness.training.models import is_causal, read_model
from exitbench.harness.training.objectives import block_quality
from exitbench.harness.training.store import SHIPPED, TRAINING_VERSION
from exitbench.results.spool.schema import TRAINING_LOG_FILE

RECIPES = [
    load_recipe(entry.recipe) for entry in load_suite("builtin").models if entry.recipe and entry.runs_task("squad")
]
ALIKE = {"builtin-vanilla", "builtin-free"}
"""Models trained like `builtin-weighted`, with another loss."""
ENCODERS = [load_recipe(entry.recipe) for entry in load_suite("builtin-encoder").models if entry.recipe]
MEGABYTE = 2**20
read_pairs = functools.cache(data.read_pairs)
"""Cached reader, because most recipes have the same large sources."""


def shipped(recipe: Recipe) -> Path:
    folder = find_trained(recipe, SHIPPED)
    assert folder is not None, f"{recipe.name} changed: `exitbench train builtin`, then copy its folder"
    return folder


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if not path.name.startswith("."))


def test_bundled_models_are_exactly_those_of_the_default_suite_and_encoders() -> None:
    folders = {shipped(recipe).name for recipe in (*RECIPES, *ENCODERS)}
    assert folders == {path.name for path in SHIPPED.iterdir() if size(path)}  # a digest of ours may stay behind


def test_bundled_models_stay_within_the_size_limits() -> None:
    sizes = [size(shipped(recipe)) for recipe in RECIPES]
    of_encoders = [size(shipped(recipe)) for recipe in ENCODERS]
    assert max(sizes) <= 6 * MEGABYTE
    assert max(of_encoders) <= MEGABYTE
    assert sum(sizes) + sum(of_encoders) <= 25 * MEGABYTE


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(recipe, id=recipe.name, marks=pytest.mark.exhaustive if recipe.name in ALIKE else ())
        for recipe in RECIPES
    ],
)
def test_bundled_model_matches_current_data_and_code_and_its_card(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shipped(recipe)
    monkeypatch.setattr(data, "read_pairs", read_pairs)
    card = json.loads((folder / "card.json").read_text())
    assert recipe.kind is not None
    text = read_text(recipe, None, recipe.kind)
    assert card["data_sha256"] == text.sha256
    assert card["training_version"] == TRAINING_VERSION
    assert (folder / TRAINING_LOG_FILE).is_file()
    assert load_checkpoint(folder, device="meta").model.n_blocks >= 8
    assert bool(recipe.exit_heads) == bool(read_exit_blocks(folder))

    torch.set_num_threads(1)
    model, tokenizer = read_model(folder)
    batches = cut_batches(encode(text.validation, tokenizer, recipe.optimisation.max_tokens), 2000)
    accuracy, loss_nats = block_quality(model, [pad(batch, causal=is_causal(model)) for batch in batches])
    assert accuracy == pytest.approx(card["validation"]["token_accuracy"], abs=0.002)
    assert loss_nats == pytest.approx(card["validation"]["loss_nats"], rel=0.01)
    assert accuracy[-1] > 0.85


@pytest.mark.parametrize("recipe", ENCODERS, ids=lambda recipe: recipe.name)
def test_bundled_encoder_matches_current_data_and_code_and_its_card(recipe: Recipe) -> None:
    folder = shipped(recipe)
    card = json.loads((folder / "card.json").read_text())
    text = read_text(recipe, None, "encoder")
    assert (card["data_sha256"], card["training_version"]) == (text.sha256, TRAINING_VERSION)
    assert (folder / TRAINING_LOG_FILE).is_file()

    torch.set_num_threads(1)
    task = task_of(recipe)
    model, tokenizer = read_classifier(folder, task)
    examples = encode_texts(task, text.validation, tokenizer, recipe.optimisation.max_tokens)
    readers = Readers(find_encoder_stack(model), recipe.off_ramps, recipe.seed)
    answers_LN, loss_L = predictions(readers, [pad_texts(examples, 0)])
    right = [pair.document.fields["label"] for pair in text.validation if pair.document is not None]
    accuracy = (answers_LN == torch.tensor(right)).double().mean(1).tolist()
    assert accuracy == pytest.approx(card["validation"]["token_accuracy"], abs=0.004)
    assert loss_L.tolist() == pytest.approx(card["validation"]["loss_nats"], rel=0.01, abs=1e-3)
    assert accuracy[-1] > 0.95
