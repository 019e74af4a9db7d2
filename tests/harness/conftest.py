"""Fixtures of small suite files and the checkpoints that they name."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from torch.utils import collect_env
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from exitbench.tasks import registry
from exitbench.tasks.builtin.corpus import build_tokenizer
from exitbench.tasks.classification import ClassificationTask
from exitbench.tasks.document import Document, DocumentScore

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

sys.path.insert(0, str(Path(__file__).parent))  # for `suite_runs` and `lm_eval_toys`

SPECIAL_TOKENS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


@pytest.fixture(scope="session", autouse=True)
def _the_machine_is_described_once() -> Iterator[None]:
    """Cache torch's description of the machine, which runs eleven commands and which lm-eval adds to every result."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(collect_env, "get_pretty_env_info", functools.cache(collect_env.get_pretty_env_info))
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny random T5, as saved by transformers."""
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
    """Return a function that writes a suite of one model, one task and the given TOML (default: a static sweep)."""

    def write(*texts: str) -> Path:
        path = tmp_path / "small.toml"
        body = "".join(texts) or '[[sweep]]\nmethod = "static"\n'
        path.write_text(HEAD.format(checkpoint=checkpoint) + body)
        return path

    return write


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Return a folder with the suite's parallel text of four lines."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "text.en").write_text("a dog runs\ntwo men sing\nthe girl reads\na red car\n")
    (folder / "text.fr").write_text("un chien court\ndeux hommes chantent\nla fille lit\nune voiture rouge\n")
    return folder


WORDED_DEPTH = 4


@pytest.fixture(scope="session")
def worded_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a random T5 with the built-in data's tokenizer; its 4 decoder blocks predict differently."""
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
    """Return the folder of a random GPT-2 with few positions, the built-in data's tokenizer and no chat template."""
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


class _ToyClassification(ClassificationTask):
    """Classification task whose files have one label and one or two texts per line, separated by tabs."""

    metric_version = "toy|1"
    metrics = ("accuracy",)
    consistency_metric = "accuracy"
    local_roles = (frozenset({"data"}),)

    def texts(self, doc: Document) -> tuple[str, ...]:
        return tuple(doc.fields["texts"])

    def gold(self, doc: Document) -> int | float:
        return self.parse_prediction(doc.fields["label"])

    def score_prediction(self, doc: Document, prediction: int | float) -> DocumentScore:
        return DocumentScore({"accuracy": 100.0 * (abs(prediction - self.gold(doc)) < 0.5)})

    def with_reference(self, doc: Document, text: str) -> Document:
        return Document(doc.key, {**doc.fields, "label": text})

    def _read_local(self, files: Mapping[str, Path]) -> list[dict[str, Any]]:
        lines = files["data"].read_text().splitlines()
        rows = [line.split("\t") for line in lines]
        return [{"id": number, "label": label, "texts": texts} for number, (label, *texts) in enumerate(rows)]

    def _read_hub(self, split: str) -> list[dict[str, Any]]:
        raise NotImplementedError


class _Polarity(_ToyClassification):
    name = "toy-polarity"
    labels = ("bad", "so-so", "good")


class _Rating(_ToyClassification):
    name = "toy-rating"
    labels = None


@pytest.fixture(scope="session")
def toy_classification() -> Iterator[None]:
    """Register the tasks `toy-polarity` (three labels) and `toy-rating` (a regression) during a test."""
    with pytest.MonkeyPatch.context() as patched:
        for task in (_Polarity, _Rating):
            patched.setitem(registry._TASKS, task.name, task)
        yield


@pytest.fixture(scope="session")
def toy_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder with `polarity.tsv` (pairs, some too long), training pairs, and `rating.tsv`."""
    folder = tmp_path_factory.mktemp("texts")
    words = ["a", "dog", "runs", "two", "men", "sing", "the", "girl", "reads", "red", "car", "old", "house", "door"]
    draw = random.Random(1)

    def text(most: int) -> str:
        return " ".join(draw.choices(words, k=draw.randint(1, most)))

    def pairs(n: int) -> list[str]:
        return [f"{draw.choice(_Polarity.labels)}\t{text(24)}\t{text(24)}" for _ in range(n)]

    polarity = pairs(24)
    rating = [f"{draw.uniform(0, 5):.2f}\t{text(9)}" for _ in range(12)]
    (folder / "polarity.tsv").write_text("\n".join(polarity) + "\n")
    (folder / "polarity-train.tsv").write_text("\n".join(pairs(40)) + "\n")
    (folder / "rating.tsv").write_text("\n".join(rating) + "\n")
    return folder


@pytest.fixture(scope="session")
def classifier_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that saves a random encoder with 4 blocks, 30 positions, given labels and a tokenizer."""
    known: dict[tuple[Any, ...], Path] = {}

    def save(labels: tuple[str, ...]) -> Path:
        if labels in known:
            return known[labels]
        tokenizer = build_tokenizer()
        tokenizer.post_processor = TemplateProcessing(
            single="</s> $A </s>", pair="</s> $A </s> $B:1 </s>:1", special_tokens=[("</s>", 1)]
        )
        config = BertConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=16,
            num_hidden_layers=4,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=30,
            pad_token_id=0,
            id2label=dict(enumerate(labels)),
        )
        torch.manual_seed(0)
        lm = BertForSequenceClassification(config).requires_grad_(False)
        for parameter in lm.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        folder = known[labels] = tmp_path_factory.mktemp("classifier")
        lm.save_pretrained(folder)
        names = {**SPECIAL_TOKENS, "cls_token": "</s>", "sep_token": "</s>"}
        pre_trained_tokenizer_fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, **names, model_input_names=["input_ids", "token_type_ids", "attention_mask"]
        )
        pre_trained_tokenizer_fast.save_pretrained(folder)
        return folder

    return save
