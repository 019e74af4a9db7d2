"""Read-outs of a model: its own LM head, or trained exit heads of five kinds, stored in one safetensors file.

`exit_heads.safetensors` is next to the model's weights. Its metadata hold the kind and the blocks, and each exit block
b has its own tensors (D model width, V vocabulary, H hidden width of the head):

  linear        b.norm.weight [D], b.norm.bias [D]?, b.out.weight [V, D], b.out.bias [V]?   (HEADS)
  mlp           b.norm.*, b.up.weight [H, D], b.up.bias [H], GELU, b.out.weight [V, H], b.out.bias [V]?
  lens          b.lens.weight [D, D], b.lens.bias [D]: h + A h + c before the model's own read-out   (tuned lens)
  norm          b.gain.weight [D], b.gain.bias [D]?: factor and shift of the final norm's output, before the model's own
                LM head   (EE-Tuning's Norm with the model's embedding)
  residual-mlp  b.norm.*, b.gate.weight [H, D], b.up.weight [H, D], b.down.weight [D, H], b.gain.*:
                h + down(silu(gate x) * up x) with x = norm(h), then as `norm`   (EE-Tuning's MLP)

`b.norm` is a layer norm if it has a bias, else an RMS norm. Training and inference read out with the same function.
The last three kinds end in the model's own LM head, so that their own weights do not grow with the vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, Protocol, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from exitbench.methods.base import LogitBounds

RMS_EPS, LAYER_EPS = 1e-6, 1e-5

HeadKind = Literal["linear", "mlp", "lens", "norm", "residual-mlp"]
KINDS: tuple[HeadKind, ...] = get_args(HeadKind)
WITH_LM_HEAD: Final = frozenset[HeadKind]({"lens", "norm", "residual-mlp"})
"""Kinds that end in the model's own LM head."""


class OwnReadOut(Protocol):
    """The model's own read-out (final norm, then LM head), in two steps and as a whole."""

    def final_normed(self, hidden: Tensor) -> Tensor:
        """Apply the model's final norm to states [..., D]."""

    def logits_of_normed(self, normed: Tensor) -> Tensor:
        """Return the logits [..., V] of states to which the final norm has been applied, [..., D]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] of states after a block, [..., D]: final norm, then LM head."""


def exit_logits(
    tensors: Mapping[str, Tensor],
    kind: HeadKind,
    block: int,
    hidden: Tensor,
    model: OwnReadOut,
    output: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Compute logits with the exit head of one block; differentiable, so that training uses this function too.

    Args:
        tensors: Tensors of all exit heads, by their names in the file.
        kind: Kind of all exit heads.
        block: The exit head's block.
        hidden: States after this block, before any norm, [..., D].
        model: The model's own read-out, in which the kinds of `WITH_LM_HEAD` end.
        output: The other kinds' output layer; None multiplies its tensors by torch's default routine.

    Returns:
        Logits [..., V].
    """
    if kind == "lens":
        return model.logits(_through_lens(tensors, block, hidden))
    if kind in WITH_LM_HEAD:
        return model.logits_of_normed(lm_head_input(tensors, kind, block, hidden, model))
    normed = _norm(hidden, tensors[f"{block}.norm.weight"], tensors.get(f"{block}.norm.bias"))
    if kind == "mlp":
        normed = F.gelu(F.linear(normed, tensors[f"{block}.up.weight"], tensors[f"{block}.up.bias"]))
    if output is not None:
        return output(normed)
    return F.linear(normed, tensors[f"{block}.out.weight"], tensors.get(f"{block}.out.bias"))


def lm_head_input(
    tensors: Mapping[str, Tensor], kind: HeadKind, block: int, hidden: Tensor, model: OwnReadOut
) -> Tensor:
    """Return the state [..., D], after the final norm, that an exit head passes to the model's own LM head.

    Only for kinds in `WITH_LM_HEAD`; arguments as in `exit_logits`.
    """
    if kind == "lens":
        return model.final_normed(_through_lens(tensors, block, hidden))
    if kind == "residual-mlp":
        normed = _norm(hidden, tensors[f"{block}.norm.weight"], tensors.get(f"{block}.norm.bias"))
        inner = F.silu(F.linear(normed, tensors[f"{block}.gate.weight"])) * F.linear(
            normed, tensors[f"{block}.up.weight"]
        )
        hidden = hidden + F.linear(inner, tensors[f"{block}.down.weight"])
    normed = model.final_normed(hidden)
    shift = tensors.get(f"{block}.gain.bias")
    # A final norm may return fewer bits than the state has: those of the LM head.
    scaled = normed * tensors[f"{block}.gain.weight"].to(normed.dtype)
    return scaled if shift is None else scaled + shift.to(normed.dtype)


def _through_lens(tensors: Mapping[str, Tensor], block: int, hidden: Tensor) -> Tensor:
    return hidden + F.linear(hidden, tensors[f"{block}.lens.weight"], tensors[f"{block}.lens.bias"])


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
        blocks: Blocks with an exit head, ascending, each in 1..L-1.
        tensors: Tensors of all heads, by their names in the file.
        outputs: Output layers in forms that are fast on this machine, by block; the others are multiplied by torch's
            default routine.
    """

    kind: HeadKind
    blocks: tuple[int, ...]
    tensors: Mapping[str, Tensor]
    outputs: Mapping[int, Callable[[Tensor], Tensor]] = field(default_factory=dict)

    def logits(self, block: int, hidden: Tensor, model: OwnReadOut) -> Tensor:
        """Return the logits [..., V] of one block's exit head for states after this block, [..., D].

        ``model`` provides the final norm and the LM head, in which some kinds of exit heads end.
        """
        if hidden.dtype != next(iter(self.tensors.values())).dtype:
            return exit_logits(self._in_fp32, self.kind, block, hidden, model)
        return exit_logits(self.tensors, self.kind, block, hidden, model, self.outputs.get(block))

    @cached_property
    def _in_fp32(self) -> Mapping[str, Tensor]:
        """The exit heads' tensors in fp32, for models with fp32 states and float16 weights."""
        return {name: tensor.float() for name, tensor in self.tensors.items()}

    def numel(self, block: int) -> int:
        """Return the number of matrix weights of one block's exit head, without norms, biases and the LM head."""
        tensors = (tensor for name, tensor in self.tensors.items() if name.startswith(f"{block}."))
        return sum(tensor.numel() for tensor in tensors if tensor.dim() == 2)


class Headed(ABC):
    """Base class of a model with an LM head and, possibly, trained exit heads.

    Attributes:
        exit_heads: The trained exit heads; None if there are none.
    """

    exit_heads: ExitHeads | None

    @property
    @abstractmethod
    def lm_head(self) -> Any:
        """The LM head, an object with attributes ``weight`` [V, D] and possibly ``bias`` [V]."""

    @abstractmethod
    def final_normed(self, hidden: Tensor) -> Tensor:
        """Apply the model's final norm to states [..., D]."""

    @abstractmethod
    def logits_of_normed(self, normed: Tensor) -> Tensor:
        """Return the logits [..., V] of states to which the final norm has been applied, [..., D]."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] of states [..., D], as the model computes them after its last block."""

    def logit_bounds(self, hidden_AD: Tensor) -> LogitBounds:
        """Return intervals that contain the logits of states [A, D], without multiplying the whole exact LM head.

        Raises:
            NotImplementedError: The model may change logits after its LM head, so that they have no known bounds.
        """
        raise NotImplementedError(f"{type(self).__name__} does not bound its logits")

    @property
    def vocab_size(self) -> int:
        """Number of rows of the LM head's weight, V (the vocabulary size)."""
        return int(self.lm_head.weight.shape[0])

    @property
    def exit_blocks(self) -> tuple[int, ...]:
        """Blocks with a trained exit head, ascending."""
        return () if self.exit_heads is None else self.exit_heads.blocks

    def exit_logits(self, block: int, hidden_AD: Tensor) -> Tensor:
        """Return the logits [A, V] of a block's trained exit head for states after this block, [A, D]."""
        assert self.exit_heads is not None, "called at exit blocks only"
        return self.exit_heads.logits(block, hidden_AD, self)

    def exit_head_numel(self, block: int) -> int:
        """Return the number of weights multiplied in a read-out by a block's exit head, and any LM head after it."""
        assert self.exit_heads is not None, "called at exit blocks only"
        numel = self.exit_heads.numel(block)
        return numel + int(self.lm_head.weight.numel()) if self.exit_heads.kind in WITH_LM_HEAD else numel

    def head_rows(self, ids: Tensor) -> Tensor:
        """Return the rows of the LM head's weight for the given token ids, [len(ids), D]."""
        rows: Tensor = self.lm_head.weight.index_select(0, ids)
        return rows

    def head_weights(self, ids_AK: Tensor) -> Tensor:
        """Return the LM head's rows for token ids [A, K]: [A, K, D], or [A, K, D + 1] with a bias as last column."""
        rows = self.head_rows(ids_AK.flatten()).view(*ids_AK.shape, -1)
        bias = getattr(self.lm_head, "bias", None)
        return rows if bias is None else torch.cat((rows, bias[ids_AK][..., None]), dim=-1)
