"""Architecture and weights of a transformer, in the memory layout of the lean engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Architecture:
    """Shapes and options of a transformer. ``encoder_blocks`` 0 means decoder-only.

    Attributes:
        gated: Whether the feed-forward networks are gated, as SwiGLU is.
        attention_scale: Factor on the products of queries and keys.
        logit_scale: Factor on the LM head's input.
    """

    vocab_size: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    n_blocks: int
    encoder_blocks: int
    norm: Literal["rms", "layer"]
    norm_eps: float
    positions: Literal["relative", "rotary", "learned"]
    activation: Literal["relu", "gelu_new", "gelu", "silu"]
    gated: bool
    attention_scale: float
    logit_scale: float = 1.0
    relative_buckets: int = 0
    relative_max_distance: int = 0
    max_positions: int | None = None
    norms_inputs: bool = True  # norms precede attention and feed-forward network
    wide_stream: bool = False  # fp32 stream with float16 weights: see `Transformer._add_projection`

    @property
    def kv_width(self) -> int:
        """Width of the keys (and of the values) of one block: KV heads times head size."""
        return self.n_kv_heads * self.head_dim


@dataclass(frozen=True)
class Linear:
    """Projection (linear layer) with a weight [out, in], and a bias [out] or None.

    It multiplies by torch's default routine. `engine.products` has other implementations (forms), with the same results
    up to rounding.
    """

    weight: Tensor
    bias: Tensor | None = None

    @cached_property
    def transposed(self) -> Tensor:
        """Transposed view of the weight, [in, out]."""
        return self.weight.t()

    @cached_property
    def _is_bf16_on_cpu(self) -> bool:
        return self.weight.dtype == torch.bfloat16 and self.weight.device.type == "cpu"

    def __call__(self, x: Tensor) -> Tensor:
        """Return x @ weight.T + bias over the last dimension."""
        if x.dim() != 2:
            return F.linear(x, self.weight, self.bias)
        if self._is_bf16_on_cpu and len(x) == 1:
            product = torch.mv(self.weight, x[0])[None]
            return product if self.bias is None else product.add_(self.bias)
        if self.bias is None:
            return torch.mm(x, self.transposed)
        return torch.addmm(self.bias, x, self.transposed)

    def onto(self, stream_ND: Tensor, x: Tensor) -> Tensor:
        """Return the residual stream [N, out] plus x @ weight.T + bias, for inputs x [N, in]."""
        if self._is_bf16_on_cpu:
            return stream_ND + self(x)
        added = torch.addmm(stream_ND, x, self.transposed)
        return added if self.bias is None else added.add_(self.bias)

    def rows(self, ids: Tensor) -> Tensor:
        """Return the weight rows of the given output ids, [len(ids), in]."""
        return self.weight.index_select(0, ids)

    def outputs(self, first: int, end: int | None = None) -> Linear:
        """Return the projection restricted to outputs ``first`` to ``end`` - 1; its weight is a view, not a copy."""
        return Linear(self.weight[first:end], None if self.bias is None else self.bias[first:end])

    def stacked(self, projections: Sequence[Linear]) -> Linear:
        """Return one projection that computes this one's outputs, then those of ``projections`` (all of one type)."""
        parts = (self, *projections)
        biases = [part.bias for part in parts if part.bias is not None]
        return Linear(torch.cat([part.weight for part in parts]), torch.cat(biases) if biases else None)

    def in_default_layout(self) -> Linear:
        """Return the projection in the default memory layout: input-major (stored as [in, out]) for fp32 on a CPU."""
        if self.weight.device.type != "cpu" or self.weight.dtype != torch.float32:
            return self
        return Linear(self.weight.t().contiguous().t(), self.bias)


def unchanged(projection: Linear) -> Linear:
    """Return the projection unchanged; used as a conversion function for projections that need no conversion."""
    return projection


@dataclass(frozen=True)
class NormedLinear:
    """Projection followed by an RMS norm, whose weight [out] cannot be folded into the projection."""

    projection: Linear
    norm_weight: Tensor
    norm_eps: float

    @property
    def weight(self) -> Tensor:
        """Weight of the projection."""
        return self.projection.weight

    def __call__(self, x: Tensor) -> Tensor:
        """Project the last dimension of x, then apply the RMS norm."""
        return F.rms_norm(self.projection(x), self.norm_weight.shape, self.norm_weight, self.norm_eps)

    def onto(self, stream_ND: Tensor, x: Tensor) -> Tensor:
        """Return the residual stream [N, out] plus the normalised projection of inputs x [N, in]."""
        return stream_ND + self(x)


@dataclass(frozen=True)
class HeadNorm:
    """RMS norm of the queries or keys of a block [..., heads, K], with a weight [heads, K]; K is the head size.

    Attributes:
        joint: Whether all heads of a token are normalised jointly; else each head by itself.
    """

    weight: Tensor
    eps: float
    joint: bool

    def apply_(self, heads: Tensor) -> None:
        """Normalise queries or keys [..., heads, K] in place."""
        dims = (-2, -1) if self.joint else (-1,)
        wide = heads.to(torch.promote_types(heads.dtype, torch.float32))
        heads.mul_(self.weight * (wide.square().mean(dims, keepdim=True) + self.eps).rsqrt())


@dataclass(frozen=True)
class BlockWeights:
    """Weights of one block; the weights of its norms are folded into the projections.

    ``qkv`` stacks the query, key and value projections. In a gated MLP, ``up`` stacks the gate and up projections.
    ``rotates`` is False for a block without rotary embedding in a model whose other blocks have it.
    """

    qkv: Linear
    attention_out: Linear | NormedLinear
    up: Linear
    down: Linear | NormedLinear
    cross_q: Linear | None = None
    cross_kv: Linear | None = None
    cross_out: Linear | None = None
    query_norm: HeadNorm | None = None
    key_norm: HeadNorm | None = None
    rotates: bool = True

    def map_projections(self, form: Callable[[Linear], Linear], names: Sequence[str] | None = None) -> BlockWeights:
        """Return a copy of the block with ``form`` applied to every projection, or only to the fields in ``names``."""

        def new(part: Linear | NormedLinear) -> Linear | NormedLinear:
            return replace(part, projection=form(part.projection)) if isinstance(part, NormedLinear) else form(part)

        parts = {name: getattr(self, name) for name in names or [each.name for each in fields(self)]}
        changed: dict[str, Any] = {name: new(part) for name, part in parts.items() if isinstance(part, _PROJECTIONS)}
        return replace(self, **changed)


_PROJECTIONS: Final = (Linear, NormedLinear)


@dataclass(frozen=True)
class Weights:
    """All weights of a checkpoint, in the memory layout of the lean engine.

    Attributes:
        read_out: The LM head converted to another form (implementation), used only to compute logits; None if
            ``lm_head`` itself is used.
        part_form: Function that converts parts of weights to the form in which they are multiplied: key/value
            projections of skipped blocks, and rows of the LM head.
    """

    token_embedding_VD: Tensor
    lm_head: Linear
    final_norm: Linear  # elementwise: weight [D] and bias [D] or None
    blocks: tuple[BlockWeights, ...]
    encoder_blocks: tuple[BlockWeights, ...] = ()
    position_embedding_PD: Tensor | None = None
    relative_bias: Tensor | None = None  # [buckets, H]; [buckets, L*H] if every block has its own table
    encoder_relative_bias: Tensor | None = None
    inverse_frequencies: Tensor | None = None
    rotary_scale: float = 1.0
    read_out: Linear | None = None
    part_form: Callable[[Linear], Linear] = unchanged


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
