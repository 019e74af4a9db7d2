"""Products of states with int8 rows: the ways that torch has, of which one is used where it is as exact as it says.

A way multiplies the rows q not with a state x but with one that is near, x - e, and says how long e is; its result is
what adding float32 products gives, off by its own `rounding` at most beyond that.

Shape suffixes: A rows, D model width, V vocabulary.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

CHUNK_ROWS: Final = 4096
"""Rows of a head that are taken into wider numbers at a time."""
PACKED_WIDTHS: Final = 64
"""Of what the width must be a multiple for `_weight_int8pack_mm`, which reads beyond the end of other rows."""
UNIT: Final = 2.0**-24
"""Unit roundoff of float32, in which products are added up."""
_UNIT_BF16: Final = 2.0**-8
_PART: Final = 63
"""Largest integer of a part of a state: two products of 7 and 8 bits add up to 16, which some processors add in."""


def sum_rounding(width: int) -> float:
    """Relative error of a sum of so many products in float32, in whatever order."""
    return 2 * (width + 8) * UNIT


class Int8Product(ABC):
    """A way to multiply states by int8 rows.

    Args:
        weight_VD: The rows.
        scale_V: What each is multiplied by.

    Raises:
        RuntimeError: Not on this processor, or not of this shape.
        NotImplementedError: The same.
    """

    rounding: float = 0.0
    """Relative error of a result beyond that of its sum."""

    @abstractmethod
    def __init__(self, weight_VD: Tensor, scale_V: Tensor) -> None: ...

    @abstractmethod
    def __call__(self, states_AD: Tensor) -> tuple[Tensor, Tensor]:
        """Return products [A, V] in float32 with states near these, and their distances [A] in float64."""


class ByIntegers(Int8Product):
    """Both factors as integers, which are added without rounding; a state is two parts of 7 bits.

    The library takes what the integers of its input stand for from their range, over all rows: a row of its own has
    both ends of it, so that all stand for themselves.
    """

    def __init__(self, weight_VD: Tensor, scale_V: Tensor) -> None:
        vocab_size, width = weight_VD.shape
        if weight_VD.device.type != "cpu" or width < 2:
            raise RuntimeError("of a CPU, and of more than one column")
        with warnings.catch_warnings():  # torch is about to drop tensors that are quantised, not this product
            warnings.simplefilter("ignore", UserWarning)
            zeros_V = torch.zeros(vocab_size, dtype=torch.long)
            rows_VD = torch._make_per_channel_quantized_tensor(weight_VD, scale_V.double(), zeros_V, 0)
            self._packed = torch.ops.quantized.linear_prepack(rows_VD, None)
        self._ends_1D = torch.zeros(1, width)
        self._ends_1D[0, :2] = torch.tensor([-_PART, _PART + 1])

    def __call__(self, states_AD: Tensor) -> tuple[Tensor, Tensor]:
        """Return products [A, V] in float32 with states near these, and their distances [A] in float64."""
        high_AD, high_A1, left_AD = _leading_part(states_AD.double())
        low_AD, low_A1, left_AD = _leading_part(left_AD)
        found_NV = torch.ops.quantized.linear_dynamic(torch.cat((high_AD, low_AD, self._ends_1D)), self._packed, True)
        high_AV, low_AV, _ = found_NV.split([len(states_AD), len(states_AD), 1])
        return high_AV.mul_(high_A1).addcmul_(low_AV, low_A1), torch.linalg.vector_norm(left_AD, dim=-1)


def _leading_part(states_AD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """States in float64 as integers [A, D] times a size of each row [A, 1], and what that leaves, [A, D]."""
    size_A1 = (states_AD.abs().amax(-1, keepdim=True) / _PART).float()
    size_A1 = torch.where(size_A1 > 0, size_A1, torch.ones_like(size_A1))
    # What is not a number has no integer; it is left, and so is the distance not a number.
    integers_AD = (states_AD / size_A1).round_().clamp_(-_PART, _PART).nan_to_num_(0)
    return integers_AD.float(), size_A1, states_AD - integers_AD * size_A1


class ByBfloat16(Int8Product):
    """States, and results, rounded to bfloat16."""

    rounding = _UNIT_BF16 * 1.01

    def __init__(self, weight_VD: Tensor, scale_V: Tensor) -> None:
        if (
            weight_VD.device.type != "cpu"
            or weight_VD.shape[1] % PACKED_WIDTHS
            or not hasattr(torch, "_weight_int8pack_mm")
        ):
            raise RuntimeError("of a CPU, and of other widths")
        self._weight_VD, self._scale_V = weight_VD, scale_V

    def __call__(self, states_AD: Tensor) -> tuple[Tensor, Tensor]:
        """Return products [A, V] in float32 with states near these, and their distances [A] in float64."""
        narrow_AD = states_AD.bfloat16()
        lost_A = torch.linalg.vector_norm(states_AD.double() - narrow_AD.double(), dim=-1)
        return torch._weight_int8pack_mm(narrow_AD, self._weight_VD, self._scale_V).float(), lost_A


class ByFloat32(Int8Product):
    """Rows widened to float32 as they are read, on any device: slow."""

    def __init__(self, weight_VD: Tensor, scale_V: Tensor) -> None:
        self._weight_VD, self._scale_V = weight_VD, scale_V

    def __call__(self, states_AD: Tensor) -> tuple[Tensor, Tensor]:
        """Return products [A, V] in float32 with these very states."""
        wide_AD, pieces = states_AD.float(), []
        for rows in chunks(len(self._scale_V)):
            copy_VD = self._weight_VD[rows].float() * self._scale_V[rows].float()[:, None]
            pieces.append(torch.mm(wide_AD, copy_VD.t()))
        return torch.cat(pieces, dim=-1), torch.zeros(len(states_AD), dtype=torch.float64, device=states_AD.device)


WAYS: Final[tuple[type[Int8Product], ...]] = (ByIntegers, ByBfloat16)
"""The first is fastest wherever it was measured; the order is fixed, so that widths of intervals are too."""


def product_of(weight_VD: Tensor, scale_V: Tensor) -> Int8Product:
    """The first way that there is here and that is as exact as it says, of rows [V, D] with scales; else float32's."""
    for way in WAYS:
        try:
            product = way(weight_VD, scale_V)
            if _holds(product, weight_VD, scale_V):
                return product
        except (AttributeError, RuntimeError, NotImplementedError):  # not in this torch, or on this processor
            continue
    return ByFloat32(weight_VD, scale_V)


def _holds(product: Int8Product, weight_VD: Tensor, scale_V: Tensor) -> bool:
    """Whether a product keeps within the error that it is taken to have, on a few states."""
    width = weight_VD.shape[1]
    some_AD = torch.randn(3, width, generator=torch.Generator().manual_seed(0))
    # All as large as they come: where sums of two products do not fit, they do not fit here.
    states_AD = torch.cat((some_AD, torch.ones(1, width), weight_VD[:1].sign().float()))
    found_AV, lost_A = product(states_AD)
    for rows in chunks(len(scale_V)):
        copy_VD = weight_VD[rows].double() * scale_V[rows].double()[:, None]
        copy_V, found_AR = copy_VD.norm(dim=-1), found_AV[:, rows].double()
        allowed_AR = (sum_rounding(width) * states_AD.double().norm(dim=-1) + lost_A)[:, None] * copy_V
        allowed_AR += product.rounding * found_AR.abs() + torch.finfo(torch.float32).tiny
        if not bool(((found_AR - states_AD.double() @ copy_VD.t()).abs() <= allowed_AR).all()):
            return False
    return True


def chunks(n_rows: int) -> Iterator[slice]:
    """Pieces of so many rows."""
    return (slice(start, start + CHUNK_ROWS) for start in range(0, n_rows, CHUNK_ROWS))
