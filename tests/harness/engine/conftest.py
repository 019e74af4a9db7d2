"""Fixtures of small random checkpoints of every supported family, as saved by transformers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.decoding.decode import Batch, prefill
from exitbench.harness.engine.decoding.generation import Request

sys.path.insert(0, str(Path(__file__).parent))  # for the modules that tests share

VOCABULARY = 100
PAD, FIRST_WORD = 0, 3
PROMPT_SEED = 5
T5 = dict(
    vocab_size=VOCABULARY,
    d_model=32,
    d_kv=8,
    d_ff=48,
    num_heads=4,
    num_layers=3,
    num_decoder_layers=5,
    decoder_start_token_id=PAD,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=12,
)
LLAMA = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
    pad_token_id=PAD,
    bos_token_id=2,
)
DEFAULT_ROPE = dict(rope_type="default", rope_theta=10000.0)
LLAMA3_ROPE = dict(
    rope_type="llama3",
    rope_theta=10000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)


def _t5(**options: Any) -> Any:
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**{**T5, **options}))


def _untied(reference: Any, *, in_config: bool = True) -> Any:
    """Untie an encoder-decoder's LM head and return the model; `in_config`: its configuration says so too."""
    if in_config:
        reference.config.tie_word_embeddings = False  # in the constructor it would only disable scaling
    reference.lm_head.weight = torch.nn.Parameter(torch.empty_like(reference.shared.weight))
    return reference


def _llama(**options: Any) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**LLAMA, **options}))


FAMILIES: dict[str, Callable[[], Any]] = {
    "t5": _t5,
    "t5-gated-untied": lambda: _untied(_t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    "llama": _llama,
    "llama-rope3-biases": lambda: _llama(attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3_ROPE),
    "qwen2-tied": lambda: transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(**{**LLAMA, "num_key_value_heads": 1}, tie_word_embeddings=True)
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_head=4,
            n_layer=5,
            n_positions=48,
            pad_token_id=PAD,
            bos_token_id=2,
        )
    ),
    "mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**LLAMA, head_dim=12, sliding_window=None)
    ),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**LLAMA, head_dim=12)),
    "mt5": lambda: _untied(transformers.MT5ForConditionalGeneration(transformers.MT5Config(**T5))),
    "phi3-partly-rotated": lambda: transformers.Phi3ForCausalLM(
        transformers.Phi3Config(**LLAMA, rope_parameters={**DEFAULT_ROPE, "partial_rotary_factor": 0.5})
    ),
    "smollm3": lambda: transformers.SmolLM3ForCausalLM(
        transformers.SmolLM3Config(**LLAMA, no_rope_layers=[1, 0, 1, 1, 0], tie_word_embeddings=False)
    ),
    "olmo2": lambda: transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**LLAMA)),
    # umT5 scales if the configuration says tied, which its class always sets.
    "umt5": lambda: _untied(transformers.UMT5ForConditionalGeneration(transformers.UMT5Config(**T5)), in_config=False),
}

POSITION_FAMILIES = ("t5", "umt5", "llama", "smollm3", "gpt2")
"""Families that cover each kind of position encoding: biases shared by blocks or per block, rotations in all or some
blocks, and an embedding. Tests of moved cache rows use only these; tests of a block's computation use all families.
"""


def randomise(reference: Any, seed: int) -> None:
    """Set every parameter, including norms and biases, to random values that affect the logits."""
    generator = torch.Generator().manual_seed(seed)
    embeds = ["shared", "embed_tokens", "wte"]
    if reference.config.model_type == "umt5":
        embeds.append("lm_head")  # its states are scaled as for a tied head
    for name, parameter in reference.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:  # norms and biases
            parameter.data = 0.3 * noise + (1.0 if name.endswith("weight") else 0.0)
        elif any(part in name for part in embeds):
            parameter.data = noise
        else:
            parameter.data = noise * parameter.shape[-1] ** -0.5


def padded(prompts: list[list[int]], left: bool) -> dict[str, Tensor]:
    """Return token ids and mask of prompts of mixed length, padded to the longest."""
    longest = max(map(len, prompts))
    rows, masks = [], []
    for prompt in prompts:
        blank = [PAD] * (longest - len(prompt))
        ones, zeros = [1] * len(prompt), [0] * len(blank)
        rows.append(blank + prompt if left else prompt + blank)
        masks.append(zeros + ones if left else ones + zeros)
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(masks)}


@dataclass(frozen=True)
class Twin:
    """Checkpoint loaded in transformers (the reference) and in the engine."""

    reference: Any
    folder: Path
    checkpoint: Checkpoint

    @property
    def is_seq2seq(self) -> bool:
        return bool(self.reference.config.is_encoder_decoder)

    @property
    def endless(self) -> Checkpoint:
        """The checkpoint without end-of-sequence tokens, so that all rows of a batch stay in the cache."""
        return replace(self.checkpoint, eos_ids=frozenset())

    @cached_property
    def hosted(self) -> Checkpoint:
        """The checkpoint in the hosted engine."""
        return load_checkpoint(self.folder, engine="hosted")

    def start(self, prompts: Sequence[list[int]], max_new_tokens: int, first_seed: int = 0) -> Batch:
        """Return a batch after prefill whose unwritten cache is NaN: read, it would show in all later scores."""
        requests = [Request(prompt, seed) for seed, prompt in enumerate(prompts, first_seed)]
        batch = prefill(self.checkpoint.model, requests, max_new_tokens)
        batch.cache.self_kv = batch.cache.self_kv.clone()  # prefill makes an inference tensor, which nobody may change
        batch.cache.self_kv[..., batch.cache.length :, :] = float("nan")
        return batch

    def padded(self, prompts: list[list[int]]) -> dict[str, Tensor]:
        """Return transformers' inputs, input_ids and attention_mask [B, S]; left-padded for decoder-only models."""
        return padded(prompts, left=not self.is_seq2seq)

    @property
    def reference_blocks(self) -> Any:
        """The list of transformers' decoder blocks."""
        if self.is_seq2seq:
            return self.reference.decoder.block
        return self.reference.transformer.h if hasattr(self.reference, "transformer") else self.reference.model.layers

    def reference_normed(self, states: Tensor) -> Tensor:
        """Return states after transformers' final norm."""
        if self.is_seq2seq:
            return self.reference.decoder.final_layer_norm(states)
        is_gpt2 = hasattr(self.reference, "transformer")
        return (self.reference.transformer.ln_f if is_gpt2 else self.reference.model.norm)(states)

    def reference_read_out(self, states: Tensor) -> Tensor:
        """Return the logits of states by transformers' final norm and LM head."""
        config, normed = self.reference.config, self.reference_normed(states)
        is_scaled = getattr(config, "scale_decoder_outputs", config.model_type == "umt5")
        return self.reference.lm_head(normed * config.d_model**-0.5 if is_scaled else normed)

    def reference_logits(self, prompt: list[int], answer: list[int]) -> Tensor:
        """Return transformers' logits for each token of an answer, computed without a cache, [answer, V]."""
        if self.is_seq2seq:
            decoder = torch.tensor([[self.checkpoint.start_id, *answer[:-1]]])
            return self.reference(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder).logits[0]
        tokens = torch.tensor([[*prompt, *answer[:-1]]])
        return self.reference(input_ids=tokens).logits[0, len(prompt) - 1 :]


@pytest.fixture(scope="session")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Twin]:
    """Return a function that returns a family's checkpoint by name and builds it once."""
    results: dict[str, Twin] = {}

    def get(family: str) -> Twin:
        if family not in results:
            reference = FAMILIES[family]().eval().requires_grad_(False)
            randomise(reference, seed=list(FAMILIES).index(family))
            folder = tmp_path_factory.mktemp(family)
            save(reference, folder, eos=_common_tokens(reference))
            results[family] = Twin(reference, folder, load_checkpoint(folder))
        return results[family]

    return get


def save(reference: Any, folder: Path, eos: list[int]) -> None:
    """Save the checkpoint with these end-of-sequence tokens."""
    reference.config.eos_token_id = eos
    reference.generation_config.eos_token_id = eos
    reference.save_pretrained(folder)


def _common_tokens(reference: Any) -> list[int]:
    """Return three tokens that occur at many positions of greedy answers.

    As end-of-sequence tokens, they give answers of uneven lengths.
    """
    reference.generation_config.eos_token_id = None
    prompts = padded(random_prompts(200, seed=PROMPT_SEED)[:12], left=not reference.config.is_encoder_decoder)
    generated = reference.generate(**prompts, max_new_tokens=12, do_sample=False, use_cache=False, pad_token_id=PAD)
    ends = {
        token: [int((row == token).nonzero()[0]) for row in generated[:, -12:] if (row == token).any()]
        for token in generated[:, -12:].unique().tolist()
        if token >= FIRST_WORD
    }
    return sorted(ends, key=lambda token: (len(set(ends[token])), len(ends[token])))[-3:]


def random_prompts(count: int, seed: int) -> list[list[int]]:
    """Return random prompts of mixed length, 1..17 tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 18, (count,), generator=generator).tolist()
    return [torch.randint(FIRST_WORD, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Return 200 prompts of mixed length."""
    return random_prompts(200, seed=PROMPT_SEED)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, twin: Callable[[str], Twin]) -> Twin:
    """Return each family in turn."""
    return twin(request.param)


@pytest.fixture(params=POSITION_FAMILIES)
def position_family(request: pytest.FixtureRequest, twin: Callable[[str], Twin]) -> Twin:
    """Return each family of `POSITION_FAMILIES` in turn."""
    return twin(request.param)


@pytest.fixture(autouse=True)
def one_thread_and_no_gradients():  # type: ignore[no-untyped-def]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)
