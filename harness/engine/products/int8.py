"""int8 as a number format: weights of products as 8-bit integers with a scale a row, everything else in bf16.

The integers of a row are its bf16 weights over the scale, rounded; the scale is the row's largest magnitude over 127,
itself rounded to bf16 before the integers are made, so that it adds no error of its own. Embeddings, norms, biases and
states stay bf16. Products add in fp32 and round to bf16, as those of bf16 do.
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
"""Magnitudes of weights go up to it; -128 is left out, so that signs are alike."""
FEW_ROWS: Final = 8
"""torch's product of int8 weights is made for so few rows; beyond, it pays to make bf16 of the weight first."""


@dataclass(frozen=True)
class Int8(Linear):
    """A projection of int8 weights [out, in] with a scale [out], multiplied by what torch has for few rows."""

    scale: Tensor = field(kw_only=True)

    @classmethod
    def of(cls, projection: Linear) -> Int8:
        """Round the weights of a projection."""
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
        """Projection by int8 weights, multiplied as a bf16 copy of the integers, which holds each exactly."""
        product = F.linear(x, self.weight.to(x.dtype)).mul_(self.scale)
        return product if self.bias is None else product.add_(self.bias)

    def onto(self, stream_ND: Tensor, x: Tensor) -> Tensor:
        """Return stream + x @ (scale * weight).T + bias, for rows x [N, in]."""
        return stream_ND + self(x)

    def rows(self, ids: Tensor) -> Tensor:
        """Some rows of the weight as numbers that can be computed with, [ids, in]."""
        return self.weight.index_select(0, ids) * self.scale[ids][:, None]

    def outputs(self, first: int) -> Int8:
        """Return the projection to the outputs from ``first`` on; nothing is copied."""
        plain = super().outputs(first)
        return type(self)(plain.weight, plain.bias, scale=self.scale[first:])

    def stacked(self, others: Sequence[Linear]) -> Linear:
        """One projection: this one's outputs, and those of others of the same form below."""
        plain = super().stacked(others)
        scales = [part.scale for part in (self, *others) if isinstance(part, Int8)]
        return type(self)(plain.weight, plain.bias, scale=torch.cat(scales))


@dataclass(frozen=True)
class ByBf16(Int8):
    """int8 weights that are made bf16 for every product: what runs everywhere, and reads three times the bytes."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return x @ (scale * weight).T + bias over the last dimension."""
        return self.by_bf16(x)


def computes_in(dtype: torch.dtype) -> torch.dtype:
    """The number format of states, keys and values where weights have this one; weights are read in it too."""
    return torch.bfloat16 if dtype == torch.int8 else dtype
