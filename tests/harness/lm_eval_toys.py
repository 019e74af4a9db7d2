"""Small random models with a byte tokenizer, and tasks of lm-eval over random records."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import TemplateProcessing
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

DEPTH, POSITIONS = 4, 80
WORDS = "the a small old red dog cat house man sings reads runs sees and in near one two three blue".split()  # noqa: SIM905
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
JSON = {
    "dataset_path": "json",
    "test_split": "test",
    "training_split": "train",
    "fewshot_split": "train",
    "num_fewshot": 2,
}
TASKS: dict[str, dict[str, Any]] = {
    "toy_text": {
        **JSON,
        "output_type": "generate_until",
        "doc_to_text": "{{question}}\nA:",
        "doc_to_target": " {{answers[0]}}",
        "generation_kwargs": {"until": [*"aeiw+"], "max_gen_toks": "NEW_TOKENS", "do_sample": False},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}, {"metric": "bleu"}],
    },
    "toy_choice": {
        **JSON,
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}\nA:",
        "doc_to_choice": "{{answers}}",
        "doc_to_target": "{{right}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "toy_letter": {
        **JSON,
        "num_fewshot": 0,
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}\nA:",
        "doc_to_choice": ["A", "B", "C"],
        "target_delimiter": "",
        "doc_to_target": "{{right}}",
        "metric_list": [{"metric": "acc"}],
    },
    "toy_rolling": {
        **JSON,
        "num_fewshot": 0,
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "byte_perplexity"}, {"metric": "bits_per_byte"}],
    },
}
for _config in TASKS.values():
    for _metric in _config["metric_list"]:
        _metric["higher_is_better"] = _metric.get("higher_is_better", "perplexity" not in _metric["metric"])


def records(n: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)

    def text(least: int, most: int) -> str:
        return " ".join(rng.choice(WORDS, rng.integers(least, most)))

    return [
        {
            "question": text(3, 14),
            "answers": [text(1, 6) for _ in range(3)],
            "right": int(rng.integers(3)),
            "text": text(4, 120),
        }
        for _ in range(n)
    ]


def _tokenizer(*, ends: bool) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer; with ``ends``, it appends the end-of-sequence token as T5's does."""
    bpe = ByteLevelBPETokenizer()
    texts = [record["question"] + "\nA: " + record["text"] for record in records(40, 5)]
    bpe.train_from_iterator(texts, vocab_size=330, special_tokens=["<s>", "</s>", "<pad>"], show_progress=False)
    if ends:
        bpe._tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, **special)


def _is_text(tokenizer: PreTrainedTokenizerFast, token_id: int) -> bool:
    """Return whether a token consists of letters, so that answers contain words and can end at one of them."""
    text = tokenizer.decode([token_id])
    return text.isascii() and text.isprintable() and "<" not in text


def gpt2(vocabulary: int) -> Any:
    config = GPT2Config(vocab_size=vocabulary, n_positions=POSITIONS, n_embd=32, n_layer=DEPTH, n_head=4, **TOKENS)
    return GPT2LMHeadModel(config)


def gpt_neox(vocabulary: int) -> Any:
    """Return a model that only the hosted engine runs."""
    config = GPTNeoXConfig(
        vocab_size=vocabulary, hidden_size=32, num_hidden_layers=DEPTH, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=POSITIONS, **TOKENS,
    )  # fmt: skip
    return GPTNeoXForCausalLM(config)


def save_models(root: Path, decoder: Callable[[int], Any]) -> dict[str, Path]:
    """Save a random decoder-only model and a random encoder-decoder whose blocks sometimes disagree."""
    torch.manual_seed(3)
    causal, seq2seq = _tokenizer(ends=False), _tokenizer(ends=True)
    t5 = T5Config(
        vocab_size=len(seq2seq), d_model=32, d_kv=8, d_ff=48, num_layers=DEPTH, num_heads=4,
        decoder_start_token_id=2, **TOKENS,
    )  # fmt: skip
    for name, tokenizer, model, scale, block_scale in (
        ("causal", causal, decoder(len(causal)), 0.5, 0.25),
        ("seq2seq", seq2seq, T5ForConditionalGeneration(t5), 1.0, 0.4),
    ):
        for place, parameter in model.named_parameters():
            if parameter.dim() > 1:
                is_block = any(part in place for part in (".h.", "layers.", "block."))
                own = 2.0 if "relative" in place else block_scale if is_block else scale
                parameter.data = torch.randn_like(parameter) * own
        model.get_input_embeddings().weight.data[
            [not _is_text(tokenizer, place) for place in range(len(tokenizer))]
        ] /= 20
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return {name: root / name for name in ("causal", "seq2seq")}


def write_tasks(root: Path, documents: int, new_tokens: int) -> Path:
    """Write random records and the lm-eval tasks that read them; return their folder.

    The tasks for this project name files relative to the data folder, and those for lm-eval absolute paths.
    """
    for split, n, seed in (("test", documents, 1), ("train", 6, 2)):
        lines = [json.dumps(record) for record in records(n, seed)]
        (root / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    for folder, start in (("ours", Path()), ("theirs", root)):
        (root / folder).mkdir()
        for name, config in TASKS.items():
            files = {split: str(start / f"{split}.jsonl") for split in ("test", "train")}
            text = yaml.safe_dump({"task": name, **config, "dataset_kwargs": {"data_files": files}})
            text = text.replace("NEW_TOKENS", str(new_tokens))
            (root / folder / f"{name}.yaml").write_text(text)
    return root
