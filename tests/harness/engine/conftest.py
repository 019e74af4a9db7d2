"""Small random checkpoints of every supported family, saved as transformers saves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from exitbench.harness.checkpoint import Checkpoint, load_checkpoint

VOCABULARY = 100
PAD, FIRST_WORD = 0, 3
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


def _llama(**options: Any) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**LLAMA, **options}))


FAMILIES: dict[str, Callable[[], Any]] = {
    "t5": _t5,
    "t5-gated-untied": lambda: _t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "llama": _llama,
    "llama-rope3-biases": lambda: _llama(attention_bias=True, rope_parameters=LLAMA3_ROPE),
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
}


def randomise(reference: Any, seed: int) -> None:
    """Give every parameter, norms and biases included, a value that matters to the logits."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in reference.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:  # norms and biases
            parameter.data = 0.3 * noise + (1.0 if name.endswith("weight") else 0.0)
        elif "shared" in name or "embed_tokens" in name or "wte" in name:
            parameter.data = noise
        else:
            parameter.data = noise * parameter.shape[-1] ** -0.5


@dataclass(frozen=True)
class Twin:
    """One checkpoint in transformers (the reference) and in the engine."""

    reference: Any
    folder: Path
    checkpoint: Checkpoint

    @property
    def is_seq2seq(self) -> bool:
        return bool(self.reference.config.is_encoder_decoder)

    def padded(self, prompts: list[list[int]]) -> dict[str, Tensor]:
        """Prompts as transformers wants them: input_ids and attention_mask [B, S]; decoder-only on the left."""
        longest = max(map(len, prompts))
        rows, masks = [], []
        for prompt in prompts:
            blank = [PAD] * (longest - len(prompt))
            ones, zeros = [1] * len(prompt), [0] * len(blank)
            rows.append(prompt + blank if self.is_seq2seq else blank + prompt)
            masks.append(ones + zeros if self.is_seq2seq else zeros + ones)
        return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(masks)}

    def reference_logits(self, prompt: list[int], answer: list[int]) -> Tensor:
        """Logits of one row that choose each answer token, without any cache, [answer, V]."""
        if self.is_seq2seq:
            decoder = torch.tensor([[self.checkpoint.start_id, *answer[:-1]]])
            return self.reference(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder).logits[0]
        tokens = torch.tensor([[*prompt, *answer[:-1]]])
        return self.reference(input_ids=tokens).logits[0, len(prompt) - 1 :]


@pytest.fixture(scope="session")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Twin]:
    """A family's checkpoint by name, made once."""
    made: dict[str, Twin] = {}

    def get(family: str) -> Twin:
        if family not in made:
            reference = FAMILIES[family]().eval().requires_grad_(False)
            randomise(reference, seed=len(made))
            folder = tmp_path_factory.mktemp(family)
            save(reference, folder, eos=_common_token(reference))
            made[family] = Twin(reference, folder, load_checkpoint(folder))
        return made[family]

    return get


def save(reference: Any, folder: Path, eos: int) -> None:
    """Write the checkpoint with this end-of-sequence token."""
    reference.config.eos_token_id = eos
    reference.generation_config.eos_token_id = eos
    reference.save_pretrained(folder)


def _common_token(reference: Any) -> int:
    """A token that greedy answers contain at many different places: as end of sequence it gives uneven lengths."""
    reference.generation_config.eos_token_id = None
    prompts = random_prompts(64, seed=9, length=6)
    out = reference.generate(
        input_ids=torch.tensor(prompts), max_new_tokens=8, do_sample=False, use_cache=False, pad_token_id=PAD
    )
    answers = out[:, -8:]
    places = {
        token: len({int((row == token).nonzero()[0]) for row in answers if (row == token).any()})
        for token in answers.unique().tolist()
        if token >= FIRST_WORD
    }
    return max(places, key=lambda token: places[token])


def random_prompts(count: int, seed: int, length: int | None = None) -> list[list[int]]:
    """Prompts of ``length`` tokens, or of mixed lengths 1..17."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 18, (count,), generator=generator).tolist() if length is None else [length] * count
    return [torch.randint(FIRST_WORD, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """200 prompts of mixed length."""
    return random_prompts(200, seed=5)


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, twin: Callable[[str], Twin]) -> Twin:
    """Each family in turn."""
    return twin(request.param)


@pytest.fixture(autouse=True)
def one_thread_and_no_gradients():  # type: ignore[no-untyped-def]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)
