"""Classifiers loaded from a folder: outputs equal the plain forward pass, and unsupported checkpoints are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_edits import edit_config
from safetensors.torch import load_file, save_file

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints import encoder_loading
from exitbench.harness.engine.checkpoints.encoder_loading import is_encoder, load_encoder
from exitbench.harness.engine.checkpoints.exit_head_files import new_off_ramps, read_exit_blocks, save_off_ramps
from exitbench.harness.engine.checkpoints.files import OFF_RAMPS_FILE
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.engine.encoders.stack import EncoderStack
from exitbench.harness.inspecting.inspection import inspect_folder

Classifier = Callable[..., Any]
FAMILIES = ("bert", "roberta", "albert", "electra", "distilbert", "deberta-v2", "modernbert")


@pytest.fixture
def saved(classifier: Classifier, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that saves a random classifier of a family and returns its folder."""

    def save(name: str, **options: Any) -> Path:
        classifier(name, **options).save_pretrained(tmp_path)
        return tmp_path

    return save


@pytest.mark.parametrize("name", FAMILIES)
def test_every_encoder_family_loads_from_a_folder(name: str, saved: Callable[..., Path]) -> None:
    folder = saved(name)
    assert is_encoder(folder)
    model = load_encoder(folder).model
    assert (model.n_blocks, model.d_model, model.vocab_size, model.exit_blocks) == (4, 16, 3, ())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_that_differs_from_its_plain_forward_pass_is_refused(
    name: str, saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = EncoderStack.block
    monkeypatch.setattr(EncoderStack, "block", lambda self, block, *given: run(self, max(1, block - 1), *given) * 1.1)
    with pytest.raises(UserError, match="the classifier's logits differs by"):
        load_encoder(saved(name))


def test_max_positions_exclude_roberta_padding_positions(saved: Callable[..., Path]) -> None:
    assert load_encoder(saved("roberta")).model.max_positions == 39


def test_off_ramps_next_to_the_weights_are_loaded(saved: Callable[..., Path]) -> None:
    folder = saved("bert")
    tensors = new_off_ramps("linear", (1, 3), 16, 3, torch.Generator().manual_seed(0))
    save_off_ramps(folder / OFF_RAMPS_FILE, "linear", tensors)
    model = load_encoder(folder).model
    state = torch.randn(2, 16)
    assert model.exit_blocks == read_exit_blocks(folder) == (1, 3)
    assert torch.equal(model.exit_logits(3, state), state @ tensors["3.out.weight"].T + tensors["3.out.bias"])
    assert (model.exit_head_numel(1), model.exit_head_numel(2)) == (48, 16 * 16 + 48)


def test_off_ramps_of_another_model_are_refused(saved: Callable[..., Path]) -> None:
    folder = saved("bert")
    tensors = new_off_ramps("linear", (1,), 16, 2, torch.Generator().manual_seed(0))
    save_off_ramps(folder / OFF_RAMPS_FILE, "linear", tensors)
    with pytest.raises(UserError, match=r"has shape \[2, 16\], the model requires \[3, 16\]"):
        load_encoder(folder)


def test_position_ids_of_older_transformers_versions_are_ignored(saved: Callable[..., Path]) -> None:
    folder = saved("bert")
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "bert.embeddings.position_ids": torch.arange(40)[None]}, folder / "model.safetensors")
    assert load_encoder(folder).model.n_blocks == 4


@pytest.mark.parametrize(
    ("architecture", "allowed"),
    [("BertModel", "BertLMHeadModel, "), ("BertForMaskedLM", "BertLMHeadModel, "), ("DistilBertModel", "")],
)
def test_encoder_without_a_head_is_refused_with_a_specific_message(
    saved: Callable[..., Path], architecture: str, allowed: str
) -> None:
    """The message does not call it a quantised decoder, although its file has a buffer of integers."""
    folder = saved("distilbert" if architecture.startswith("Distil") else "bert")
    edit_config(folder, architectures=[architecture])
    tensors = {name.partition(".")[2]: tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file({**tensors, "embeddings.position_ids": torch.arange(40)[None]}, folder / "model.safetensors")
    expected = (
        f"{folder / 'config.json'}: architectures ['{architecture}']: an encoder, as of embeddings, without a head "
        f"that generates text or classifies it. Allowed: {allowed}...ForSequenceClassification. "
        "`exitbench train` makes "
        "a classifier of an encoder (docs/training.md)."
    )
    with pytest.raises(UserError) as caught:
        load_checkpoint(folder)
    assert str(caught.value) == expected
    result = inspect_folder(folder)
    assert expected in result.lacks and not any("quantised" in line or "I64" in line for line in result.lacks)
    assert result.shape is None, "which would be a decoder's"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "xlm"}, "model_type 'xlm' has no classifier with exits. Allowed: albert, bert,"),
        ({"problem_type": "multi_label_classification"}, "allowed: one label a text, or a number"),
        ({"quantization_config": {"quant_method": "x"}}, "quantised weights are not supported"),
        ({"num_hidden_layers": 5}, "missing from the checkpoint"),
        ({"id2label": {"0": "a", "1": "b"}, "num_labels": 2}, r"shape \[3\], config.json requires \[2\]"),
    ],
)
def test_unsupported_classifier_configs_are_refused(values: Any, message: str, saved: Callable[..., Path]) -> None:
    folder = saved("bert")
    edit_config(folder, **values)
    with pytest.raises(UserError, match=message):
        load_encoder(folder)


def test_loading_on_the_meta_device_computes_nothing(
    saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_loading, "_prove", lambda stack: pytest.fail("nothing is computed"))
    model = load_encoder(saved("albert"), device="meta").model
    assert (model.n_blocks, model.device.type) == (4, "meta")
