"""Fixtures of small random models with a byte tokenizer, and of lm-eval tasks over local files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import TemplateProcessing
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

WORDS = (
    "the",
    "a",
    "small",
    "old",
    "red",
    "dog",
    "cat",
    "house",
    "man",
    "sings",
    "reads",
    "runs",
    "sees",
    "near",
    "two",
)
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
DEPTH = 4
COMMON = {"dataset_path": "json", "test_split": "test", "fewshot_split": "train", "doc_to_text": "{{question}}\nA:"}
TASKS: dict[str, dict[str, Any]] = {
    "toy_text": {
        "output_type": "generate_until",
        "doc_to_target": " {{answers[0]}}",
        "generation_kwargs": {"until": ["\n", "o"], "max_gen_toks": 6, "do_sample": False},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    },
    "toy_choice": {
        "output_type": "multiple_choice",
        "doc_to_choice": "{{answers}}",
        "doc_to_target": "{{right}}",
        "metric_list": [
            {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")
        ],
    },
    "toy_rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "word_perplexity", "aggregation": "weighted_perplexity", "higher_is_better": False}],
    },
}


def records(n: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)

    def text(least: int, most: int) -> str:
        return " ".join(rng.choice(WORDS, rng.integers(least, most)))

    return [
        {"question": text(3, 9), "answers": [text(1, 4) for _ in range(3)], "right": n % 3, "text": text(9, 40)}
        for n in range(n)
    ]


def _tokenizer(*, ends: bool) -> PreTrainedTokenizerFast:
    bpe = ByteLevelBPETokenizer()
    texts = [f"{record['question']}\nA: {record['text']}" for record in records(40, 5)]
    bpe.train_from_iterator(texts, vocab_size=320, special_tokens=["<s>", "</s>", "<pad>"], show_progress=False)
    if ends:
        bpe._tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, **special)


@pytest.fixture(scope="session")
def toy_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return folders of two random models, decoder-only and encoder-decoder, whose blocks predict different tokens."""
    torch.manual_seed(3)
    root = tmp_path_factory.mktemp("toys")
    causal, seq2seq = _tokenizer(ends=False), _tokenizer(ends=True)
    neox = GPTNeoXConfig(
        vocab_size=len(causal), hidden_size=32, num_hidden_layers=DEPTH, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=64, **TOKENS,
    )  # fmt: skip
    t5 = T5Config(
        vocab_size=len(seq2seq), d_model=32, d_kv=8, d_ff=48, num_layers=DEPTH, num_decoder_layers=DEPTH, num_heads=4,
        decoder_start_token_id=2, **TOKENS,
    )  # fmt: skip
    results = {"causal": (causal, GPTNeoXForCausalLM(neox)), "seq2seq": (seq2seq, T5ForConditionalGeneration(t5))}
    for name, (tokenizer, model) in results.items():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data = torch.randn_like(parameter) * 0.3
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return {name: root / name for name in results}


@pytest.fixture(scope="session")
def toy_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the tasks' YAML, with absolute paths of data files."""
    root = tmp_path_factory.mktemp("tasks")
    for split, n, seed in (("test", 7, 1), ("train", 4, 2)):
        lines = [json.dumps(record) for record in records(n, seed)]
        (root / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    files = {split: str(root / f"{split}.jsonl") for split in ("test", "train")}
    (root / "yaml").mkdir()
    for name, config in TASKS.items():
        whole = {"task": name, **COMMON, **config, "dataset_kwargs": {"data_files": files}}
        (root / "yaml" / f"{name}.yaml").write_text(yaml.safe_dump(whole))
    return root / "yaml"
