"""Hugging Face checkpoints (config.json + safetensors) into the engine's layout.

The only place that knows model families. Each reader maps a family's tensor names and options to `Architecture` and
`Weights`; norms are folded into the projections behind them here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from exitbench.errors import UserError, suggestion
from exitbench.harness.exit_heads import EXIT_HEADS_FILE, load_exit_heads
from exitbench.harness.model import Transformer
from exitbench.harness.weights import ACTIVATIONS, Architecture, BlockWeights, Linear, Weights


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model and what decoding with it needs."""

    model: Transformer
    eos_ids: frozenset[int]
    start_id: int | None
    """First decoder token of encoder-decoder models; None for decoder-only ones."""

    @property
    def kind(self) -> str:
        """``seq2seq`` or ``causal``."""
        return "causal" if self.start_id is None else "seq2seq"


class Tensors:
    """The tensors of a checkpoint by name, in one number format and place."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: str) -> None:
        self.folder, self.dtype, self.device = folder, dtype, device
        self.files: dict[str, Path] = {}
        for path in safetensors_files(folder):
            try:
                with safe_open(path, framework="pt") as file:
                    self.files.update(dict.fromkeys(file.keys(), path))
            except SafetensorError as error:
                raise UserError(f"{path}: not a complete safetensors file ({error}).") from error

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def __call__(self, name: str, *shape: int) -> Tensor:
        """Read one tensor and check its shape.

        Raises:
            UserError: The tensor is missing or has another shape than config.json says.
        """
        if name not in self.files:
            raise UserError(
                f"{self.folder}: tensor {name!r} is missing from the checkpoint ({len(self.files)} tensors found)."
            )
        with safe_open(self.files[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        if shape and tuple(tensor.shape) != shape:
            found = list(tensor.shape)
            raise UserError(f"{self.folder}: tensor {name!r} has shape {found}, config.json asks for {list(shape)}.")
        return tensor.to(self.device, self.dtype)

    def linear(self, name: str, shape: tuple[int, int], *, bias: bool = False, transposed: bool = False) -> Linear:
        """Read a projection [out, in], with its bias if the family has one; ``transposed`` for GPT-2's Conv1D."""
        weight = self(f"{name}.weight", *(shape[::-1] if transposed else shape))
        return Linear(weight.T.contiguous() if transposed else weight, self(f"{name}.bias", shape[0]) if bias else None)

    def norm(self, name: str, width: int, *, bias: bool = False) -> Linear:
        """Read an elementwise norm: weight [D] and bias [D] or None."""
        return Linear(self(f"{name}.weight", width), self(f"{name}.bias", width) if bias else None)


def safetensors_files(folder: Path) -> list[Path]:
    """The files of the model's own weights in a checkpoint folder, sorted; trained exit heads are not among them.

    Raises:
        UserError: There is none.
    """
    files = sorted(path for path in folder.glob("*.safetensors") if path.name != EXIT_HEADS_FILE)
    if not files:
        others = ", ".join(sorted(path.name for path in folder.glob("*.bin"))) or "no weight files"
        raise UserError(
            f"{folder}: no *.safetensors file (found {others}). Only safetensors weights are read, never pickles; "
            "convert with `model.save_pretrained(folder, safe_serialization=True)`."
        )
    return files


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json of a checkpoint folder.

    Raises:
        UserError: The folder or the file is missing, not JSON, or of a family that is not supported.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{folder}: not a Hugging Face checkpoint folder (no config.json).")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: not valid JSON ({error.msg}).") from error
    family = config.get("model_type") if isinstance(config, dict) else None
    if family not in READERS:
        raise UserError(f"{path}: model_type {family!r} is not supported.{suggestion(str(family), READERS)}")
    return dict(config)


GENERATION_KEYS = ("eos_token_id", "decoder_start_token_id", "pad_token_id")
"""What generation_config.json may say otherwise than config.json: where decoding starts and ends."""


def read_generation_config(folder: Path) -> dict[str, Any]:
    """Read generation_config.json; empty where there is none.

    Raises:
        UserError: It is not a JSON object.
    """
    path = folder / "generation_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error}).") from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: not a JSON object.")
    return config


def load_checkpoint(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Checkpoint:
    """Load a checkpoint folder.

    Raises:
        UserError: Anything in it that the engine cannot read; names the file and what was expected.
    """
    raw = read_config(folder)
    config = complete_config(raw)
    arch, weights = READERS[raw["model_type"]](config, Tensors(folder, dtype, device))
    ids = {**raw, **read_generation_config(folder)}
    eos = ids.get("eos_token_id", config.eos_token_id)
    eos_ids = frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos])
    start = ids.get("decoder_start_token_id", ids.get("pad_token_id", 0)) if arch.encoder_blocks else None
    heads = load_exit_heads(folder, arch.n_blocks, arch.d_model, weights.lm_head.weight.shape[0], dtype, device)
    return Checkpoint(Transformer(arch, weights, heads), eos_ids, start)


def complete_config(raw: dict[str, Any]) -> Any:
    """Return the configuration with transformers' own defaults for keys that the file leaves out."""
    from transformers import AutoConfig

    known = {key: value for key, value in raw.items() if key not in ("model_type", "auto_map")}
    return AutoConfig.for_model(raw["model_type"], **known)


def _fold(projection: Linear, norm: Linear) -> Linear:
    """W(w x + b) + c = (W w) x + (W b + c)."""
    bias = projection.bias
    if norm.bias is not None:
        shift = projection.weight @ norm.bias
        bias = shift if bias is None else bias + shift
    return Linear(projection.weight * norm.weight, bias)


def _join(*parts: Linear) -> Linear:
    """Projections of one input as one: rows one below another; absent biases count as zero."""
    if all(part.bias is None for part in parts):
        return Linear(torch.cat([part.weight for part in parts]))
    biases = [part.weight.new_zeros(part.weight.shape[0]) if part.bias is None else part.bias for part in parts]
    return Linear(torch.cat([part.weight for part in parts]), torch.cat(biases))


def _block(**projections: Linear) -> BlockWeights:
    return BlockWeights(**{name: projection.laid_out() for name, projection in projections.items()})


def _activation(name: str, folder: Path) -> Any:
    spelled = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}.get(name, name)
    if spelled not in ACTIVATIONS:
        raise UserError(f"{folder}/config.json: activation {name!r} is not supported.{suggestion(name, ACTIVATIONS)}")
    return spelled


def _read_t5(config: Any, tensors: Tensors) -> tuple[Architecture, Weights]:
    """T5: v1.0 (tied, ReLU) and v1.1/Flan (untied, gated GELU)."""
    width, inner, heads = config.d_model, config.num_heads * config.d_kv, config.num_heads
    arch = Architecture(
        vocab_size=config.vocab_size,
        d_model=width,
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=config.d_kv,
        d_ff=config.d_ff,
        n_blocks=config.num_decoder_layers,
        encoder_blocks=config.num_layers,
        norm="rms",
        norm_eps=config.layer_norm_epsilon,
        positions="relative",
        activation=_activation(config.dense_act_fn, tensors.folder),
        gated=config.is_gated_act,
        attention_scale=1.0,  # T5 folds the scale into its initialisation
        logit_scale=width**-0.5 if config.scale_decoder_outputs else 1.0,
        relative_buckets=config.relative_attention_num_buckets,
        relative_max_distance=config.relative_attention_max_distance,
    )

    def attention(name: str) -> tuple[Linear, Linear, Linear, Linear]:
        q, k, v = (tensors.linear(f"{name}.{part}", (inner, width)) for part in "qkv")
        return q, k, v, tensors.linear(f"{name}.o", (width, inner))

    def block(stack: str, index: int, source_norm: Linear | None) -> BlockWeights:
        layer = f"{stack}.block.{index}.layer"
        q, k, v, out = attention(f"{layer}.0.SelfAttention")
        last = 1 if source_norm is None else 2
        names = ("wi_0", "wi_1") if config.is_gated_act else ("wi",)
        dense = f"{layer}.{last}.DenseReluDense"
        up = _join(*(tensors.linear(f"{dense}.{name}", (config.d_ff, width)) for name in names))
        cross: dict[str, Linear] = {}
        if source_norm is not None:
            cq, ck, cv, cross_out = attention(f"{layer}.1.EncDecAttention")
            cross_q = _fold(cq, tensors.norm(f"{layer}.1.layer_norm", width))
            cross = {"cross_q": cross_q, "cross_kv": _fold(_join(ck, cv), source_norm), "cross_out": cross_out}
        return _block(
            qkv=_fold(_join(q, k, v), tensors.norm(f"{layer}.0.layer_norm", width)),
            attention_out=out,
            up=_fold(up, tensors.norm(f"{layer}.{last}.layer_norm", width)),
            down=tensors.linear(f"{dense}.wo", (width, config.d_ff)),
            **cross,
        )

    shared_name = "shared.weight" if "shared.weight" in tensors else "encoder.embed_tokens.weight"
    shared = tensors(shared_name, config.vocab_size, width)
    # transformers says every T5 is tied; v1.1 and Flan files hold a head of their own, and then it is used there too.
    head = tensors("lm_head.weight", config.vocab_size, width) if "lm_head.weight" in tensors else shared
    bias = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    source_norm = tensors.norm("encoder.final_layer_norm", width)
    return arch, Weights(
        token_embedding_VD=shared,
        lm_head=Linear(head),
        final_norm=tensors.norm("decoder.final_layer_norm", width),
        blocks=tuple(block("decoder", index, source_norm) for index in range(arch.n_blocks)),
        encoder_blocks=tuple(block("encoder", index, None) for index in range(arch.encoder_blocks)),
        relative_bias=tensors(f"decoder.{bias}", arch.relative_buckets, heads),
        encoder_relative_bias=tensors(f"encoder.{bias}", arch.relative_buckets, heads),
    )


def _read_llama(config: Any, tensors: Tensors) -> tuple[Architecture, Weights]:
    """Llama and Qwen2: rotary positions, RMS norms, gated MLP, grouped key/value heads, optional biases."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    width, heads, groups = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    size, inner = getattr(config, "head_dim", None) or width // heads, config.intermediate_size
    # Qwen2 has no such options: it always has biases on queries, keys and values, and nowhere else.
    qkv_bias, out_bias = getattr(config, "attention_bias", True), getattr(config, "attention_bias", False)
    mlp_bias = getattr(config, "mlp_bias", False)
    if getattr(config, "use_sliding_window", False):
        raise UserError(f"{tensors.folder}/config.json: use_sliding_window is not supported; allowed: false.")
    arch = Architecture(
        vocab_size=config.vocab_size,
        d_model=width,
        n_heads=heads,
        n_kv_heads=groups,
        head_dim=size,
        d_ff=inner,
        n_blocks=config.num_hidden_layers,
        encoder_blocks=0,
        norm="rms",
        norm_eps=config.rms_norm_eps,
        positions="rotary",
        activation=_activation(config.hidden_act, tensors.folder),
        gated=True,
        attention_scale=size**-0.5,
        max_positions=config.max_position_embeddings,
    )

    def block(index: int) -> BlockWeights:
        layer = f"model.layers.{index}"
        q = tensors.linear(f"{layer}.self_attn.q_proj", (heads * size, width), bias=qkv_bias)
        k, v = (
            tensors.linear(f"{layer}.self_attn.{part}_proj", (groups * size, width), bias=qkv_bias) for part in "kv"
        )
        up = _join(
            *(tensors.linear(f"{layer}.mlp.{part}_proj", (inner, width), bias=mlp_bias) for part in ("gate", "up"))
        )
        return _block(
            qkv=_fold(_join(q, k, v), tensors.norm(f"{layer}.input_layernorm", width)),
            attention_out=tensors.linear(f"{layer}.self_attn.o_proj", (width, heads * size), bias=out_bias),
            up=_fold(up, tensors.norm(f"{layer}.post_attention_layernorm", width)),
            down=tensors.linear(f"{layer}.mlp.down_proj", (width, inner), bias=mlp_bias),
        )

    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        frequencies, scale = rope["rope_theta"] ** -(torch.arange(0, size, 2).float() / size), 1.0
    elif rope["rope_type"] in ("linear", "llama3", "yarn"):  # the others change with the length of the text
        frequencies, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu")
    else:
        allowed = suggestion(rope["rope_type"], ("default", "linear", "llama3", "yarn"))
        raise UserError(f"{tensors.folder}/config.json: rope_type {rope['rope_type']!r} is not supported.{allowed}")
    embedding = tensors("model.embed_tokens.weight", config.vocab_size, width)
    return arch, Weights(
        token_embedding_VD=embedding,
        lm_head=Linear(
            embedding if config.tie_word_embeddings else tensors("lm_head.weight", config.vocab_size, width)
        ),
        final_norm=tensors.norm("model.norm", width),
        blocks=tuple(block(index) for index in range(arch.n_blocks)),
        inverse_frequencies=frequencies.to(tensors.device),
        rotary_scale=scale,
    )


def _read_gpt2(config: Any, tensors: Tensors) -> tuple[Architecture, Weights]:
    """GPT-2: learned positions, layer norms with biases, transposed weights, tied head."""
    width, heads = config.n_embd, config.n_head
    inner = config.n_inner or 4 * width
    root = "transformer." if "transformer.wte.weight" in tensors else ""  # the original files have no prefix
    unsupported = ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")
    for option in unsupported:
        if getattr(config, option, False):
            raise UserError(f"{tensors.folder}/config.json: {option} is not supported; allowed: false.")
    arch = Architecture(
        vocab_size=config.vocab_size,
        d_model=width,
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=width // heads,
        d_ff=inner,
        n_blocks=config.n_layer,
        encoder_blocks=0,
        norm="layer",
        norm_eps=config.layer_norm_epsilon,
        positions="learned",
        activation=_activation(config.activation_function, tensors.folder),
        gated=False,
        attention_scale=(width // heads) ** -0.5 if config.scale_attn_weights else 1.0,
        max_positions=config.n_positions,
    )

    def block(index: int) -> BlockWeights:
        layer = f"{root}h.{index}"
        qkv = tensors.linear(f"{layer}.attn.c_attn", (3 * width, width), bias=True, transposed=True)
        up = tensors.linear(f"{layer}.mlp.c_fc", (inner, width), bias=True, transposed=True)
        return _block(
            qkv=_fold(qkv, tensors.norm(f"{layer}.ln_1", width, bias=True)),
            attention_out=tensors.linear(f"{layer}.attn.c_proj", (width, width), bias=True, transposed=True),
            up=_fold(up, tensors.norm(f"{layer}.ln_2", width, bias=True)),
            down=tensors.linear(f"{layer}.mlp.c_proj", (width, inner), bias=True, transposed=True),
        )

    embedding = tensors(f"{root}wte.weight", config.vocab_size, width)
    return arch, Weights(
        token_embedding_VD=embedding,
        lm_head=Linear(
            embedding if config.tie_word_embeddings else tensors("lm_head.weight", config.vocab_size, width)
        ),
        final_norm=tensors.norm(f"{root}ln_f", width, bias=True),
        blocks=tuple(block(index) for index in range(arch.n_blocks)),
        position_embedding_PD=tensors(f"{root}wpe.weight", config.n_positions, width),
    )


READERS: dict[str, Callable[[Any, Tensors], tuple[Architecture, Weights]]] = {
    "t5": _read_t5,
    "llama": _read_llama,
    "qwen2": _read_llama,
    "gpt2": _read_gpt2,
}
