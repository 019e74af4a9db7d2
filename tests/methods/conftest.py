"""Fixtures: two tiny checkpoints with varying confidences, and a slow NumPy decoder that does not use the engine.

The slow decoder has no cache. For every token, all positions run through every block again, in float64. The input of
block l at a position depends on the KV policy. If states are copied, it is the output of block min(l - 1, exit layer).
If the cache is exact, it is the output of block l - 1, as if nothing were skipped.
"""

from __future__ import annotations

import copy
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from exitbench.harness.engine.checkpoints.exit_head_files import save_exit_heads
from exitbench.harness.engine.checkpoints.files import EXIT_HEADS_FILE
from exitbench.harness.engine.checkpoints.loading import Checkpoint, load_checkpoint
from exitbench.harness.engine.model.exit_heads import HeadKind

sys.path.insert(0, str(Path(__file__).parent))  # for the modules that tests share

import slow_rules

Array = NDArray[np.float64]
N_BLOCKS = 6
VOCABULARY = 40
WIDTH, HEAD_WIDTH = 24, 10
EXIT_BLOCKS = (1, 3, 4)


def _seq2seq() -> Any:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=24,
        d_kv=8,
        d_ff=40,
        num_heads=3,
        num_layers=2,
        num_decoder_layers=N_BLOCKS,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
        decoder_start_token_id=0,
        eos_token_id=1,
    )
    return transformers.T5ForConditionalGeneration(config)


def _causal() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=N_BLOCKS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=1,
    )
    return transformers.LlamaForCausalLM(config)


@dataclass(frozen=True)
class Tiny:
    """Checkpoint for the engine, with its tensors and its exit heads' tensors for the slow decoder."""

    checkpoint: Checkpoint
    reference: Any
    weights: dict[str, Array]
    heads: dict[str, Array]


def random_heads(kind: HeadKind, norm_bias: bool) -> dict[str, torch.Tensor]:
    """Return the tensors of exit heads with varying confidences."""
    generator = torch.Generator().manual_seed(6)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * scale * (shape[-1] ** -0.5 if len(shape) > 1 else 1)

    heads: dict[str, torch.Tensor] = {}
    for block in EXIT_BLOCKS:
        if kind == "lens":
            heads |= {f"{block}.lens.weight": normal(WIDTH, WIDTH), f"{block}.lens.bias": normal(WIDTH, scale=0.5)}
            continue
        inner = WIDTH if kind == "linear" else HEAD_WIDTH
        heads |= {f"{block}.norm.weight": 1 + normal(WIDTH, scale=0.2)}
        heads |= {f"{block}.out.weight": normal(VOCABULARY, inner, scale=2.5 if kind == "linear" else 4.0)}
        if norm_bias:
            heads |= {f"{block}.norm.bias": normal(WIDTH, scale=0.2), f"{block}.out.bias": normal(VOCABULARY)}
        if kind == "mlp":
            heads |= {f"{block}.up.weight": normal(inner, WIDTH, scale=1.5), f"{block}.up.bias": normal(inner)}
    return heads


def _tiny(reference: Any, folder: Path, heads: dict[str, torch.Tensor], kind: HeadKind) -> Tiny:
    generator = torch.Generator().manual_seed(4)
    for name, parameter in reference.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith(("final_layer_norm.weight", "model.norm.weight")):
            parameter.data = 2.5 + noise * 0.3  # spreads the logits: margins from 0 to 1
        elif parameter.dim() == 1:
            parameter.data = 1 + 0.2 * noise
        elif "shared" in name or "embed_tokens" in name:
            parameter.data = noise
        else:
            parameter.data = noise * parameter.shape[-1] ** -0.5
    reference.eval().requires_grad_(False).save_pretrained(folder)
    weights = {name: tensor.double().numpy() for name, tensor in reference.state_dict().items()}
    save_exit_heads(folder / EXIT_HEADS_FILE, kind, heads)
    in_double = {name: tensor.double().numpy() for name, tensor in heads.items()}
    return Tiny(load_checkpoint(folder), reference, weights, in_double)


@pytest.fixture(scope="session")
def seq2seq(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Return a T5-like checkpoint with linear exit heads."""
    return _tiny(_seq2seq(), tmp_path_factory.mktemp("seq2seq"), random_heads("linear", norm_bias=True), "linear")


@pytest.fixture(scope="session")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Return a Llama-like checkpoint with lenses as exit heads."""
    return _tiny(_causal(), tmp_path_factory.mktemp("causal"), random_heads("lens", norm_bias=False), "lens")


@pytest.fixture(scope="session", params=["seq2seq", "causal"])
def tiny(request: pytest.FixtureRequest) -> Any:
    """Return each of the two checkpoints in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Return prompts of mixed length."""
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(1, 9, (16,), generator=generator).tolist()
    return [torch.randint(2, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


# ------------------------------------------------------------------------------------------ the slow decoder


def _rms(x: Array, weight: Array, epsilon: float) -> Array:
    return np.asarray(weight * x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon))


def _softmax(x: Array) -> Array:
    shares = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(shares / shares.sum(-1, keepdims=True))


def _attention(q: Array, k: Array, v: Array, heads: int, groups: int, scale: float, bias: Array) -> Array:
    """Compute attention head by head: q [T, H*K], k and v [S, G*K], bias [H, T, S]."""
    size = q.shape[1] // heads
    mixed = []
    for head in range(heads):
        group = head // (heads // groups)
        mine, theirs = slice(head * size, (head + 1) * size), slice(group * size, (group + 1) * size)
        mixed.append(_softmax(q[:, mine] @ k[:, theirs].T * scale + bias[head]) @ v[:, theirs])
    return np.concatenate(mixed, axis=1)


def _causal_mask(length: int) -> Array:
    return np.triu(np.full((length, length), -np.inf), 1)


@functools.cache
def _t5_bias(attention: Any, length: int) -> Array:
    """Return T5's relative position bias with the causal mask, [H, T, T], as in transformers."""
    return np.asarray(attention.compute_bias(length, length)[0].double().numpy() + _causal_mask(length))


@dataclass
class SlowDecoder:
    """Decoder of one prompt; see the module docstring."""

    model: Tiny
    prompt: list[int]
    inputs: list[list[Array]] = field(init=False)  # [L][positions]: input of block l at each position
    source: Array | None = None
    committed: tuple[tuple[int, int], ...] = ()  # tokens and their exit layers
    depths: tuple[int, ...] = ()  # last block at which later tokens attend to each position

    def __post_init__(self) -> None:
        self.inputs = [[] for _ in range(N_BLOCKS)]
        if self.model.checkpoint.kind == "seq2seq":
            encoder = self.model.reference.encoder(torch.tensor([self.prompt])).last_hidden_state[0]
            self.source = encoder.double().numpy()
            return
        for token in self.prompt[:-1]:
            self.commit(token, self.states(token), N_BLOCKS)

    def fork(self) -> SlowDecoder:
        """Return a copy of the decoder at the same position."""
        other = copy.copy(self)
        other.inputs = [list(shown) for shown in self.inputs]
        return other

    def states(self, token: int) -> list[Array]:
        """Return the outputs of blocks 0 (the embedding) to L for one new token, each [D]."""
        w = self.model.weights
        hidden = [w["shared.weight" if self.source is not None else "model.embed_tokens.weight"][token]]
        run = self._t5_block if self.source is not None else self._llama_block
        for block in range(N_BLOCKS):
            hidden.append(run(block, np.stack([*self.inputs[block], hidden[-1]]))[-1])
        return hidden

    def commit(self, token: int, states: list[Array], exit_layer: int, *, is_evicted: bool = False) -> None:
        """Add a token that exits after ``exit_layer`` blocks; deeper blocks get a copy of that state, or nothing."""
        self.committed = (*self.committed, (token, exit_layer))
        self.depths = (*self.depths, exit_layer if is_evicted else N_BLOCKS)
        for block in range(N_BLOCKS):
            self.inputs[block].append(states[min(block, exit_layer)])

    def normed(self, states: Array) -> Array:
        """Return states [.., D] after the final norm."""
        w, config = self.model.weights, self.model.reference.config
        if self.source is not None:
            return _rms(states, w["decoder.final_layer_norm.weight"], config.layer_norm_epsilon)
        return _rms(states, w["model.norm.weight"], config.rms_norm_eps)

    def logits(self, normed: Array) -> Array:
        """Return the logits [.., V] of normed states [.., D]."""
        w = self.model.weights
        if self.source is not None:
            return np.asarray(normed @ w["shared.weight"].T * self.model.reference.config.d_model**-0.5)
        return np.asarray(normed @ w["lm_head.weight"].T)

    def exit_logits(self, block: int, state: Array) -> Array | None:
        """Return the logits [V] of a state [D] by the exit head of its block; None if the block has none."""
        heads = {name.removeprefix(f"{block}."): x for name, x in self.model.heads.items() if name[0] == str(block)}
        if not heads:
            return None
        if "lens.weight" in heads:
            return self.logits(self.normed(state + heads["lens.weight"] @ state + heads["lens.bias"]))
        if "norm.bias" in heads:
            x = (state - state.mean()) / math.sqrt(state.var() + 1e-5) * heads["norm.weight"] + heads["norm.bias"]
        else:
            x = _rms(state, heads["norm.weight"], 1e-6)
        if "up.weight" in heads:
            x = heads["up.weight"] @ x + heads["up.bias"]
            x = np.array([value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in x])
        return np.asarray(heads["out.weight"] @ x + heads.get("out.bias", 0.0))

    def _evicted(self, block: int) -> Array:
        """Return the mask that hides, from the newest position, those that skipped a block (from 0), [T, T]."""
        mask = np.zeros((len(self.depths) + 1,) * 2)
        mask[-1, :-1] = [-np.inf if depth <= block else 0.0 for depth in self.depths]
        return mask

    def _t5_block(self, block: int, x: Array) -> Array:
        config, w = self.model.reference.config, self.model.weights
        assert self.source is not None
        layer = f"decoder.block.{block}.layer"
        heads, n, epsilon = config.num_heads, len(x), config.layer_norm_epsilon
        normed = _rms(x, w[f"{layer}.0.layer_norm.weight"], epsilon)
        q, k, v = (normed @ w[f"{layer}.0.SelfAttention.{part}.weight"].T for part in "qkv")
        bias = _t5_bias(self.model.reference.decoder.block[0].layer[0].SelfAttention, n) + self._evicted(block)
        x = x + _attention(q, k, v, heads, heads, 1.0, bias) @ w[f"{layer}.0.SelfAttention.o.weight"].T
        q = _rms(x, w[f"{layer}.1.layer_norm.weight"], epsilon) @ w[f"{layer}.1.EncDecAttention.q.weight"].T
        k, v = (self.source @ w[f"{layer}.1.EncDecAttention.{part}.weight"].T for part in "kv")
        none = np.zeros((heads, n, len(self.source)))
        x = x + _attention(q, k, v, heads, heads, 1.0, none) @ w[f"{layer}.1.EncDecAttention.o.weight"].T
        up = _rms(x, w[f"{layer}.2.layer_norm.weight"], epsilon) @ w[f"{layer}.2.DenseReluDense.wi.weight"].T
        return np.asarray(x + np.maximum(up, 0) @ w[f"{layer}.2.DenseReluDense.wo.weight"].T)

    def _llama_block(self, block: int, x: Array) -> Array:
        config, w = self.model.reference.config, self.model.weights
        layer, epsilon, n = f"model.layers.{block}", config.rms_norm_eps, len(x)
        size, groups = config.head_dim, config.num_key_value_heads
        angles = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)

        def rotate(heads: Array) -> Array:
            parts = heads.reshape(n, -1, 2, size // 2)
            cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
            first = parts[:, :, 0] * cos - parts[:, :, 1] * sin
            second = parts[:, :, 1] * cos + parts[:, :, 0] * sin
            return np.stack([first, second], axis=2).reshape(n, -1)

        normed = _rms(x, w[f"{layer}.input_layernorm.weight"], epsilon)
        q, k, v = (normed @ w[f"{layer}.self_attn.{part}_proj.weight"].T for part in "qkv")
        bias = np.broadcast_to(_causal_mask(n), (config.num_attention_heads, n, n)) + self._evicted(block)
        mixed = _attention(rotate(q), rotate(k), v, config.num_attention_heads, groups, 1 / math.sqrt(size), bias)
        x = x + mixed @ w[f"{layer}.self_attn.o_proj.weight"].T
        normed = _rms(x, w[f"{layer}.post_attention_layernorm.weight"], epsilon)
        gate, up = (normed @ w[f"{layer}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        return np.asarray(x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{layer}.mlp.down_proj.weight"].T)


SEMANTICS = {  # meaning of each KV policy, independent of its implementation
    "state-copy": "copy",
    "state-copy-lazy": "copy",
    "exact": "exact",
    "sync-parallel": "exact",
    "recompute-backlog": "exact",
    "noisy": "noisy",
    "evict": "evict",
}
SAMPLING = {"full", "heads"}  # whose temperature is that of sampling; elsewhere it is the speed of a decay


@pytest.fixture(scope="session")
def slow_decode() -> Callable[..., list[Any]]:
    """Return a function that decodes a prompt with a method's rule of `slow_rules.py`: one SlowChoice per token."""
    begun: dict[tuple[int, tuple[int, ...]], SlowDecoder] = {}
    seen: dict[tuple[Any, ...], tuple[list[Array], tuple[Any, ...]]] = {}

    def begin(model: Tiny, prompt: list[int]) -> SlowDecoder:
        """Return a decoder that has read the prompt: a copy of a cached one, since this does not depend on the rule."""
        key = (id(model), tuple(prompt))
        if key not in begun:
            begun[key] = SlowDecoder(model, prompt)
        return begun[key].fork()

    def look(decoder: SlowDecoder, fed: int) -> tuple[list[Array], tuple[Any, ...]]:
        """Return the next token's states and the contents of its SlowView. Both are cached for equal answers so far."""
        key = (id(decoder.model), tuple(decoder.prompt), *decoder.committed, decoder.depths, fed)
        if key not in seen:
            each = decoder.states(fed)
            states = np.stack(each)
            normed = decoder.normed(states)
            heads = [decoder.exit_logits(block, state) for block, state in enumerate(states)]
            seen[key] = each, (states, normed, decoder.logits(normed), heads)
        return seen[key]

    def decode(
        model: Tiny,
        prompt: list[int],
        seed: int,
        max_new_tokens: int,
        name: str,
        params: dict[str, Any],
        fitted: dict[str, Array] | None = None,
        gates_first_token: bool = False,
        given: Sequence[int] = (),
        views: list[Any] | None = None,
    ) -> list[Any]:
        """Decode; ``given`` are tokens fed in place of the chosen ones, and ``views`` collects each token's view."""
        decoder, semantics = begin(model, prompt), SEMANTICS[params.get("kv_policy", "state-copy")]
        temperature = params["temperature"] if name in SAMPLING else 0.0
        is_seq2seq = model.checkpoint.kind == "seq2seq"
        fed = 0 if is_seq2seq else prompt[-1]
        results: list[Any] = []
        for position in range(1, max_new_tokens + 1):
            states, shown = look(decoder, fed)
            view = slow_rules.SlowView(*shown, position, max_new_tokens, seed)
            last = slow_rules.RULES["full"](view, {"temperature": temperature}, {})
            # The prompt runs at full depth; its pass gives the first token, unless that one is gated.
            in_prompt = position == 1 and not is_seq2seq and not gates_first_token
            choice = last if in_prompt else slow_rules.RULES[name](view, params, fitted or {})
            kept = N_BLOCKS if semantics == "exact" else choice.exit_layer
            decoder.commit(fed, states, kept, is_evicted=semantics == "evict")
            if semantics == "noisy":  # the cache is damaged as by copying, but the token is full depth's
                choice = replace(choice, token=last.token, gap=min(choice.gap, last.gap))
            results.append(choice)
            if views is not None:
                views.append(view)
            fed = given[position - 1] if given else choice.token
            if position == len(given) or (not given and fed in model.checkpoint.eos_ids):
                break
        return results

    return decode
