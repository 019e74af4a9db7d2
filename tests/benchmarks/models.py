"""Models to benchmark: a real one and shapes with random weights, in transformers and in the engine.

Random weights take as long as trained ones, but say nothing about quality. Only the length limit ends an answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from ratios import Timed
from tokenizers import Tokenizer

from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.decoding.decode import decode, prefill
from exitbench.harness.engine.decoding.generation import Request
from exitbench.methods.base import Parts
from exitbench.methods.registry import baseline_method, get_method

try:
    from exitbench.harness.engine.products.choosing import use_fastest
except ImportError:  # older engines, which `nox -s perf -- --against` may measure
    use_fastest = None  # type: ignore[assignment]

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
PROMPT_TOKENS = 24
TEXT = Path(__file__).parents[2] / "LICENSE"
"""English text of the real model's prompts, which does not change between commits."""
UNTRACED: dict[str, Any] = {"traced": False} if "traced" in inspect.signature(decode).parameters else {}
"""Options with which timing cells decode. Older engines, measured by `nox -s perf -- --against`, always trace."""


@dataclass(frozen=True)
class Shape:
    """Shape of a model, and an answer length that takes a fraction of a second on one core.

    Attributes:
        family: ``t5`` or ``llama``.
        new_tokens: Length of an answer.
        config: Differences from the family's default configuration in transformers.
    """

    family: str
    new_tokens: int
    config: Mapping[str, int]

    @property
    def n_blocks(self) -> int:
        """Number of decoder blocks, L."""
        return self.config.get("num_decoder_layers") or self.config["num_hidden_layers"]


SMALL = dict(vocab_size=2048, d_model=128, d_kv=32, d_ff=512, num_heads=4, num_layers=8, num_decoder_layers=8)
BASE = dict(vocab_size=32128, d_model=768, d_kv=64, d_ff=3072, num_heads=12, num_layers=12, num_decoder_layers=12)
LARGE = dict(vocab_size=32128, d_model=1024, d_kv=64, d_ff=4096, num_heads=16, num_decoder_layers=24)
LLAMA = dict(
    vocab_size=8192,
    hidden_size=256,
    intermediate_size=688,
    num_attention_heads=8,
    num_key_value_heads=4,
    num_hidden_layers=8,
)
LLAMA_BASE = dict(
    vocab_size=32000,
    hidden_size=768,
    intermediate_size=2048,
    num_attention_heads=12,
    num_key_value_heads=12,
    num_hidden_layers=12,
)
SMOLLM2 = dict(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_attention_heads=9,
    num_key_value_heads=3,
    num_hidden_layers=30,
)
GROWING = {**BASE, "num_layers": 1}

SHAPES = {
    "smollm2": Shape("llama", 16, SMOLLM2),  # SmolLM2-135M-Instruct with its own weights
    "small-random": Shape("t5", 48, SMALL),
    "t5-base-random": Shape("t5", 8, BASE),
    # Decoding is measured, which depends on the encoder only by the source length.
    "t5-large-random-2-encoder-blocks": Shape("t5", 4, {**LARGE, "num_layers": 2}),
    "llama-small-random": Shape("llama", 32, LLAMA),
    "llama-base-random": Shape("llama", 8, LLAMA_BASE),
    "t5-base-decoder-random": Shape("t5", 5, GROWING),
    "t5-base-decoder-random-6-blocks": Shape("t5", 5, {**GROWING, "num_decoder_layers": 6}),
    "t5-base-decoder-random-24-blocks": Shape("t5", 5, {**GROWING, "num_decoder_layers": 24}),
    "t5-base-decoder-random-8k-vocabulary": Shape("t5", 5, {**GROWING, "vocab_size": 8_192}),
    "t5-base-decoder-random-128k-vocabulary": Shape("t5", 5, {**GROWING, "vocab_size": 131_072}),
}
REAL_NAME, SMALL_NAME, BASE_NAME, LARGE_NAME, CAUSAL_NAME, CAUSAL_BASE_NAME, *GROWING_NAMES = SHAPES
SCALES = {"EncDecAttention.o.weight": 10.0, "lm_head.weight": 0.05}
"""Factors on transformers' initial weights, so that answers depend on the source and no token is certain."""


class Pair:
    """Model in transformers and in the engine, each loaded on first use.

    `folder` has the real model's checkpoint. Models with random weights are saved there.
    """

    def __init__(self, label: str, folder: Path) -> None:
        self.label, self.shape, self.folder = label, SHAPES[label], folder
        if label != REAL_NAME:
            self._save_random_weights()

    def _save_random_weights(self) -> None:
        torch.manual_seed(0)
        model = self._model_class.from_config(self._config())
        for end, scale in SCALES.items():
            for name, weight in model.state_dict().items():
                if name.endswith(end):
                    weight.mul_(scale)
        model.save_pretrained(self.folder)

    @property
    def n_blocks(self) -> int:
        """Number of decoder blocks, L."""
        return self.shape.n_blocks

    @property
    def _model_class(self) -> Any:
        return transformers.AutoModelForSeq2SeqLM if self.shape.family == "t5" else transformers.AutoModelForCausalLM

    def _config(self) -> Any:
        start = {"decoder_start_token_id": 0} if self.shape.family == "t5" else {"pad_token_id": 0, "bos_token_id": 0}
        # With random weights, a head tied to the embedding repeats the input token.
        settings = {**self.shape.config, **start, "eos_token_id": None, "tie_word_embeddings": False}
        return transformers.AutoConfig.for_model(self.shape.family, **settings)

    @cached_property
    def reference(self) -> Any:
        """Model in transformers."""
        model = self._model_class.from_pretrained(self.folder).eval()
        model.generation_config.eos_token_id = None
        return model

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Model in the engine."""
        return self.loaded(torch.float32)

    @cached_property
    def hosted(self) -> Checkpoint:
        """Model in the hosted engine."""
        return self.loaded(torch.float32, engine="hosted")

    def loaded(self, dtype: torch.dtype, *, measured: bool = True, **how: Any) -> Checkpoint:
        """Load the model into the engine in a number format; ``how`` are further arguments of `load_checkpoint`.

        If ``measured``, matmuls use the forms that are fastest on this machine, as cells do; else the defaults.
        """
        checkpoint = load_checkpoint(self.folder, dtype, **how)
        if measured and use_fastest is not None:
            use_fastest(checkpoint.model)
        return Checkpoint(checkpoint.model, frozenset(), checkpoint.start_id)

    def prompts(self, rows: int = 1, tokens: int = PROMPT_TOKENS) -> list[list[int]]:
        """Return prompts, the longest with ``tokens`` tokens; lengths decrease evenly to half of that.

        The real model's are from a text. Those of other models are random tokens.
        """
        lengths = [tokens - (tokens // 2) * row // max(1, rows - 1) for row in range(rows)]
        if self.label == REAL_NAME:
            text_ids = Tokenizer.from_file(str(self.folder / "tokenizer.json")).encode(TEXT.read_text()).ids
            return [text_ids[31 * row :][:length] for row, length in enumerate(lengths)]
        generator = torch.Generator().manual_seed(rows * tokens)
        limit = self.shape.config["vocab_size"]
        return [torch.randint(3, limit, (length,), generator=generator).tolist() for length in lengths]

    def inputs(self, prompts: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        """Return transformers' inputs: ids and mask [B, S], right-padded for an encoder, else left-padded."""
        longest = max(map(len, prompts))
        right = self.shape.family == "t5"

        def padded(row: Sequence[int]) -> list[int]:
            padding = [0] * (longest - len(row))
            return [*row, *padding] if right else [*padding, *row]

        ids = torch.tensor([padded(row) for row in prompts])
        mask = torch.tensor([padded([1] * len(row)) for row in prompts])
        return {"input_ids": ids, "attention_mask": mask}

    def transformers(self, inputs: Mapping[str, torch.Tensor], new_tokens: int) -> list[list[int]]:
        """Run transformers' greedy `generate`, prefill included; return each row's new tokens."""
        output = self.reference.generate(**inputs, **self._cache(), max_new_tokens=new_tokens, do_sample=False)
        answers: list[list[int]] = output[:, -new_tokens:].tolist()
        return answers

    def _cache(self) -> dict[str, Any]:
        """Return an empty cache as an option of `generate`, if encoder and decoder differ in depth.

        transformers would size its own cache by the encoder's depth, and fail.
        """
        if self.shape.config.get("num_layers") == self.shape.config.get("num_decoder_layers"):
            return {}
        cache = transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())
        return {"past_key_values": cache}

    def decoding(
        self,
        parts: Parts,
        prompts: Sequence[Sequence[int]],
        new_tokens: int | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Timed:
        """Return the engine's decoding as an action to time: after prefill and without a trace, as in timing cells.

        Each row has its own seed.
        """
        requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts)]
        used = checkpoint or self.checkpoint
        length = new_tokens or self.shape.new_tokens
        return Timed(
            lambda batch: decode(used, batch, parts, **UNTRACED),
            lambda: prefill(used.model, requests, length),
            lambda batch: decode(used, batch, parts),
        )

    def full(self) -> Parts:
        """Return the parts of full depth."""
        return baseline_method()().parts(self.n_blocks)

    def parts(self, method: str, **params: object) -> Parts:
        """Return the parts of a method, with random weights if it has a network (`build_network`)."""
        instance = get_method(method).from_params(params)
        instance.check(self.n_blocks)
        if not hasattr(instance, "build_network"):
            return instance.parts(self.n_blocks)
        width = self.shape.config.get("d_model") or self.shape.config["hidden_size"]
        return instance.parts(self.n_blocks, instance.build_network(width).state_dict())
