"""Forms: alternative implementations of a projection's matrix product on a CPU, by routines of torch.

The default form is `Linear` itself. A form does not change the number format: products in one format differ at most in
their last bits, by the order of summation and its rounding. (int8 is a number format of its own: `products.int8`.)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from exitbench.harness.engine.model.model import Transformer
from exitbench.harness.engine.model.weights import BlockWeights, Linear, unchanged
from exitbench.harness.engine.products.int8 import ByBf16, EmbeddingBag, Int8

Form = Callable[[Linear], Linear]
Role = Literal["block", "residual", "head", "part", "source"]
"""Role of a projection: in a block; in a block and added to the residual stream; the LM head; a part of one of these;
multiplied with prompts alone."""

Rows = Literal["one", "two", "few", "many"]
"""Number of input rows of a product: 1, 2, 3 to `MOST_FEW_ROWS`, or more."""
TIMED_ROWS: Final[Mapping[Rows, Sequence[int]]] = {"one": (1,), "two": (2,), "few": (4, 8), "many": (32,)}
"""Numbers of rows at which the form for each of these is timed."""
MOST_FEW_ROWS: Final = 16
"""Most rows that count as few."""
_PADDED_ROWS: Final = 4
"""Rows as which `Packed.padded` multiplies one or two: of 3 to 8, 4 to 6 were the fastest on the processor measured."""

_FP16_EXPONENT: Final = 16
"""Scaled weights are below 2 to this power. The largest such bf16 number, 65,280, is below fp16's largest, 65,504."""
_LEAST_SCALED: Final = 2.0**-100
"""An output's largest weight must be between this magnitude and its inverse, so that fp32 can represent the scale."""
WIDENED_NUMEL: Final = 2**23
"""Largest bf16 matrix that is copied to fp32: a larger copy would be read from memory, with twice the bytes."""
COPIES: Final = ("fp16-copy", "embedding-bag")
"""Forms for one or two rows that hold a second copy of the weight."""

PackedWay = Literal["packed", "padded"]
"""How a packed weight is multiplied: as it is, or one or two rows as four (`Packed.padded`)."""


@dataclass(frozen=True)
class ByMatrix(Linear):
    """Projection that always calls torch's matrix-matrix product, even for a single input row."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return x @ weight.T + bias over the last dimension."""
        return F.linear(x, self.weight, self.bias)

    def onto(self, stream_ND: Tensor, x: Tensor) -> Tensor:
        """Return the residual stream [N, out] plus x @ weight.T + bias, for inputs x [N, in]."""
        return stream_ND + self(x)

    def outputs(self, first: int, end: int | None = None) -> ByMatrix:
        """Return the projection restricted to outputs ``first`` to ``end`` - 1; its weight is a view, not a copy."""
        plain = super().outputs(first, end)
        return ByMatrix(plain.weight, plain.bias)


@dataclass(frozen=True)
class Packed(Linear):
    """Projection whose weight is stored in a packed memory layout, which oneDNN chooses once, not at every product.

    Attributes:
        padded: Whether one or two rows are multiplied as four. On some processors, oneDNN's routines for fewer rows are
            slower than that.
    """

    padded: bool = field(kw_only=True, default=False)

    @classmethod
    def from_projection(cls, projection: Linear) -> Packed:
        """Pack a projection's weight for inputs of any number of rows.

        oneDNN is told 16 rows: for a single one, it would leave an fp32 weight as it is.
        """
        weight = projection.weight.contiguous()
        return cls(torch.ops.mkldnn._reorder_linear_weight(weight, MOST_FEW_ROWS), projection.bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x @ weight.T + bias over the last dimension."""
        if self.padded and 1 <= (n_rows := _n_rows(x)) <= 2:
            rows_ND = x.reshape(n_rows, -1)
            # Expanding a single row is faster than padding it with zeros.
            four = rows_ND.expand(_PADDED_ROWS, -1) if n_rows == 1 else F.pad(rows_ND, (0, 0, 0, _PADDED_ROWS - n_rows))
            return self._product(four)[:n_rows].view(*x.shape[:-1], -1)
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return product

    def onto(self, stream_ND: Tensor, x: Tensor) -> Tensor:
        """Return the residual stream [N, out] plus x @ weight.T + bias, for inputs x [N, in]."""
        return self(x).add_(stream_ND)

    def outputs(self, first: int, end: int | None = None) -> Linear:
        """Return an unpacked copy of the projection, restricted to outputs ``first`` to ``end`` - 1."""
        plain = Linear(self.weight.to_dense(), self.bias).outputs(first, end)
        return Linear(plain.weight.clone(), plain.bias)


def n_parts() -> int:
    """Return the number of parts of a split weight: one per thread, and two at least."""
    return max(2, torch.get_num_threads())


@dataclass(frozen=True)
class Split(Linear):
    """Projection that multiplies one or two input rows by parts of its weight: a batch of products.

    BLAS multiplies a batch of matrices by other routines than one matrix and few rows, which `Linear` calls. On some
    processors the latter are slow, and use one thread. Where two rows are not timed, they are multiplied so too.
    """

    @cached_property
    def _parts(self) -> Tensor:
        """Views of the weight's parts, [parts, out / parts, in]."""
        parts = math.gcd(len(self.weight), n_parts())
        return self.weight.view(parts, len(self.weight) // parts, -1)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x @ weight.T + bias over the last dimension."""
        n_rows = len(x) if x.dim() == 2 else 0
        if n_rows == 1:
            product = torch.bmm(self._parts, x.t().expand(len(self._parts), -1, -1)).view(1, -1)
        elif n_rows == 2:
            columns_D2 = x.contiguous().t()  # BLAS is slow if a column is not in one piece
            outputs = torch.bmm(self._parts, columns_D2.expand(len(self._parts), -1, -1))
            product = outputs.view(-1, 2).t().contiguous()
        else:
            return super().__call__(x)
        return product if self.bias is None else product.add_(self.bias)

    def onto(self, stream_ND: Tensor, x: Tensor) -> Tensor:
        """Return the residual stream [N, out] plus x @ weight.T + bias, for inputs x [N, in]."""
        return self(x).add_(stream_ND) if 1 <= len(x) <= 2 else super().onto(stream_ND, x)

    def outputs(self, first: int, end: int | None = None) -> Split:
        """Return the projection restricted to outputs ``first`` to ``end`` - 1; its weight is a view, not a copy."""
        plain = super().outputs(first, end)
        return Split(plain.weight, plain.bias)


@dataclass(frozen=True)
class Fp16Copy(ByMatrix):
    """Projection with a bf16 weight and a copy in fp16, by which FBGEMM multiplies one or two rows, on one thread.

    bf16 products are summed in fp32 with and without the copy, and the sum is rounded once. Each output's weights are
    scaled by a power of two, so that the largest is near fp16's largest number. Then all weights within a factor of
    2^-32 of it are exact; the error of a smaller one is below 2^-40 of it, far less than fp32's rounding of the sum.
    """

    @cached_property
    def _copy(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The packed copy, the inverse of its scales [out], and the bias in fp32."""
        shift_V = _FP16_EXPONENT - torch.frexp(self.weight.abs().amax(1).float()).exponent
        scale_V = torch.ldexp(torch.ones(len(shift_V)), shift_V)
        with warnings.catch_warnings():  # torch deprecates these operators, and warns at their first use
            warnings.simplefilter("ignore", UserWarning)
            packed = torch.fbgemm_pack_gemm_matrix_fp16(self.weight.float().mul_(scale_V[:, None]))
            torch.fbgemm_linear_fp16_weight_fp32_activation(torch.zeros(1, self.weight.shape[1]), packed, None)
        return packed, 1 / scale_V, None if self.bias is None else self.bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        """Return x @ weight.T + bias over the last dimension."""
        if not 1 <= _n_rows(x) <= 2:
            return super().__call__(x)
        packed, inverse_V, bias_V = self._copy
        product = torch.fbgemm_linear_fp16_weight_fp32_activation(x.float(), packed, None).mul_(inverse_V)
        return (product if bias_V is None else product.add_(bias_V)).to(x.dtype)


@dataclass(frozen=True)
class Widened(Linear):
    """Projection with a bf16 weight and an fp32 copy for single input rows, which is faster if the weight is small.

    bf16 products are summed in fp32 either way, and the sum is rounded once.
    """

    @cached_property
    def _wide(self) -> Tensor:
        return self.weight.t().float()

    @cached_property
    def _wide_bias(self) -> Tensor | None:
        return None if self.bias is None else self.bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        """Return x @ weight.T + bias over the last dimension."""
        if x.dim() != 2 or len(x) != 1:
            return super().__call__(x)
        if self._wide_bias is None:
            return torch.mm(x.float(), self._wide).to(x.dtype)
        return torch.addmm(self._wide_bias, x.float(), self._wide).to(x.dtype)


@dataclass(frozen=True)
class PackedForRows(Linear):
    """Projection with a packed copy of its weight for some numbers of input rows; others use another form, ``base``.

    The copy is made at its first use.

    Attributes:
        ways: How the copy is multiplied, by the number of rows for which it is used.
    """

    base: Linear = field(kw_only=True)
    ways: Mapping[Rows, PackedWay] = field(kw_only=True)

    @cached_property
    def _packed(self) -> Packed:
        return self.base if isinstance(self.base, Packed) else Packed.from_projection(Linear(self.weight, self.bias))

    @cached_property
    def _padded(self) -> Packed:
        return replace(self._packed, padded=True)

    def _form(self, x: Tensor) -> Linear:
        n_rows = _n_rows(x)
        way = self.ways.get(_rows(n_rows)) if n_rows else None
        return self.base if way is None else self._packed if way == "packed" else self._padded

    def __call__(self, x: Tensor) -> Tensor:
        """Return x @ weight.T + bias over the last dimension."""
        return self._form(x)(x)

    def onto(self, stream_ND: Tensor, x: Tensor) -> Tensor:
        """Return the residual stream [N, out] plus x @ weight.T + bias, for inputs x [N, in]."""
        return self._form(x).onto(stream_ND, x)

    def outputs(self, first: int, end: int | None = None) -> Linear:
        """Return ``base`` restricted to outputs ``first`` to ``end`` - 1, without a packed copy of the weight."""
        return self.base.outputs(first, end)


def _n_rows(x: Tensor) -> int:
    return x.numel() // x.shape[-1]


def _rows(n_rows: int) -> Rows:
    return "one" if n_rows == 1 else "two" if n_rows == 2 else "few" if n_rows <= MOST_FEW_ROWS else "many"


def packed_ways(rows: Rows) -> tuple[PackedWay, ...]:
    """Return the ways in which a packed weight can be multiplied by this number of rows."""
    return ("packed", "padded") if rows in ("one", "two") else ("packed",)


def chosen_ways(names: Mapping[Rows, str]) -> dict[Rows, PackedWay]:
    """Return the ways of a packed weight among the names of forms chosen for each number of rows."""
    return {rows: way for rows, name in names.items() for way in packed_ways(rows) if way == name}


def _by_outputs(projection: Linear) -> Linear:
    return Linear(projection.weight.contiguous(), projection.bias)


def _split(projection: Linear) -> Linear:
    return Split(projection.weight.contiguous(), projection.bias)


def _by_matrix(projection: Linear) -> Linear:
    return ByMatrix(projection.weight, projection.bias)


def _fp16_copy(projection: Linear) -> Linear:
    largest_V = projection.weight.abs().amax(1).float()
    is_scalable = bool(((largest_V == 0) | ((largest_V > _LEAST_SCALED) & (largest_V < 1 / _LEAST_SCALED))).all())
    return (Fp16Copy if is_scalable else ByMatrix)(projection.weight, projection.bias)


def _widened(projection: Linear) -> Linear:
    return Widened(projection.weight, projection.bias)


def _by_bf16(projection: Linear) -> Linear:
    if not isinstance(projection, Int8):
        return projection  # rows of an int8 LM head are bf16
    return ByBf16(projection.weight, projection.bias, scale=projection.scale)


def _embedding_bag(projection: Linear) -> Linear:
    assert isinstance(projection, Int8), "LM head and blocks of an int8 model are Int8"
    return EmbeddingBag(projection.weight, projection.bias, scale=projection.scale)


_BF16: Final[Mapping[str, Form]] = {
    "vector": _by_outputs,
    "matrix": _by_matrix,
    "packed": Packed.from_projection,
    "fp16-copy": _fp16_copy,
    "widened": _widened,
}
_INT8: Final[Mapping[str, Form]] = {"int8": unchanged, "by-bf16": _by_bf16}
_INT8_DECODED: Final[Mapping[str, Form]] = {**_INT8, "embedding-bag": _embedding_bag}

_FP32: Final[Mapping[str, Form]] = {
    "input-major": Linear.in_default_layout,
    "output-major": _by_outputs,
    "packed": Packed.from_projection,
    "split": _split,
}

FORMS: Final[Mapping[torch.dtype, Mapping[Role, Mapping[str, Form]]]] = {
    torch.float32: {
        "block": _FP32,
        "residual": _FP32,
        "head": {
            "output-major": unchanged,
            "input-major": Linear.in_default_layout,
            "packed": Packed.from_projection,
            "split": _split,
        },
        "part": {"output-major": _by_outputs, "split": _split},
        "source": {"input-major": Linear.in_default_layout, "packed": Packed.from_projection},
    },
    torch.bfloat16: {
        "block": _BF16,
        "residual": _BF16,
        "head": _BF16,
        "part": {"vector": _by_outputs, "matrix": _by_matrix},
        "source": {"matrix": unchanged, "packed": Packed.from_projection},
    },
    torch.int8: {"block": _INT8_DECODED, "residual": _INT8_DECODED, "head": _INT8_DECODED, "part": _INT8},
}
"""Forms by number format of weights, role and name, the default first."""


def available_forms(dtype: torch.dtype, role: Role, shape: Sequence[int]) -> tuple[str, ...]:
    """Return the names of the forms available on this machine for a weight of shape [out, in], the default first.

    ``role`` is the weight's use (`Role`).
    """
    lacking = set() if can_pack(dtype) else {"packed"}
    if shape[0] * shape[1] > WIDENED_NUMEL:
        lacking.add("widened")
    if not can_copy_to_fp16() or fp16_copy_bytes(shape) >= 2**32:  # FBGEMM counts entries in 32 bits
        lacking.add("fp16-copy")
    if not hasattr(torch.ops.quantized, "embedding_bag_byte_rowwise_offsets"):
        lacking.add("embedding-bag")
    if shape[0] % n_parts():
        lacking.add("split")
    return tuple(name for name in FORMS[dtype][role] if name not in lacking)


def can_pack(dtype: torch.dtype) -> bool:
    """Return whether weights of a number format can be packed: torch has oneDNN, and the internal operators used here.

    bf16 also requires instructions that not every processor has.
    """
    if dtype == torch.int8 or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if not all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")):
        return False
    return dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def can_copy_to_fp16() -> bool:
    """Return whether torch has FBGEMM's product with fp16 weights, and this processor the instructions for it."""
    names = ("fbgemm_pack_gemm_matrix_fp16", "fbgemm_linear_fp16_weight_fp32_activation")
    return "fbgemm" in torch.backends.quantized.supported_engines and all(hasattr(torch, name) for name in names)


def fp16_copy_bytes(shape: Sequence[int]) -> int:
    """Return the bytes of a weight's copy in fp16, for a shape [out, in]: FBGEMM allocates whole parts of 32 x 512."""
    outputs, inputs = shape
    return 2 * (32 * math.ceil(outputs / 32)) * (512 * math.ceil(inputs / 512))


def convert_blocks(
    model: Transformer,
    decoder: Callable[[BlockWeights], BlockWeights],
    encoder: Callable[[BlockWeights], BlockWeights],
) -> None:
    """Replace each block by ``decoder(block)`` or ``encoder(block)``, one after another, before the first decode."""
    blocks, encoder_blocks = list(model.weights.blocks), list(model.weights.encoder_blocks)
    model.weights = replace(model.weights, blocks=(), encoder_blocks=())
    for some, convert in ((blocks, decoder), (encoder_blocks, encoder)):
        for index, block in enumerate(some):
            some[index] = convert(block)
    model.weights = replace(model.weights, blocks=tuple(blocks), encoder_blocks=tuple(encoder_blocks))


def quantise(model: Transformer) -> None:
    """Round every projection of a bf16 model to int8, in place, including the encoder's and the LM head."""
    form: Callable[[Linear], Linear] = Int8.from_projection if model.device.type == "cpu" else ByBf16.from_projection

    def convert(block: BlockWeights) -> BlockWeights:
        return block.map_projections(form)

    convert_blocks(model, convert, convert)
    model.weights = replace(model.weights, lm_head=form(model.weights.lm_head))
