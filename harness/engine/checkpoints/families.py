"""Model families (T5, Llama, GPT-2 and their variants): tensor names and options of Hugging Face checkpoints.

No other module knows a family. Each reader maps a family's configuration and tensors to `Architecture` and `Weights`,
and folds norm weights into the projections that follow them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from exitbench.errors import UserError, suggestion
from exitbench.harness.engine.checkpoints.tensor_files import Tensors
from exitbench.harness.engine.model.weights import (
    ACTIVATIONS,
    Architecture,
    BlockWeights,
    HeadNorm,
    Linear,
    NormedLinear,
    Weights,
)
from exitbench.harness.reading.config_values import AllowedValue, shortened


def _fold(projection: Linear, norm: Linear) -> Linear:
    """Return a projection with the norm before it folded in: W(w x + b) + c = (W w) x + (W b + c)."""
    bias = projection.bias
    if norm.bias is not None:
        shift = projection.weight @ norm.bias
        bias = shift if bias is None else bias + shift
    return Linear(projection.weight * norm.weight, bias)


def _join(*parts: Linear) -> Linear:
    """Return one projection that concatenates the outputs of ``parts``, which share an input; a missing bias is 0."""
    if all(part.bias is None for part in parts):
        return Linear(torch.cat([part.weight for part in parts]))
    biases = [part.weight.new_zeros(part.weight.shape[0]) if part.bias is None else part.bias for part in parts]
    return Linear(torch.cat([part.weight for part in parts]), torch.cat(biases))


def _block(**parts: Any) -> BlockWeights:
    return BlockWeights(**parts).map_projections(Linear.in_default_layout)


def _head(tensors: Tensors, embedded: str, embedding: Tensor, vocab_size: int, *, tied: bool) -> Tensor:
    """Return the LM head's weight [V, D]: if ``tied`` the embedding, unless the files hold another `lm_head.weight`.

    ``embedded`` is the tensor name of the embedding in the files, and ``embedding`` the tensor itself.
    """
    name = "lm_head.weight"
    if tied and (name not in tensors or tensors.is_copy(name, original=embedded)):
        return embedding
    return tensors(name, vocab_size, embedding.shape[1])


_ALIASES = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}


def _activation(name: str, path: Path) -> Any:
    canonical = _ALIASES.get(name, name)
    if canonical not in ACTIVATIONS:
        raise UserError(f"{path}: activation {name!r} is not supported.{suggestion(name, ACTIVATIONS)}")
    return canonical


def _no_activation(name: str) -> str | None:
    """Return why the lean engine does not support an activation; None if it does or transformers does not know it."""
    if _ALIASES.get(name, name) in ACTIVATIONS:
        return None
    # Imported here: it loads torch's compiler, which takes longer to import than everything else a lean model needs.
    from transformers.activations import ACT2FN

    return _lacks("activation", name, sorted(ACTIVATIONS)) if name in ACT2FN else None


def _first_unsupported(config: Any, *options: str) -> str | None:
    """Return why the lean engine cannot run the first of ``options`` that ``config`` sets; None if it sets none."""
    values = ((option, getattr(config, option, None)) for option in options)
    return next(
        (_lacks(option, value, ["false" if value is True else "null"]) for option, value in values if value), None
    )


def _lacks(option: str, value: Any, allowed: Sequence[str]) -> str:
    return f'{option} is {shortened(value)}; allowed with engine = "lean": {", ".join(allowed)}'


def _read_t5(config: Any, tensors: Tensors, *, biases_each_block: bool = False) -> tuple[Architecture, Weights]:
    """Return architecture and weights of a T5: v1.0 (tied, ReLU), v1.1/Flan (untied, gated GELU), mT5 or umT5.

    mT5 does not scale states before the head. umT5 (``biases_each_block``) scales them, and each of its
    blocks has its own position biases.
    """
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
        activation=_activation(config.dense_act_fn, tensors.config),
        gated=config.is_gated_act,
        attention_scale=1.0,  # T5 folds the scale into its initialisation
        logit_scale=width**-0.5 if getattr(config, "scale_decoder_outputs", biases_each_block) else 1.0,
        wide_stream=tensors.dtype == torch.float16,
        relative_buckets=config.relative_attention_num_buckets,
        relative_max_distance=config.relative_attention_max_distance,
    )

    def attention(name: str) -> tuple[Linear, Linear, Linear, Linear]:
        q, k, v = (tensors.linear(f"{name}.{part}", (inner, width)) for part in "qkv")
        return q, k, v, tensors.linear(f"{name}.o", (width, inner))

    wide = torch.float32 if arch.wide_stream else None

    def block(stack: str, index: int, source_norm: Linear | None) -> BlockWeights:
        layer = f"{stack}.block.{index}.layer"
        q, k, v, attention_out = attention(f"{layer}.0.SelfAttention")
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
            attention_out=attention_out,
            up=_fold(up, tensors.norm(f"{layer}.{last}.layer_norm", width)),
            down=Linear(tensors(f"{dense}.wo.weight", width, config.d_ff, dtype=wide)),
            **cross,
        )

    shared_name = "shared.weight" if "shared.weight" in tensors else "encoder.embed_tokens.weight"
    shared = tensors(shared_name, config.vocab_size, width)
    for stack in ("encoder", "decoder"):
        tensors.is_copy(
            f"{stack}.embed_tokens.weight", original=shared_name
        )  # one that differs stays unread and is refused
    head = _head(tensors, shared_name, shared, config.vocab_size, tied=True)  # transformers treats every T5 as tied

    def bias(stack: str, n_blocks: int) -> Tensor:
        names = [
            f"{stack}.block.{block}.layer.0.SelfAttention.relative_attention_bias.weight" for block in range(n_blocks)
        ]
        tables = [tensors(name, arch.relative_buckets, heads) for name in (names if biases_each_block else names[:1])]
        return torch.cat(tables, dim=1)

    source_norm = tensors.norm("encoder.final_layer_norm", width)
    return arch, Weights(
        token_embedding_VD=shared,
        lm_head=Linear(head),
        final_norm=tensors.norm("decoder.final_layer_norm", width),
        blocks=tuple(block("decoder", index, source_norm) for index in range(arch.n_blocks)),
        encoder_blocks=tuple(block("encoder", index, None) for index in range(arch.encoder_blocks)),
        relative_bias=bias("decoder", arch.n_blocks),
        encoder_relative_bias=bias("encoder", arch.encoder_blocks),
    )


def _why_not_t5(config: Any) -> str | None:
    return _no_activation(config.dense_act_fn)


@dataclass(frozen=True)
class _Variant:
    """Differences between a model family and Llama.

    Attributes:
        qkv_bias: Whether queries, keys and values have biases if config.json has no attention_bias.
        fused: Whether projections of the same input are stored as one tensor; rotary positions may then cover only some
            dimensions of a head.
        head_norm: Norms of queries and keys: per head, or jointly over all heads of a token; None: no norms.
        norms_outputs: Whether norms follow attention and feed-forward network instead of preceding them.
    """

    qkv_bias: bool = False
    fused: bool = False
    head_norm: Literal["each", "joint"] | None = None
    norms_outputs: bool = False


def _read_llama(config: Any, tensors: Tensors, variant: _Variant) -> tuple[Architecture, Weights]:
    """Return architecture and weights of Llama or a variant: rotary positions, RMS norms, gated MLP, grouped heads."""
    width, heads, groups = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    size, inner = getattr(config, "head_dim", None) or width // heads, config.intermediate_size
    qkv_bias, out_bias = getattr(config, "attention_bias", variant.qkv_bias), getattr(config, "attention_bias", False)
    mlp_bias = getattr(config, "mlp_bias", False)
    if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        raise UserError(f'{tensors.config}: layer_types: allowed: "full_attention" for every block.')
    if heads % groups or size % 2:
        raise UserError(
            f"{tensors.config}: num_attention_heads is {heads}, num_key_value_heads {groups}, head_dim "
            f"{size}; allowed: as many heads as a multiple of the key/value heads, and an even head_dim."
        )
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
        activation=_activation(config.hidden_act, tensors.config),
        gated=True,
        attention_scale=size**-0.5,
        max_positions=config.max_position_embeddings,
        norms_inputs=not variant.norms_outputs,
    )
    rotated = _rotated_part(config, size, tensors.config) if variant.fused else size
    frequencies, scale = _rotary(config, size, rotated, tensors.config)
    rotates = _rotating(config, tensors.config)

    def joined(name: str, fused: str, parts: Mapping[str, int], *, bias: bool) -> Linear:
        if variant.fused:
            return tensors.linear(f"{name}.{fused}_proj", (sum(parts.values()), width), bias=bias)
        return _join(*(tensors.linear(f"{name}.{part}_proj", (n, width), bias=bias) for part, n in parts.items()))

    def head_norm(name: str, n_heads: int) -> HeadNorm | None:
        if variant.head_norm is None:
            return None
        is_joint = variant.head_norm == "joint"
        weight = tensors(f"{name}.weight", n_heads * size if is_joint else size)
        return HeadNorm(weight.view(-1, size).expand(n_heads, size), config.rms_norm_eps, is_joint)

    def block(index: int) -> BlockWeights:
        layer = f"model.layers.{index}"
        attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        qkv = joined(attention, "qkv", {"q": heads * size, "k": groups * size, "v": groups * size}, bias=qkv_bias)
        if rotated < size:
            qkv = _reorder_rotary_dims(qkv, heads + groups, size, rotated)
        attention_out = tensors.linear(f"{attention}.o_proj", (width, heads * size), bias=out_bias)
        up = joined(mlp, "gate_up", {"gate": inner, "up": inner}, bias=mlp_bias)
        down = tensors.linear(f"{mlp}.down_proj", (width, inner), bias=mlp_bias)
        behind_attention = tensors.norm(f"{layer}.post_attention_layernorm", width)
        normed_out: Linear | NormedLinear = attention_out
        normed_down: Linear | NormedLinear = down
        if variant.norms_outputs:
            behind_mlp = tensors.norm(f"{layer}.post_feedforward_layernorm", width)
            normed_out = NormedLinear(attention_out, behind_attention.weight, config.rms_norm_eps)
            normed_down = NormedLinear(down, behind_mlp.weight, config.rms_norm_eps)
        else:
            qkv = _fold(qkv, tensors.norm(f"{layer}.input_layernorm", width))
            up = _fold(up, behind_attention)
        return _block(
            qkv=qkv,
            attention_out=normed_out,
            up=up,
            down=normed_down,
            query_norm=head_norm(f"{attention}.q_norm", heads),
            key_norm=head_norm(f"{attention}.k_norm", groups),
            rotates=rotates[index],
        )

    embedded = "model.embed_tokens.weight"
    embedding = tensors(embedded, config.vocab_size, width)
    return arch, Weights(
        token_embedding_VD=embedding,
        lm_head=Linear(_head(tensors, embedded, embedding, config.vocab_size, tied=config.tie_word_embeddings)),
        final_norm=tensors.norm("model.norm", width),
        blocks=tuple(block(index) for index in range(arch.n_blocks)),
        inverse_frequencies=frequencies.to(tensors.device),
        rotary_scale=scale,
    )


def _reorder_rotary_dims(projection: Linear, n_heads: int, size: int, rotated: int) -> Linear:
    """Reorder the query and key dimensions of partly rotated heads, so that rotary positions apply to whole heads.

    Rotary positions pair dimension i with i + rotated/2 in the files and with i + size/2 in the engine, where ``size``
    is the head size. Unrotated dimensions get angle 0. Products of queries and keys do not depend on this order.
    The first ``n_heads`` heads of the projection are reordered: those of queries and keys.
    """
    half, passed = rotated // 2, (size - rotated) // 2
    order = torch.arange(size)
    first, second, unrotated = order[:half], order[half:rotated], order[rotated:]
    order = torch.cat((first, unrotated[:passed], second, unrotated[passed:]))
    rows = torch.arange(len(projection.weight)).view(-1, size)
    rows[:n_heads] = rows[:n_heads, order]
    bias = projection.bias
    return Linear(projection.weight[rows.flatten()], None if bias is None else bias[rows.flatten()])


def _rotating(config: Any, path: Path) -> list[bool]:
    """Return for each block whether it has rotary positions."""
    flags = getattr(config, "no_rope_layers", None) or [True] * config.num_hidden_layers
    if len(flags) < config.num_hidden_layers:
        raise UserError(f"{path}: no_rope_layers has {len(flags)} entries; allowed: one for each block.")
    return [bool(has_positions) for has_positions in flags[: config.num_hidden_layers]]


def _why_not_llama(config: Any) -> str | None:
    return (
        _first_unsupported(config, "use_sliding_window", "sliding_window")
        or _no_rotary(config.rope_parameters.get("rope_type"))
        or _no_activation(config.hidden_act)
    )


def _no_rotary(kind: Any) -> str | None:
    """Return why the lean engine does not support a `rope_type`; None if it does or transformers does not know it."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if not isinstance(kind, str) or kind in ROTARY or kind not in ROPE_INIT_FUNCTIONS:
        return None
    return _lacks("rope_type", kind, ROTARY)


def _rotated_part(config: Any, size: int, path: Path) -> int:
    """Return the number of dimensions of each head, out of ``size``, that rotary positions rotate."""
    key = "partial_rotary_factor"
    part = AllowedValue(float).check(path, f"rope_parameters: {key}", config.rope_parameters.get(key, 1.0))
    rotated = int(size * min(part, 2.0))
    if rotated % 2 or rotated > size:
        raise UserError(f"{path}: {key} is {part}; allowed: one that makes an even part of head_dim, {size}.")
    return rotated


def _rotary(config: Any, size: int, rotated: int, path: Path) -> tuple[Tensor, float]:
    """Return inverse frequencies [head_dim / 2] of rotary positions, and the factor of their cosines and sines.

    Only ``rotated`` of the ``size`` dimensions of a head are rotated; the others have frequency 0.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = config.rope_parameters
    kind = rope.get("rope_type")
    if kind not in ROTARY:
        raise UserError(f"{path}: rope_type {shortened(kind)} is not supported.{suggestion(str(kind), ROTARY)}")
    for key in ("rope_theta", "factor") if kind != "default" else ("rope_theta",):
        AllowedValue(float).check(path, f"rope_parameters: {key}", rope.get(key))
    try:
        if kind == "default":
            frequencies, scale = rope["rope_theta"] ** -(torch.arange(0, rotated, 2).float() / rotated), 1.0
        else:
            frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    except Exception as error:  # a key that transformers' function needs, or a value that it cannot compute with
        raise UserError(f"{path}: rope_parameters {shortened(rope)} cannot be used ({error!r}).") from error
    if frequencies.shape != (rotated // 2,) or not torch.isfinite(frequencies * scale).all():
        raise UserError(f"{path}: rope_parameters {shortened(rope)} give frequencies that are not finite.")
    return F.pad(frequencies, (0, (size - rotated) // 2)), scale


def _read_gpt2(config: Any, tensors: Tensors) -> tuple[Architecture, Weights]:
    """Return architecture and weights of GPT-2: learned positions, layer norms with biases, transposed weights."""
    width, heads = config.n_embd, config.n_head
    inner = config.n_inner or 4 * width
    root = "transformer." if "transformer.wte.weight" in tensors else ""  # the original files have no prefix
    if width % heads:
        raise UserError(f"{tensors.config}: n_embd is {width}; allowed: a multiple of n_head, {heads}.")
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
        activation=_activation(config.activation_function, tensors.config),
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

    embedded = f"{root}wte.weight"
    embedding = tensors(embedded, config.vocab_size, width)
    return arch, Weights(
        token_embedding_VD=embedding,
        lm_head=Linear(_head(tensors, embedded, embedding, config.vocab_size, tied=config.tie_word_embeddings)),
        final_norm=tensors.norm(f"{root}ln_f", width, bias=True),
        blocks=tuple(block(index) for index in range(arch.n_blocks)),
        position_embedding_PD=tensors(f"{root}wpe.weight", config.n_positions, width),
    )


def _why_not_gpt2(config: Any) -> str | None:
    unsupported = _first_unsupported(config, "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn")
    return unsupported or _no_activation(config.activation_function)


@dataclass(frozen=True)
class Family:
    """Rules for reading the checkpoints of one model family into the lean engine.

    Attributes:
        read: Maps configuration and tensors to the lean engine's architecture and weights.
        why_not: Maps the configuration to a message on the first option that the lean engine does not support, with
            the allowed values; None if all options are supported.
        values: Keys that are read from config.json, with their allowed values.
        stacks: Config key with the number of blocks, by prefix of the blocks' tensor names.
        harmless: Patterns of the names of stored tensors that are not used in computation.
    """

    read: Callable[[Any, Tensors], tuple[Architecture, Weights]]
    why_not: Callable[[Any], str | None]
    values: Mapping[str, AllowedValue]
    stacks: Mapping[str, str]
    harmless: tuple[str, ...]


ROTARY = ("default", "linear", "llama3", "yarn")
"""Supported kinds of rotary positions; other kinds in transformers change with the length of the text."""

_COUNT, _FLAG, _WORD, _NUMBER = AllowedValue(int), AllowedValue(bool), AllowedValue(str), AllowedValue(float)
_BLOCKS = AllowedValue(int, most=10_000)  # transformers makes a list of them
_WIDTH = AllowedValue(int, most=2**24)  # frequencies of this many dimensions are computed before any tensor is read
_T5_VALUES = {
    **dict.fromkeys(("vocab_size", "d_model", "hidden_size", "d_kv", "head_dim", "d_ff"), _WIDTH),
    **dict.fromkeys(("num_layers", "num_hidden_layers"), _BLOCKS),
    "num_decoder_layers": AllowedValue(int, null=True, most=_BLOCKS.most),
    **dict.fromkeys(("num_heads", "num_attention_heads"), _WIDTH),
    **dict.fromkeys(("relative_attention_num_buckets", "relative_attention_max_distance"), _COUNT),
    "layer_norm_epsilon": _NUMBER,
    **dict.fromkeys(("feed_forward_proj", "dense_act_fn"), _WORD),
    "is_gated_act": _FLAG,
}
_T5_STACKS = {"encoder.block": "num_layers", "decoder.block": "num_decoder_layers"}
# In files converted from the first release; cross-attention has no positions.
_T5_HARMLESS = (r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",)
_LLAMA_VALUES = {
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads"), _WIDTH),
    **dict.fromkeys(("num_key_value_heads", "head_dim"), AllowedValue(int, null=True, most=_WIDTH.most)),
    "num_hidden_layers": _BLOCKS,
    "hidden_act": _WORD,
    **dict.fromkeys(("max_position_embeddings", "original_max_position_embeddings"), _COUNT),
    **dict.fromkeys(("rms_norm_eps", "rope_theta", "partial_rotary_factor"), _NUMBER),
    **dict.fromkeys(("rope_parameters", "rope_scaling"), AllowedValue(dict, null=True)),
    "tie_word_embeddings": _FLAG,
}
_BIASES = dict.fromkeys(("attention_bias", "mlp_bias"), _FLAG)
_WINDOWS = {"use_sliding_window": _FLAG, "layer_types": AllowedValue(list, null=True)}
_SOME_ROTATE = {"no_rope_layers": AllowedValue(list, null=True), "no_rope_layer_interval": _COUNT}
_WINDOW = {"sliding_window": AllowedValue(int, null=True)}
_GPT2_VALUES = {
    **dict.fromkeys(("vocab_size", "n_embd", "hidden_size", "n_head", "num_attention_heads"), _WIDTH),
    "n_inner": AllowedValue(int, null=True, most=_WIDTH.most),
    **dict.fromkeys(("n_layer", "num_hidden_layers"), _BLOCKS),
    **dict.fromkeys(("n_positions", "max_position_embeddings"), _COUNT),
    "activation_function": _WORD,
    "layer_norm_epsilon": _NUMBER,
    **dict.fromkeys(("scale_attn_weights", "tie_word_embeddings"), _FLAG),
    **dict.fromkeys(("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"), _FLAG),
}
_FREQUENCIES = r"(.*\.)?rotary_emb\.inv_freq"
"""Buffer of earlier versions of transformers; the frequencies are computed from config.json."""


def _like_llama(values: Mapping[str, AllowedValue], variant: _Variant = _Variant()) -> Family:
    """Return a family that is read like Llama; ``values`` are the config keys that it has in addition to Llama's."""
    read = partial(_read_llama, variant=variant)
    stacks = {"model.layers": "num_hidden_layers"}
    return Family(read, _why_not_llama, {**_LLAMA_VALUES, **values}, stacks, (_FREQUENCIES,))


FAMILIES: dict[str, Family] = {
    "t5": Family(
        _read_t5,
        _why_not_t5,
        {**_T5_VALUES, **dict.fromkeys(("tie_word_embeddings", "scale_decoder_outputs"), _FLAG)},
        _T5_STACKS,
        _T5_HARMLESS,
    ),
    "mt5": Family(_read_t5, _why_not_t5, _T5_VALUES, _T5_STACKS, _T5_HARMLESS),
    "umt5": Family(partial(_read_t5, biases_each_block=True), _why_not_t5, _T5_VALUES, _T5_STACKS, ()),
    "llama": _like_llama(_BIASES),
    "qwen2": _like_llama(_WINDOWS, _Variant(qkv_bias=True)),
    "qwen3": _like_llama({**_WINDOWS, "attention_bias": _FLAG}, _Variant(head_norm="each")),
    "mistral": _like_llama(_WINDOW),
    "phi3": _like_llama(_WINDOW, _Variant(fused=True)),
    "smollm3": _like_llama({**_BIASES, **_WINDOWS, **_SOME_ROTATE}),
    "olmo2": _like_llama({"attention_bias": _FLAG}, _Variant(head_norm="joint", norms_outputs=True)),
    "gpt2": Family(
        _read_gpt2,
        _why_not_gpt2,
        _GPT2_VALUES,
        {"transformer.h": "n_layer", "h": "n_layer"},
        (r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",),  # the causal mask, and the value used for masking
    ),
}
