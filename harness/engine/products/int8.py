"""int8 as a number format: projection weights as 8-bit integers with one scale per weight row, everything else in bf16.

The integers of a row are its bf16 weights over the scale, rounded. The scale is the row's largest magnitude over 127,
rounded to bf16 before the integers are computed, so that it adds no error. Embeddings, norms, biases and states stay
bf16. Products are summed in fp32 and rounded to bf16, as for bf16 weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from exitbench.harness.engine.model.weights import Linear

LARGEST: Final = 127
"""Largest magnitude of weights; -128 is not used, for symmetry."""
FEW_ROWS: Final = 8
"""Most rows for which torch's int8 product is fast; beyond, converting the weight to bf16 first is faster."""


@dataclass(frozen=True)
class Int8(Linear):
    """Projection with int8 weights [out, in] and a scale [out]; torch's int8 product multiplies inputs of few rows."""

    scale: Tensor = field(kw_only=True)

    @classmethod
    def from_projection(cls, projection: Linear) -> Int8:
        """Round the weights of a projection to int8, with one scale per weight row."""
        wide = projection.weight.float()
        scale = (wide.abs().amax(1) / LARGEST).to(torch.bfloat16)
        steps = scale.float().clamp_min(torch.finfo(torch.bfloat16).tiny)[:, None]  # a row of zeros has no scale
        integers = (wide / steps).round_().clamp_(-LARGEST, LARGEST).to(torch.int8)
        return cls(integers.contiguous(), projection.bias, scale=scale)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x @ (scale * weight).T + bias over the last dimension."""
        if x.dim() != 2 or len(x) > FEW_ROWS:
            return self.by_bf16(x)
        product = torch._weight_int8pack_mm(x.contiguous(), self.weight, self.scale)
        return product if self.bias is None else product.add_(self.bias)

    def by_bf16(self, x: Tensor) -> Tensor:
        """Return x @ (scale * weight).T + bias, by a temporary copy of the integers in bf16, which is exact."""
        product = F.linear(x, self.weight.to(x.dtype)).mul_(self.scale)
        return product if self.bias is None else product.add_(self.bias)

    def onto(self, stream_ND: Tensor, x: Tensor) -> Tensor:
        """Return the residual stream [N, out] plus x @ (scale * weight).T + bias, for inputs x [N, in]."""
        return stream_ND + self(x)

    def rows(self, ids: Tensor) -> Tensor:
        """Return the weight rows of the given output ids, multiplied by their scales, [len(ids), in]."""
        return self.weight.index_select(0, ids) * self.scale[ids][:, None]

    def outputs(self, first: int, end: int | None = None) -> Int8:
        """Return the projection restricted to outputs ``first`` to ``end`` - 1; its weight is a view, not a copy."""
        plain = super().outputs(first, end)
        return type(self)(plain.weight, plain.bias, scale=self.scale[first:end])

    def stacked(self, projections: Sequence[Linear]) -> Linear:
        """Return one projection that computes this one's outputs, then those of ``projections`` (all of one type)."""
        plain = super().stacked(projections)
        scales = [part.scale for part in (self, *projections) if isinstance(part, Int8)]
        return type(self)(plain.weight, plain.bias, scale=torch.cat(scales))


@dataclass(frozen=True)
class ByBf16(Int8):
    """Projection that converts its int8 weights to bf16 for every product.

    It runs anywhere, but reads three times as many bytes: the int8 weights and their bf16 copy.
    """

    def __call__(self, x: Tensor) -> Tensor:
        """Return x @ (scale * weight).T + bias over the last dimension."""
        return self.by_bf16(x)


def computes_in(dtype: torch.dtype) -> torch.dtype:
    """Return the number format of states, keys and values: bf16 for int8 weights, else the weights' format ``dtype``.

    Weights are also loaded in this format, before they may be rounded to int8.
    """
    return torch.bfloat16 if dtype == torch.int8 else dtype
