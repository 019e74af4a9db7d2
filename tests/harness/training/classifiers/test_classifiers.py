"""Whole trainings of classifiers: the result is an ordinary Hugging Face checkpoint, with off-ramps for its blocks."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AlbertModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForMaskedLM,
)

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.exit_head_files import load_off_ramps
from exitbench.harness.training import ensure_trained, find_trained, load_recipe
from exitbench.harness.training.classifiers import read_classifier, task_of
from exitbench.harness.training.trainer import ExitTrainer

WriteRecipe = Callable[..., Path]
LAST = (('[off_ramps]\nkind = "pooler-linear"\n', ""), ('"weighted"', '"last"'))
RATINGS = (('"sst2"', '"stsb"'), ('"train.tsv"', '"rated_train.tsv"'), ('"dev.tsv"', '"rated_dev.tsv"'))


def trained(path: Path, data_dir: Path, models: str = "models") -> Path:
    return ensure_trained(load_recipe(path), data_dir / models, data_dir)


def card_of(folder: Path) -> dict[str, Any]:
    card: dict[str, Any] = json.loads((folder / "card.json").read_text())
    return card


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture
def write_continued_recipe(write_recipe: WriteRecipe) -> WriteRecipe:
    """Return a function that writes a recipe that continues from a trained model, given by its [start] table."""

    def write(start: str, *changes: tuple[str, str]) -> Path:
        path = write_recipe(*changes, name="further")
        before, _, rest = path.read_text().partition("[tokenizer]")
        path.write_text(f"{before}[start]\n{start}\n\n[off_ramps]{rest.partition('[off_ramps]')[2]}")
        return path

    return write


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        *(("weighted", kind) for kind in ("linear", "pooler-linear", "attention", "shared-pooler", "shared-head")),
        ("branchynet", "shared-head"),
        ("alternating", "pooler-linear"),
    ],
)
def test_training_writes_a_standard_classifier_with_off_ramps(
    loss: str, kind: str, write_recipe: WriteRecipe, data_dir: Path
) -> None:
    path = write_recipe(('"pooler-linear"', f'"{kind}"'), ('"weighted"', f'"{loss}"'))
    folder = trained(path, data_dir)
    assert find_trained(load_recipe(path), data_dir / "models") == folder
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.id2label == {0: "negative", 1: "positive"}
    assert tokenizer("fine")["input_ids"][0] == tokenizer.cls_token_id
    ramps = load_off_ramps(folder, 3, 16, 2)
    if kind == "shared-head":
        assert ramps is None
    else:
        assert ramps is not None and ramps.blocks == (1, 2)
        assert ramps.kind == ("pooler-linear" if kind == "shared-pooler" else kind)
    if kind == "shared-pooler":
        assert ramps is not None
        own = model.bert.pooler.dense.weight
        assert all(torch.equal(ramps.tensors[f"{block}.pool.weight"], own) for block in (1, 2))
    card = card_of(folder)
    assert card["validation"]["metric"] == "acc"
    assert [100 * share for share in card["validation"]["token_accuracy"]] == card["validation"]["score"]
    with (folder / "training_log.csv").open(newline="") as file:
        assert {row["block"] for row in csv.DictReader(file) if row["metric"] == "block_loss_nats"} == {"1", "2", "3"}


def test_classifier_learns_and_its_card_score_equals_transformers(write_recipe: WriteRecipe, data_dir: Path) -> None:
    folder = trained(write_recipe(("steps = 12", "steps = 30")), data_dir)
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    rows = [line.split("\t") for line in (data_dir / "dev.tsv").read_text().splitlines()[1:]]
    logits = model.eval()(**tokenizer([text for text, _ in rows], padding=True, return_tensors="pt")).logits
    right = logits.argmax(-1) == torch.tensor([int(label) for _, label in rows])
    assert card_of(folder)["validation"]["score"][-1] == pytest.approx(100 * right.float().mean().item()) == 100


@pytest.mark.parametrize("loss", ["two-stage", "self-distillation"])
def test_training_off_ramps_on_a_frozen_model_does_not_change_its_weights(
    loss: str, write_recipe: WriteRecipe, write_continued_recipe: WriteRecipe, data_dir: Path
) -> None:
    first = trained(write_recipe(*LAST, name="first"), data_dir)
    path = write_continued_recipe(f'recipe = "{data_dir.parent / "first.toml"}"', ('"weighted"', f'"{loss}"'))
    further = trained(path, data_dir)
    assert weights(further) == weights(first)
    assert load_off_ramps(first, 3, 16, 2) is None
    assert load_off_ramps(further, 3, 16, 2) is not None


@pytest.mark.parametrize("model", [BertForMaskedLM, AlbertModel])
def test_pretrained_encoder_gets_a_classifier_with_the_tasks_labels(
    model: Any, write_recipe: WriteRecipe, write_continued_recipe: WriteRecipe, data_dir: Path
) -> None:
    folder = data_dir / "pretrained"
    config = model.config_class(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=4, intermediate_size=32, vocab_size=400
    )
    model(config).save_pretrained(folder)
    first = trained(write_recipe(*LAST, ("steps = 12", "steps = 1")), data_dir)
    AutoTokenizer.from_pretrained(first).save_pretrained(folder)
    further = trained(
        write_continued_recipe('checkpoint = "pretrained"', ('"pooler-linear"', '"shared-pooler"')), data_dir
    )
    result = AutoModelForSequenceClassification.from_pretrained(further)
    assert (result.config.id2label, result.config.model_type) == ({0: "negative", 1: "positive"}, config.model_type)
    assert load_off_ramps(further, 3, 16, 2) is not None


def test_rating_task_trains_a_regression_validated_by_pearson(write_recipe: WriteRecipe, data_dir: Path) -> None:
    folder = trained(write_recipe(*RATINGS), data_dir)
    assert AutoModelForSequenceClassification.from_pretrained(folder).config.problem_type == "regression"
    result = card_of(folder)["validation"]
    assert (result["metric"], result["token_accuracy"], len(result["score"])) == ("pearson", None, 3)
    assert load_off_ramps(folder, 3, 16, 1) is not None


def test_text_pairs_use_token_types_and_truncated_texts_are_counted(write_recipe: WriteRecipe, data_dir: Path) -> None:
    folder = trained(write_recipe(*RATINGS, ("max_tokens = 24", "max_tokens = 6")), data_dir)
    card = card_of(folder)
    assert card["train_texts_truncated"] == 18 == card["validation_texts_truncated"]
    pair = AutoTokenizer.from_pretrained(folder)("one", "one")
    assert pair["token_type_ids"] == sorted(pair["token_type_ids"]) and set(pair["token_type_ids"]) == {0, 1}


@pytest.mark.parametrize("loss", ["weighted", "alternating"])
def test_interrupted_training_resumes_to_the_same_weights(
    loss: str, write_recipe: WriteRecipe, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = (("dropout_rate = 0.0", "dropout_rate = 0.1"), ("steps = 12", "steps = 12\nsave_steps = 5"))
    path = write_recipe(*changes, ('"weighted"', f'"{loss}"'))
    whole = trained(path, data_dir, "whole")
    step, done = ExitTrainer.training_step, []

    def interrupted_at_8(self: ExitTrainer, *arguments: Any, **options: Any) -> Any:
        done.append(1)
        if len(done) == 8:
            raise KeyboardInterrupt
        return step(self, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ExitTrainer, "training_step", interrupted_at_8)
        trained(path, data_dir, "killed")
    resumed = trained(path, data_dir, "killed")
    assert weights(resumed) == weights(whole)
    assert (resumed / "off_ramps.safetensors").read_bytes() == (whole / "off_ramps.safetensors").read_bytes()
    assert (resumed / "training_log.csv").read_text() == (whole / "training_log.csv").read_text()


def test_shared_steps_keep_block_weights_equal(write_recipe: WriteRecipe, data_dir: Path) -> None:
    folder = trained(write_recipe(("steps = 12", "steps = 12\nshared_steps = 12")), data_dir)
    _, second, third = AutoModelForSequenceClassification.from_pretrained(folder).bert.encoder.layer
    assert all(torch.equal(a, b) for a, b in zip(second.parameters(), third.parameters(), strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ((('"weighted"', '"shallow-deep"\nshallow_blocks = 1'),), "which is for decoders. Allowed for encoders: alter"),
        ((('"weighted"', '"two-stage"'),), "'two-stage' needs a .start., which is frozen"),
        ((('"weighted"', '"last"'),), 'is "last", by which off-ramps never learn'),
        (
            (('family = "bert"', 'family = "bert"\nnum_decoder_layers = 2'),),
            "must be 0 or left out: bert has no decoder",
        ),
        ((("num_layers = 3", "num_layers = 3\nnum_decoder_layers = 3"), ('family = "bert"', "")), "are for encoders"),
        ((("num_layers = 3", "num_layers = 3"), ('family = "bert"', "")), "must be at least 1: t5 has a decoder"),
        (
            (('kind = "pooler-linear"', 'kind = "mlp"'),),
            "kind: is 'mlp'.*Allowed: attention, linear, pooler-linear, shared-head",
        ),
    ],
)
def test_invalid_encoder_recipe_is_refused(
    changes: tuple[tuple[str, str], ...], message: str, write_recipe: WriteRecipe
) -> None:
    with pytest.raises(UserError, match=message):
        load_recipe(write_recipe(*changes))


def test_text_generation_task_is_refused_for_an_encoder(write_recipe: WriteRecipe) -> None:
    path = write_recipe(('"sst2"', '"squad"'))
    with pytest.raises(UserError, match=r"task 'squad' requires something else\. Allowed: tasks of classification"):
        task_of(load_recipe(path))


def test_several_tasks_are_refused_for_an_encoder(write_recipe: WriteRecipe) -> None:
    dev = 'source = "local"\nfiles = { data = "dev.tsv" }'
    path = write_recipe((f'task = "sst2"\n{dev}', f'task = "cola"\n{dev}'))
    with pytest.raises(UserError, match=r"tasks cola, sst2\. Allowed for an encoder: one task"):
        task_of(load_recipe(path))


@pytest.mark.parametrize("first", ["train.tsv", "dev.tsv"], ids=["repeats another part", "is held out"])
def test_part_of_the_data_without_a_pair_of_its_own_is_refused(
    first: str, write_recipe: WriteRecipe, data_dir: Path
) -> None:
    train = '[[train]]\ntask = "sst2"\nsource = "local"\nfiles = { data = "train.tsv" }\n'
    path = write_recipe((train, train.replace("train.tsv", first) + train + "from_step = 6\n"))
    with pytest.raises(UserError, match="a part of the training data repeats other parts, or held-out data"):
        trained(path, data_dir)


def test_start_checkpoint_with_other_labels_is_refused(write_recipe: WriteRecipe, data_dir: Path) -> None:
    folder = trained(write_recipe(*LAST), data_dir)
    with pytest.raises(UserError, match="has 2 labels, but task 'stsb' has 1"):
        read_classifier(folder, task_of(load_recipe(write_recipe(*RATINGS))))
