"""A small suite file and the checkpoint that it names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from exitbench.tasks.builtin.tokenizer import build_tokenizer

HEAD = """\
schema = 1
name = "small"
seed = 7

[models.tiny]
path = "{checkpoint}"
random_weights = true

[tasks]
lines = {{ task = "wmt-en-fr", source = "local", files = {{ en = "text.en", fr = "text.fr" }}, max_new_tokens = 4 }}

"""

SPECIAL_TOKENS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random T5 as transformers saves it."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = build_tokenizer()
    config = T5Config(
        vocab_size=tokenizer.get_vocab_size(),
        d_model=16,
        d_kv=4,
        d_ff=32,
        num_heads=4,
        num_layers=2,
        decoder_start_token_id=0,
        eos_token_id=1,
    )
    T5ForConditionalGeneration(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL_TOKENS).save_pretrained(folder)
    return folder


@pytest.fixture
def write_suite(tmp_path: Path, checkpoint: Path) -> Callable[..., Path]:
    """Write a suite of one model and one task, followed by the given texts; a static sweep if there is none."""

    def write(*texts: str) -> Path:
        path = tmp_path / "small.toml"
        body = "".join(texts) or '[[sweep]]\nmethod = "static"\n'
        path.write_text(HEAD.format(checkpoint=checkpoint) + body)
        return path

    return write


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The parallel text that the suite names: four lines."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "text.en").write_text("a dog runs\ntwo men sing\nthe girl reads\na red car\n")
    (folder / "text.fr").write_text("un chien court\ndeux hommes chantent\nla fille lit\nune voiture rouge\n")
    return folder


WORDED_DEPTH = 4


@pytest.fixture(scope="session")
def worded_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random T5 of 4 decoder blocks that disagree, with the tokenizer of the built-in data."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("worded")
    tokenizer = build_tokenizer()
    config = T5Config(
        vocab_size=tokenizer.get_vocab_size(),
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_heads=4,
        num_layers=2,
        num_decoder_layers=WORDED_DEPTH,
        decoder_start_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    reference = T5ForConditionalGeneration(config)
    for parameter in reference.parameters():
        parameter.data = torch.randn_like(parameter) * 0.3
    reference.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL_TOKENS).save_pretrained(folder)
    return folder


FEW_POSITIONS = 58


@pytest.fixture(scope="session")
def causal_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GPT-2 with few positions, the tokenizer of the built-in data, and no chat template."""
    torch.manual_seed(0)
    folder, tokenizer = tmp_path_factory.mktemp("causal"), build_tokenizer()
    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(),
        n_embd=16,
        n_head=2,
        n_layer=3,
        n_positions=FEW_POSITIONS,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    reference = GPT2LMHeadModel(config)
    for parameter in reference.parameters():
        parameter.data = torch.randn_like(parameter) * 0.3
    reference.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL_TOKENS).save_pretrained(folder)
    return folder
