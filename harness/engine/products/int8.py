"""int8 as a number format: projection weights as 8-bit integers with one scale per weight row, everything else in bf16.

The integers of a row are its bf16 weights over the scale, rounded. The scale is the row's largest magnitude over 127,
rounded to bf16 before the integers are computed, so that it adds no error. Embeddings, norms, biases and states stay
bf16. Products are summed in fp32 and rounded to bf16, as for bf16 weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from exitbench.harness.engine.model.weights import Linear

LARGEST: Final = 127
"""Largest magnitude of weights; -128 is not used, for symmetry."""
FEW_ROWS: Final = 8
"""Most rows for which torch's int8 product is fast; beyond, converting the weight to bf16 first is faster."""
WIDEST_BAG: Final = 384
"""Most outputs of an embedding bag: of 192 to 1024, the fastest on the processor measured."""
_VECTOR: Final = 16
_OFFSET: Final = 128


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


@dataclass(frozen=True)
class EmbeddingBag(Int8):
    """Projection with a copy of its weight as an embedding table, from which FBGEMM computes single input rows.

    Such a product is a sum of the weight's columns times the input's entries, as an embedding bag is of a table's rows.
    FBGEMM sums rows of 8-bit integers in fp32, and requests them from memory ahead of their use. The outputs are split
    into parts, one per bag, which threads share.
    """

    @cached_property
    def _bags(self) -> tuple[Tensor, Tensor, Tensor]:
        """The table, the row numbers of all bags, and the first of each bag among them.

        A row of the table has one input's weights for the outputs of one part, as unsigned integers; then, in fp32, the
        scale (1) and the offset (-128) by which FBGEMM makes them signed.
        """
        n_outputs, n_inputs = self.weight.shape
        n_rows, width = table_shape(self.weight.shape)
        padding = n_rows // n_inputs * width - n_outputs
        unsigned = F.pad(self.weight, (0, 0, 0, padding)).view(torch.uint8) + _OFFSET
        parts = unsigned.view(-1, width, n_inputs).transpose(1, 2).reshape(n_rows, width)
        ends = torch.tensor([1.0, -_OFFSET]).view(torch.uint8).expand(n_rows, -1)
        numbers = torch.arange(n_rows, dtype=torch.int32)
        return torch.cat((parts, ends), dim=1), numbers, numbers[::n_inputs].contiguous()

    @cached_property
    def _wide_scale(self) -> Tensor:
        return self.scale.float()

    def __call__(self, x: Tensor) -> Tensor:
        """Return x @ (scale * weight).T + bias over the last dimension."""
        if x.dim() != 2 or len(x) != 1:
            return super().__call__(x)
        table, numbers, firsts = self._bags
        factors = x.expand(len(firsts), -1).float().view(-1)
        sums: Tensor = torch.ops.quantized.embedding_bag_byte_rowwise_offsets(
            table, numbers, firsts, per_sample_weights=factors
        ).view(1, -1)
        if sums.shape[1] > len(self.weight):
            sums = sums[:, : len(self.weight)]
        product = sums.mul_(self._wide_scale).to(x.dtype)
        return product if self.bias is None else product.add_(self.bias)

    def outputs(self, first: int, end: int | None = None) -> Int8:
        """Return the projection restricted to outputs ``first`` to ``end`` - 1, without a table."""
        return Int8(self.weight, self.bias, scale=self.scale).outputs(first, end)


def table_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return the shape [rows, width] of the table of a weight [out, in], without scale and offset."""
    n_outputs, n_inputs = shape
    parts = math.ceil(n_outputs / WIDEST_BAG)
    return parts * n_inputs, _VECTOR * math.ceil(n_outputs / parts / _VECTOR)


def table_bytes(shape: Sequence[int]) -> int:
    """Return the bytes of the table of a weight [out, in]."""
    n_rows, width = table_shape(shape)
    return n_rows * (width + 8)


def computes_in(dtype: torch.dtype) -> torch.dtype:
    """Return the number format of states, keys and values: bf16 for int8 weights, else the weights' format ``dtype``.

    Weights are also loaded in this format, before they may be rounded to int8.
    """
    return torch.bfloat16 if dtype == torch.int8 else dtype
