"""An int8 copy of an LM head, read in place of it: logits as intervals that hold what the head itself would say.

Row i of the head is w = q + r: q a number of one byte times a scale of the row, r what that leaves. Of a state x, which
the library's product of q rounds (`int8_products`) and so leaves e of, that product differs from what the head's own
gives by no more than

    |r| |x|  +  |q| |e|  +  rounding of both products,

by Cauchy and Schwarz; `docs/methods.md` has the proof. Which library is used, and in which order it adds, changes how
wide an interval is but not that it holds.

Shape suffixes: A rows, D model width, V vocabulary, N pairs of a row and an id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from exitbench.harness.engine.model.int8_products import Int8Product, chunks, product_of, sum_rounding
from exitbench.harness.engine.model.weights import Linear

LARGEST = 127
"""Of a number of one byte, symmetric about 0."""
RESCORED = 32
"""Ids of a row whose logits are made exact before the head itself is read."""
MOST_RESCORED = 256
"""Ids of a row up to which reading single rows of the head is tried, on average over the rows."""

_OWN = 2.0**-20
"""For the rounding of the intervals' own arithmetic, relative."""


class Int8Head:
    """An LM head in a byte a weight.

    Attributes:
        head: The head itself.
        numel: Weights of the copy.
        product: How the copy is multiplied.
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
        row_V, copy_V, left_V = norms_3V
        size_V = torch.zeros_like(row_V) if bias_V is None else bias_V.double().abs()
        self._row_V = row_V * (1 + _OWN)
        self._size_V = size_V
        wider = 1 + self._rounded + 2.0**-12
        by_state_V = left_V + self._sum * (row_V + 2 * copy_V)
        constant_V = (self._rounded + _OWN) * size_V + torch.finfo(torch.float32).tiny + _tiny(head)
        spread_3V = torch.stack((by_state_V * wider, copy_V * wider * (1 + self._sum), constant_V)).float()
        self._spread_3V = spread_3V * (1 + _OWN)
        self._bias_V = None if bias_V is None else bias_V.float()

    def read(self, states_AD: Tensor) -> LogitIntervals:
        """Bound the logits of what the head is given, [A, D]."""
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

    def rescored(self, states_AD: Tensor, row_N: Tensor, id_N: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of single logits by the head's own rows, [N] each: as wide as the rounding of its product."""
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
    """Intervals [A, V] in which the logits lie that the head itself would give; satisfies `methods.base.LogitBounds`.

    Attributes:
        head: What bounds them.
        states_AD: What the head is given.
        lower_AV: Ends below.
        upper_AV: Ends above.
        rescored_A: Rows of the head itself read so far, [A].
    """

    head: Int8Head
    states_AD: Tensor
    lower_AV: Tensor
    upper_AV: Tensor
    rescored_A: Tensor

    def take(self, index_A: Tensor) -> LogitIntervals:
        """Select rows by index; what they have read stays with all rows."""
        lower_AV, upper_AV = self.lower_AV.index_select(0, index_A), self.upper_AV.index_select(0, index_A)
        none_A = torch.zeros_like(index_A)
        return LogitIntervals(self.head, self.states_AD.index_select(0, index_A), lower_AV, upper_AV, none_A)

    def sharpen(self) -> None:
        """Read the head itself for the ids of each row that may be the largest."""
        upper_AV = self.upper_AV
        ids = upper_AV.topk(min(RESCORED, upper_AV.shape[1])).indices
        rows = torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids)
        self._rescore(rows.flatten(), ids.flatten())

    def largest(self) -> Tensor | None:
        """Ids [A] of the largest logits; None where rounding leaves open which is, of any row."""
        rival_AV = self.upper_AV >= self.lower_AV.amax(-1, keepdim=True)
        row_N, id_N = rival_AV.nonzero(as_tuple=True)
        if len(id_N) > MOST_RESCORED * len(rival_AV):
            return None
        self._rescore(row_N, id_N)
        best_A1 = self.lower_AV.argmax(-1, keepdim=True)
        others_A = self.upper_AV.scatter(1, best_A1, float("-inf")).amax(-1)
        is_sure = bool((self.lower_AV.gather(1, best_A1)[:, 0] > others_A).all())
        return best_A1[:, 0] if is_sure else None

    def _rescore(self, row_N: Tensor, id_N: Tensor) -> None:
        lower_N, upper_N = self.head.rescored(self.states_AD, row_N, id_N)
        self.lower_AV[row_N, id_N] = torch.maximum(lower_N, self.lower_AV[row_N, id_N])
        self.upper_AV[row_N, id_N] = torch.minimum(upper_N, self.upper_AV[row_N, id_N])
        self.rescored_A += torch.bincount(row_N, minlength=len(self.rescored_A))


def _quantised(weight_RD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of a head as int8 and their scales, and lengths of each row, of its copy and of what the copy leaves."""
    weight_RD = weight_RD.double()
    scale_R = (weight_RD.abs().amax(-1) / LARGEST).bfloat16()
    scale_R = torch.where(scale_R > 0, scale_R, torch.ones_like(scale_R))
    wide_R1 = scale_R.double()[:, None]
    small_RD = (weight_RD / wide_R1).round().clamp(-LARGEST, LARGEST)
    copy_RD = small_RD * wide_R1
    norms = [torch.linalg.vector_norm(rows_RD, dim=-1) for rows_RD in (weight_RD, copy_RD, weight_RD - copy_RD)]
    return small_RD.to(torch.int8), scale_R, torch.stack(norms)


def _rounding(head: Linear) -> float:
    """Relative error of a logit that is rounded to the head's number format, once or, with a bias, twice."""
    if head.weight.dtype in (torch.float32, torch.float64):
        return 0.0  # with that of the sum
    return torch.finfo(head.weight.dtype).eps / 2 * (1.01 if head.bias is None else 2.5)


def _beyond_format(head: Linear, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Both ends, infinite where the head would give a logit as infinite: in float16, from 65,504 on."""
    if head.weight.dtype != torch.float16:
        return lower, upper
    largest = torch.finfo(torch.float16).max * (1 - torch.finfo(torch.float16).eps)
    return lower.masked_fill(lower < -largest, -torch.inf), upper.masked_fill(upper > largest, torch.inf)


def _tiny(head: Linear) -> float:
    """Absolute error of a number too small for the head's number format."""
    return float(torch.finfo(head.weight.dtype).tiny)
