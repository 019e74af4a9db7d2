"""Read-outs of a model: its LM head, and trained exit heads (linear, MLP or tuned lens) with the tensors of their file.

`exit_heads.safetensors` is next to the model's weights. Its metadata hold the kind and the blocks, and each exit block
b has its own tensors (D model width, V vocabulary, H hidden width of the head):

  linear   b.norm.weight [D], b.norm.bias [D]?, b.out.weight [V, D], b.out.bias [V]?        (HEADS)
  mlp      b.norm.*, b.up.weight [H, D], b.up.bias [H], GELU, b.out.weight [V, H], b.out.bias [V]?
  lens     b.lens.weight [D, D], b.lens.bias [D]: h + A h + c before the model's own read-out  (tuned lens)

The norm is a layer norm if it has a bias, else an RMS norm. Training and inference read out with the same function.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from exitbench.methods.base import LogitBounds

RMS_EPS, LAYER_EPS = 1e-6, 1e-5

HeadKind = Literal["linear", "mlp", "lens"]
KINDS: tuple[HeadKind, ...] = get_args(HeadKind)


def exit_logits(
    tensors: Mapping[str, Tensor], kind: HeadKind, block: int, hidden: Tensor, read_out: Callable[[Tensor], Tensor]
) -> Tensor:
    """Read out with the head of one exit block, differentiably.

    Args:
        tensors: Tensors of all heads, by their names in the file.
        kind: Kind of the heads.
        block: The exit block.
        hidden: States after it, not normalised, [..., D].
        read_out: The model's own final norm and LM head, the last step of a lens.

    Returns:
        Logits [..., V].
    """
    if kind == "lens":
        return read_out(hidden + F.linear(hidden, tensors[f"{block}.lens.weight"], tensors[f"{block}.lens.bias"]))
    normed = _norm(hidden, tensors[f"{block}.norm.weight"], tensors.get(f"{block}.norm.bias"))
    if kind == "mlp":
        normed = F.gelu(F.linear(normed, tensors[f"{block}.up.weight"], tensors[f"{block}.up.bias"]))
    return F.linear(normed, tensors[f"{block}.out.weight"], tensors.get(f"{block}.out.bias"))


def _norm(hidden: Tensor, weight_D: Tensor, bias_D: Tensor | None) -> Tensor:
    width = (hidden.shape[-1],)
    if bias_D is None:
        return F.rms_norm(hidden, width, weight_D, RMS_EPS)
    return F.layer_norm(hidden, width, weight_D, bias_D, LAYER_EPS)


@dataclass(frozen=True)
class ExitHeads:
    """The trained exit heads of a checkpoint.

    Attributes:
        kind: Kind, the same for all heads.
        blocks: Blocks with a head, ascending, of 1..L-1.
        tensors: Tensors by their names in the file.
    """

    kind: HeadKind
    blocks: tuple[int, ...]
    tensors: Mapping[str, Tensor]

    def logits(self, block: int, hidden: Tensor, read_out: Callable[[Tensor], Tensor]) -> Tensor:
        """Return logits [..., V] of states [..., D] after an exit block; see `exit_logits`."""
        is_same = hidden.dtype == next(iter(self.tensors.values())).dtype
        return exit_logits(self.tensors if is_same else self._in_fp32, self.kind, block, hidden, read_out)

    @cached_property
    def _in_fp32(self) -> Mapping[str, Tensor]:
        """Copies for models whose states are in fp32 while weights are in float16."""
        return {name: tensor.float() for name, tensor in self.tensors.items()}

    def numel(self, block: int) -> int:
        """Return the number of weights in the block's own matrix products; no cost counts norms and biases."""
        tensors = (tensor for name, tensor in self.tensors.items() if name.startswith(f"{block}."))
        return sum(tensor.numel() for tensor in tensors if tensor.dim() == 2)


class Headed(ABC):
    """A model with an LM head and, possibly, trained exit heads.

    Attributes:
        exit_heads: The trained exit heads; None if there are none.
    """

    exit_heads: ExitHeads | None

    @property
    @abstractmethod
    def lm_head(self) -> Any:
        """The LM head: ``weight`` [V, D], and possibly ``bias`` [V]."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Read out as the model does after its last block, [..., D] to [..., V]."""

    def logit_bounds(self, hidden_AD: Tensor) -> LogitBounds:
        """Bound the result of `logits`; only for models whose operations after the LM head, if any, are known."""
        raise NotImplementedError(f"{type(self).__name__} does not bound its logits")

    @property
    def vocab_size(self) -> int:
        """Rows of the LM head, V."""
        return int(self.lm_head.weight.shape[0])

    @property
    def exit_blocks(self) -> tuple[int, ...]:
        """Blocks with a trained exit head, ascending."""
        return () if self.exit_heads is None else self.exit_heads.blocks

    def exit_logits(self, block: int, hidden_AD: Tensor) -> Tensor:
        """Read out with the trained exit head of a block, [A, D] to [A, V]."""
        assert self.exit_heads is not None, "called at exit blocks only"
        return self.exit_heads.logits(block, hidden_AD, self.logits)

    def exit_head_numel(self, block: int) -> int:
        """Return the number of weights that one read-out of an exit head multiplies, for a lens with the LM head's."""
        assert self.exit_heads is not None, "called at exit blocks only"
        numel = self.exit_heads.numel(block)
        return numel + int(self.lm_head.weight.numel()) if self.exit_heads.kind == "lens" else numel

    def head_rows(self, ids: Tensor) -> Tensor:
        """Return rows of the LM head's weight, [ids, D]."""
        rows: Tensor = self.lm_head.weight.index_select(0, ids)
        return rows

    def head_weights(self, ids_AK: Tensor) -> Tensor:
        """Return rows of the LM head, [A, K, D]; a bias is one more column."""
        rows = self.head_rows(ids_AK.flatten()).view(*ids_AK.shape, -1)
        bias = getattr(self.lm_head, "bias", None)
        return rows if bias is None else torch.cat((rows, bias[ids_AK][..., None]), dim=-1)
