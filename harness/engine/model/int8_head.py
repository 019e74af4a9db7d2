"""An int8 copy of an LM head, which gives intervals that contain the logits of the exact head.

Row i of the exact head is w = q + r, where q is an int8 vector times a scale of the row, and r the remainder. torch's
product (`Int8Product`) multiplies q by a rounded state x - e. By Cauchy-Schwarz, the result differs from the exact
head's product of w and x by no more than

  |r| |x|  +  |q| |e|  +  rounding of both products;

`docs/methods/index.md` has the proof. The choice of torch's routine and its order of summation change the width of an
interval. They do not change that it contains the exact logit.

Shape suffixes: A rows, D model width, V vocabulary, N pairs of a row and an id.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from exitbench.harness.engine.model.weights import Linear

CHUNK_ROWS: Final = 4096
"""Number of head rows converted to a wider format at a time."""
PACKED_WIDTHS: Final = 64
"""The width must be a multiple of it for `_weight_int8pack_mm`, which otherwise reads beyond the end of rows."""
UNIT: Final = 2.0**-24
"""Unit roundoff of float32, in which products are summed."""
_UNIT_BF16: Final = 2.0**-8
_PART: Final = 63
"""Largest integer of a part of a state: two 7-bit times 8-bit products sum to 16 bits, as some processors do."""


def sum_rounding(width: int) -> float:
    """Return a bound on the rounding error of a float32 dot product of two vectors with ``width`` entries.

    The error is relative to the product of the vectors' norms, and holds for any order of summation.
    """
    return 2 * (width + 8) * UNIT


class Int8Product(ABC):
    """Routine of torch that multiplies states with int8 weight rows; used only if tests confirm its declared errors.

    It multiplies the rows with a rounded state x - e instead of the state x, and also returns the norm of e. Apart from
    e, its result differs from a float32 sum of products by a relative error of at most `rounding`, a class attribute.

    Args:
        weight_VD: The int8 rows.
        scale_V: Scale of each row.

    Raises:
        RuntimeError: Not supported on this processor, or for this shape.
        NotImplementedError: Not supported on this processor, or for this shape.
    """

    rounding: float = 0.0
    """Relative error of a result beyond that of its sum."""

    @abstractmethod
    def __init__(self, weight_VD: Tensor, scale_V: Tensor) -> None: ...

    @abstractmethod
    def __call__(self, states_AD: Tensor) -> tuple[Tensor, Tensor]:
        """Multiply the weight rows with rounded states; return float32 products [A, V].

        Also returns the norm of each state's rounding error, [A] in float64.
        """


class ByIntegers(Int8Product):
    """Product of int8 rows with states rounded to integers, summed without rounding.

    A rounded state is the sum of two vectors of 7-bit integers, each times a scale. torch derives the scale that
    converts its input to integers from the range of all input rows. An extra input row that contains both ends of the
    range makes that scale 1.
    """

    def __init__(self, weight_VD: Tensor, scale_V: Tensor) -> None:
        vocab_size, width = weight_VD.shape
        if weight_VD.device.type != "cpu" or width < 2:
            raise RuntimeError("of a CPU, and of more than one column")
        with warnings.catch_warnings():  # torch deprecates quantised tensors, not this product
            warnings.simplefilter("ignore", UserWarning)
            zeros_V = torch.zeros(vocab_size, dtype=torch.long)
            rows_VD = torch._make_per_channel_quantized_tensor(weight_VD, scale_V.double(), zeros_V, 0)
            self._packed = torch.ops.quantized.linear_prepack(rows_VD, None)
        self._ends_1D = torch.zeros(1, width)
        self._ends_1D[0, :2] = torch.tensor([-_PART, _PART + 1])

    def __call__(self, states_AD: Tensor) -> tuple[Tensor, Tensor]:
        """Multiply the weight rows with states rounded to two 7-bit parts; return float32 products [A, V].

        Also returns the norm of each state's rounding error, [A] in float64.
        """
        high_AD, high_A1, remainder_AD = _leading_part(states_AD.double())
        low_AD, low_A1, remainder_AD = _leading_part(remainder_AD)
        products_NV = torch.ops.quantized.linear_dynamic(
            torch.cat((high_AD, low_AD, self._ends_1D)), self._packed, True
        )
        high_AV, low_AV, _ = products_NV.split([len(states_AD), len(states_AD), 1])
        return high_AV.mul_(high_A1).addcmul_(low_AV, low_A1), torch.linalg.vector_norm(remainder_AD, dim=-1)


def _leading_part(states_AD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split float64 states into 7-bit integers [A, D] times a scale per row [A, 1], and the remainder [A, D]."""
    size_A1 = (states_AD.abs().amax(-1, keepdim=True) / _PART).float()
    size_A1 = torch.where(size_A1 > 0, size_A1, torch.ones_like(size_A1))
    # NaN has no integer; it stays in the remainder, so that the distance is NaN too.
    integers_AD = (states_AD / size_A1).round_().clamp_(-_PART, _PART).nan_to_num_(0)
    return integers_AD.float(), size_A1, states_AD - integers_AD * size_A1


class ByBfloat16(Int8Product):
    """Product of int8 rows with states rounded to bfloat16; results are rounded to bfloat16 too."""

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
        """Multiply the weight rows with states rounded to bfloat16; return the products [A, V] as float32.

        Also returns the norm of each state's rounding error, [A] in float64.
        """
        narrow_AD = states_AD.bfloat16()
        lost_A = torch.linalg.vector_norm(states_AD.double() - narrow_AD.double(), dim=-1)
        return torch._weight_int8pack_mm(narrow_AD, self._weight_VD, self._scale_V).float(), lost_A


class ByFloat32(Int8Product):
    """Slow fallback on any device: dequantize the weight rows to float32 chunk by chunk, and multiply."""

    def __init__(self, weight_VD: Tensor, scale_V: Tensor) -> None:
        self._weight_VD, self._scale_V = weight_VD, scale_V

    def __call__(self, states_AD: Tensor) -> tuple[Tensor, Tensor]:
        """Multiply the weight rows with unrounded states; return float32 products [A, V].

        Also returns 0 as the norm of each state's rounding error, [A] in float64.
        """
        wide_AD, pieces = states_AD.float(), []
        for rows in chunks(len(self._scale_V)):
            copy_VD = self._weight_VD[rows].float() * self._scale_V[rows].float()[:, None]
            pieces.append(torch.mm(wide_AD, copy_VD.t()))
        return torch.cat(pieces, dim=-1), torch.zeros(len(states_AD), dtype=torch.float64, device=states_AD.device)


PRODUCT_CLASSES: Final[tuple[type[Int8Product], ...]] = (ByIntegers, ByBfloat16)
"""The first is fastest wherever measured; the order is fixed, so that widths of intervals are reproducible."""


def product_of(weight_VD: Tensor, scale_V: Tensor) -> Int8Product:
    """Return a product with int8 rows, by the first of `PRODUCT_CLASSES` that meets its declared error on this machine.

    If none does, return the slow `ByFloat32`, which runs anywhere.
    """
    for product_class in PRODUCT_CLASSES:
        try:
            product = product_class(weight_VD, scale_V)
            if _meets_declared_error(product, weight_VD, scale_V):
                return product
        except (AttributeError, RuntimeError, NotImplementedError):  # not in this torch, or on this processor
            continue
    return ByFloat32(weight_VD, scale_V)


def _meets_declared_error(product: Int8Product, weight_VD: Tensor, scale_V: Tensor) -> bool:
    """Return whether a product's errors on a few test states are within the bounds that its class declares."""
    width = weight_VD.shape[1]
    some_AD = torch.randn(3, width, generator=torch.Generator().manual_seed(0))
    # Rows of largest magnitude, which overflow wherever sums of two products can overflow.
    states_AD = torch.cat((some_AD, torch.ones(1, width), weight_VD[:1].sign().float()))
    products_AV, lost_A = product(states_AD)
    for rows in chunks(len(scale_V)):
        copy_VD = weight_VD[rows].double() * scale_V[rows].double()[:, None]
        copy_V, products_AR = copy_VD.norm(dim=-1), products_AV[:, rows].double()
        allowed_AR = (sum_rounding(width) * states_AD.double().norm(dim=-1) + lost_A)[:, None] * copy_V
        allowed_AR += product.rounding * products_AR.abs() + torch.finfo(torch.float32).tiny
        if not bool(((products_AR - states_AD.double() @ copy_VD.t()).abs() <= allowed_AR).all()):
            return False
    return True


def chunks(n_rows: int) -> Iterator[slice]:
    """Return slices that cover ``n_rows`` rows, each of at most `CHUNK_ROWS` rows."""
    return (slice(start, start + CHUNK_ROWS) for start in range(0, n_rows, CHUNK_ROWS))


LARGEST = 127
"""Largest magnitude of an int8 number, symmetric about 0."""
RESCORED = 32
"""Number of ids per row whose logits `sharpen` makes exact before the head itself is read."""
MOST_RESCORED = 256
"""Largest mean number of ids per row for which single rows of the head are read."""

_OWN = 2.0**-20
"""Relative allowance for rounding in the interval arithmetic itself."""


class Int8Head:
    """int8 copy of an LM head, with bounds on the difference between its logits and those of the exact head.

    Attributes:
        head: The exact LM head.
        numel: Number of weights of the copy.
        product: Product of states with the copy.
    """

    def __init__(self, head: Linear, way: Callable[[Tensor, Tensor], Int8Product] = product_of) -> None:
        self.head = head
        weight_VD, bias_V = head.weight, head.bias
        device, (vocab_size, width) = weight_VD.device, weight_VD.shape
        copy_VD = torch.empty(vocab_size, width, dtype=torch.int8, device=device)
        scale_V = torch.empty(vocab_size, dtype=torch.bfloat16, device=device)
        norms_3V = torch.empty(3, vocab_size, dtype=torch.float64, device=device)
        for rows in chunks(vocab_size):
            copy_VD[rows], scale_V[rows], norms_3V[:, rows] = _quantised(weight_VD[rows])
        self.numel = copy_VD.numel()
        self.product = way(copy_VD, scale_V)
        self._sum = sum_rounding(width)
        self._rounded = _rounding(head)
        row_V, copy_V, remainder_V = norms_3V
        size_V = torch.zeros_like(row_V) if bias_V is None else bias_V.double().abs()
        self._row_V = row_V * (1 + _OWN)
        self._size_V = size_V
        wider = 1 + self._rounded + 2.0**-12
        by_state_V = remainder_V + self._sum * (row_V + 2 * copy_V)
        constant_V = (self._rounded + _OWN) * size_V + torch.finfo(torch.float32).tiny + _tiny(head)
        spread_3V = torch.stack((by_state_V * wider, copy_V * wider * (1 + self._sum), constant_V)).float()
        self._spread_3V = spread_3V * (1 + _OWN)
        self._bias_V = None if bias_V is None else bias_V.float()

    def read(self, states_AD: Tensor) -> LogitIntervals:
        """Return intervals that contain the exact head's logits, for inputs of the head [A, D]."""
        logits_AV, lost_A = self.product(states_AD)
        length_A = torch.linalg.vector_norm(states_AD, dim=-1, dtype=torch.float64)
        by_A3 = torch.stack((length_A, lost_A, torch.ones_like(length_A)), dim=-1) * (1 + _OWN)
        spread_AV = torch.mm(by_A3.float(), self._spread_3V)
        spread_AV.add_(logits_AV.abs(), alpha=self.product.rounding + self._rounded + _OWN)
        if self._bias_V is not None:
            logits_AV = logits_AV + self._bias_V
        none_A = torch.zeros(len(states_AD), dtype=torch.long, device=states_AD.device)
        lower_AV, upper_AV = _beyond_format(self.head, logits_AV - spread_AV, logits_AV + spread_AV)
        return LogitIntervals(self, states_AD, lower_AV, upper_AV, none_A)

    def exact_bounds(self, states_AD: Tensor, row_N: Tensor, id_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return bounds of single logits, computed from rows of the exact head: lower and upper ends, [N] each.

        ``row_N`` is the row of ``states_AD`` and ``id_N`` the token id of each logit. The two ends of an interval
        differ only because the exact head's own product is rounded.
        """
        weight_ND = self.head.weight.index_select(0, id_N).double()
        states_AD = states_AD.double()
        product_N = (weight_ND * states_AD[row_N]).sum(-1)
        size_N = self._size_V[id_N]
        length_N = torch.linalg.vector_norm(states_AD, dim=-1)[row_N]
        spread_N = self._sum * (self._row_V[id_N] * length_N + size_N) * (1 + self._rounded)
        spread_N += (self._rounded + _OWN) * (product_N.abs() + size_N) + _tiny(self.head)
        logit_N = product_N if self._bias_V is None else product_N + self._bias_V[id_N]
        return _beyond_format(self.head, (logit_N - spread_N).float(), (logit_N + spread_N).float())


@dataclass
class LogitIntervals:
    """Intervals [A, V] that contain the exact LM head's logits; satisfies `methods.base.LogitBounds`.

    Attributes:
        head: The int8 head that computed them.
        states_AD: Inputs of the head.
        lower_AV: Lower ends.
        upper_AV: Upper ends.
        rescored_A: Number of rows of the exact head that were read so far, for each row of the batch.
    """

    head: Int8Head
    states_AD: Tensor
    lower_AV: Tensor
    upper_AV: Tensor
    rescored_A: Tensor

    def take(self, index_A: Tensor) -> LogitIntervals:
        """Return the intervals of the batch rows with indices ``index_A``; `rescored_A` restarts at 0."""
        lower_AV, upper_AV = self.lower_AV.index_select(0, index_A), self.upper_AV.index_select(0, index_A)
        none_A = torch.zeros_like(index_A)
        return LogitIntervals(self.head, self.states_AD.index_select(0, index_A), lower_AV, upper_AV, none_A)

    def sharpen(self) -> None:
        """Narrow the intervals of each row's most likely token ids, by reading their weight rows of the exact head.

        These are the `RESCORED` ids with the highest upper ends.
        """
        upper_AV = self.upper_AV
        ids = upper_AV.topk(min(RESCORED, upper_AV.shape[1])).indices
        rows = torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids)
        self._rescore(rows.flatten(), ids.flatten())

    def argmax_ids(self) -> Tensor | None:
        """Return the token id of each row's largest logit, [A]; None if any row remains undecided.

        Rows of the exact head are read for all ids that may be the largest. If they are more than `MOST_RESCORED` per
        row on average, none are read, and None is returned.
        """
        rival_AV = self.upper_AV >= self.lower_AV.amax(-1, keepdim=True)
        row_N, id_N = rival_AV.nonzero(as_tuple=True)
        if len(id_N) > MOST_RESCORED * len(rival_AV):
            return None
        self._rescore(row_N, id_N)
        best_A1 = self.lower_AV.argmax(-1, keepdim=True)
        runner_up_A = self.upper_AV.scatter(1, best_A1, float("-inf")).amax(-1)
        is_sure = bool((self.lower_AV.gather(1, best_A1)[:, 0] > runner_up_A).all())
        return best_A1[:, 0] if is_sure else None

    def _rescore(self, row_N: Tensor, id_N: Tensor) -> None:
        lower_N, upper_N = self.head.exact_bounds(self.states_AD, row_N, id_N)
        self.lower_AV[row_N, id_N] = torch.maximum(lower_N, self.lower_AV[row_N, id_N])
        self.upper_AV[row_N, id_N] = torch.minimum(upper_N, self.upper_AV[row_N, id_N])
        self.rescored_A += torch.bincount(row_N, minlength=len(self.rescored_A))


def _quantised(weight_RD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return R weight rows as int8, their scales, and norms [3, R]: of the exact rows, int8 copies and differences."""
    weight_RD = weight_RD.double()
    scale_R = (weight_RD.abs().amax(-1) / LARGEST).bfloat16()
    scale_R = torch.where(scale_R > 0, scale_R, torch.ones_like(scale_R))
    wide_R1 = scale_R.double()[:, None]
    small_RD = (weight_RD / wide_R1).round().clamp(-LARGEST, LARGEST)
    copy_RD = small_RD * wide_R1
    norms = [torch.linalg.vector_norm(rows_RD, dim=-1) for rows_RD in (weight_RD, copy_RD, weight_RD - copy_RD)]
    return small_RD.to(torch.int8), scale_R, torch.stack(norms)


def _rounding(head: Linear) -> float:
    """Return a bound on the relative error of a logit that the exact head rounds to its own number format.

    A head with a bias rounds twice. The bound is 0 for float32 and float64, whose rounding is included in the
    error of the sum.
    """
    if head.weight.dtype in (torch.float32, torch.float64):
        return 0.0  # included in that of the sum
    return torch.finfo(head.weight.dtype).eps / 2 * (1.01 if head.bias is None else 2.5)


def _beyond_format(head: Linear, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return the interval ends, made infinite if the exact head's logit would overflow: in float16, from 65,504 on."""
    if head.weight.dtype != torch.float16:
        return lower, upper
    largest = torch.finfo(torch.float16).max * (1 - torch.finfo(torch.float16).eps)
    return lower.masked_fill(lower < -largest, -torch.inf), upper.masked_fill(upper > largest, torch.inf)


def _tiny(head: Linear) -> float:
    """Return the largest absolute rounding error of numbers that underflow in the head's number format."""
    return float(torch.finfo(head.weight.dtype).tiny)
