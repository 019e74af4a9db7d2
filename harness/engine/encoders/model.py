"""Encoder with a classifier, as the model that methods run on: a text counts as one token, labels as the vocabulary.

Blocks before the last are read out by their own off-ramps, or by the model's classifier.

Shape suffixes: A texts that have not exited before a block, T tokens, D model width, C labels (1 for a regression).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from exitbench.harness.cells.cell import EngineName
from exitbench.harness.cells.texts import EncodedText
from exitbench.harness.engine.encoders.stack import BlockCalls, EncoderStack
from exitbench.methods.base import Cost, LogitBounds, Parts
from exitbench.methods.heads import LMHead, TrainedHead
from exitbench.methods.kv_policies import StateCopy

RampKind = Literal["linear", "pooler-linear", "attention"]
RAMP_KINDS: tuple[RampKind, ...] = get_args(RampKind)
ATTENTION_WIDTH: Final = 128
"""Width of off-ramps with attention, as in FastBERT's published code."""
_ATTENTION_HEADS: Final = 2


@dataclass(frozen=True)
class OffRamps:
    """Off-ramps (classifiers) of some of an encoder's blocks, all of one kind.

    Attributes:
        kind: ``linear``: out(x); ``pooler-linear``: out(tanh(pool(x))), where x is the pooled state after the
            block. ``attention`` (FastBERT): out(tanh(pool(a))), where a is the output of a self-attention over
            tanh(down(states of all tokens)) at the first token; it has two heads of half of the width W.
        blocks: Blocks with an off-ramp, ascending.
        tensors: Weights and biases by name, ``{block}.NAME.weight`` and ``{block}.NAME.bias``. Weights are ``out``
            [C, D]; with a pooler also ``pool`` [D, D]. With attention, they are ``down`` [W, D], ``query``, ``key``,
            ``value``, ``proj`` and ``pool`` [W, W], and ``out`` [C, W].
    """

    kind: RampKind
    blocks: tuple[int, ...]
    tensors: Mapping[str, Tensor]

    def attention_output(self, block: int, hidden_ATD: Tensor, mask_AT: Tensor) -> Tensor:
        """Return the output of an off-ramp's attention at each text's first token, [A, W]; 0 without an off-ramp.

        ``hidden_ATD`` are the states of all tokens after the block. ``mask_AT`` is 1 at tokens and 0 at padding.
        """
        if block not in self.blocks:
            return hidden_ATD.new_zeros(len(hidden_ATD), ATTENTION_WIDTH)
        down_ATW = torch.tanh(self._linear(block, "down", hidden_ATD))
        query_AHQE, key_AHTE, value_AHTE = (
            self._linear(block, part, x).view(*x.shape[:2], _ATTENTION_HEADS, -1).transpose(1, 2)
            for part, x in (("query", down_ATW[:, :1]), ("key", down_ATW), ("value", down_ATW))
        )
        mask_A11T = mask_AT[:, None, None].bool()
        output_AHQE = F.scaled_dot_product_attention(query_AHQE, key_AHTE, value_AHTE, mask_A11T)
        return self._linear(block, "proj", output_AHQE.flatten(1))

    def logits(self, block: int, state_AS: Tensor) -> Tensor:
        """Return the logits [A, C] of a block's off-ramp for states [A, S] as `read_out_state` returns them."""
        if self.kind == "attention":
            state_AS = state_AS[..., -ATTENTION_WIDTH:]
        if self.kind != "linear":
            state_AS = torch.tanh(self._linear(block, "pool", state_AS))
        return self._linear(block, "out", state_AS)

    def numel(self, block: int) -> int:
        """Return the number of weights that a block's off-ramp multiplies with a state of `read_out_state`."""
        parts = ("out",) if self.kind == "linear" else ("pool", "out")
        return sum(self.tensors[f"{block}.{part}.weight"].numel() for part in parts)

    def attention_cost(self, block: int, n_tokens: int) -> Cost:
        """Return the cost of `attention_output` for a text of ``n_tokens`` tokens; 0 if there is no attention."""
        if self.kind != "attention" or block not in self.blocks:
            return Cost()
        rows = {"down": n_tokens, "query": 1, "key": n_tokens, "value": n_tokens, "proj": 1}
        numel = {part: self.tensors[f"{block}.{part}.weight"].numel() for part in rows}
        products = sum(rows[part] * numel[part] for part in rows)
        products += 2 * n_tokens * ATTENTION_WIDTH  # attention scores, and the weighted sum of values
        return Cost(matmul_flops=2 * products, read_numel=sum(numel.values()))

    def _linear(self, block: int, part: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{block}.{part}.weight"], self.tensors[f"{block}.{part}.bias"])


def read_out_state(
    stack: EncoderStack, off_ramps: OffRamps | None, block: int, hidden_ATD: Tensor, context: BlockCalls
) -> Tensor:
    """Return the states that are read out after a block (block 0 is the embedding): each text's pooled state, [A, D].

    With off-ramps that have attention, its output is appended, [A, D + W].
    """
    normed_ATD = stack.final_norm(hidden_ATD)
    pooled_AD = stack.pool(normed_ATD, context)
    if off_ramps is None or off_ramps.kind != "attention":
        return pooled_AD
    output_AW = off_ramps.attention_output(block, normed_ATD, context.mask_AT)
    return torch.cat([pooled_AD, output_AW.to(pooled_AD.dtype)], dim=-1)


_COUNTED: Final = (4, 8, 12)
"""Text lengths at which products are counted: three determine a polynomial of the second degree."""


@dataclass(frozen=True)
class TextWork:
    """FLOPs of one block's matrix products for a text of T tokens: ``fixed + per_token T + per_pair T^2``.

    Attributes:
        weights: Number of weights that the block reads.
    """

    fixed: float
    per_token: float
    per_pair: float
    weights: int

    def cost(self, n_tokens: int) -> Cost:
        """Return the cost of one block for a text of ``n_tokens`` tokens."""
        flops = self.fixed + self.per_token * n_tokens + self.per_pair * n_tokens**2
        return Cost(matmul_flops=flops, read_numel=self.weights)


class EncoderClassifier:
    """An encoder-only classifier or regressor that is run block by block (`methods.base.ModelInterface`).

    Args:
        stack: The parts of the model.
        off_ramps: Off-ramps by block, for blocks before the last. A block without one is read out by the model's own
            classifier; None means that no block has one.
    """

    engine: EngineName = "hosted"
    kv_width = 0
    encoder_blocks = 0
    """Encoder blocks in addition to those that texts leave from, which `n_blocks` counts."""

    def __init__(self, stack: EncoderStack, off_ramps: OffRamps | None = None) -> None:
        self.stack, self.off_ramps = stack, off_ramps
        parameter = next(stack.lm.parameters())
        self.dtype: torch.dtype = parameter.dtype
        self.device: torch.device = parameter.device
        self.work = TextWork(0, 0, 0, 0) if self.device.type == "meta" else _counted(stack)

    @property
    def n_blocks(self) -> int:
        """Number of blocks of the encoder, L."""
        return self.stack.n_blocks

    @property
    def d_model(self) -> int:
        """Width of the pooled state, D."""
        return self.stack.d_model

    @property
    def vocab_size(self) -> int:
        """Number of labels, C, which takes the place of a vocabulary size; 1 for a regression."""
        return self.stack.n_labels

    @property
    def is_regression(self) -> bool:
        """True if the classifier's single output is a number, not a label."""
        return self.stack.n_labels == 1

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels in the checkpoint, by index."""
        named = self.stack.lm.config.id2label
        return tuple(str(named[index]) for index in range(self.stack.n_labels))

    @property
    def n_tokens(self) -> int:
        """Number of token ids, which is the number of rows of the token embedding."""
        return int(self.stack.lm.config.vocab_size)

    @property
    def max_positions(self) -> int:
        """Maximum number of tokens of a text."""
        return self.stack.max_positions

    @property
    def exit_blocks(self) -> tuple[int, ...]:
        """Blocks that have an off-ramp, ascending; () if there are no off-ramps."""
        return () if self.off_ramps is None else self.off_ramps.blocks

    def exit_logits(self, block: int, hidden_AD: Tensor) -> Tensor:
        """Return the logits [A, C] of a block's off-ramp for states [A, S] as `state` returns them."""
        assert self.off_ramps is not None, "called only for blocks that have an off-ramp"
        return self.off_ramps.logits(block, hidden_AD)

    def state(self, block: int, hidden_ATD: Tensor, context: BlockCalls) -> Tensor:
        """Return the states [A, S] that are read out after a block, from the states of all tokens [A, T, D]."""
        return read_out_state(self.stack, self.off_ramps, block, hidden_ATD, context)

    def attention_cost(self, block: int, n_tokens: int) -> Cost:
        """Return the cost of the attention of a block's off-ramp for a text of ``n_tokens`` tokens; 0 without one."""
        return Cost() if self.off_ramps is None else self.off_ramps.attention_cost(block, n_tokens)

    def exit_head_numel(self, block: int) -> int:
        """Return the number of weights that read out a state: of the block's off-ramp, or of the model's classifier."""
        if self.off_ramps is not None and block in self.off_ramps.blocks:
            return self.off_ramps.numel(block)
        return self.stack.classifier_numel

    def final_normed(self, hidden: Tensor) -> Tensor:
        """Return the pooled states [..., D] of states as `state` returns them; they are normed already."""
        return hidden[..., : self.d_model]

    def logits(self, hidden_AD: Tensor) -> Tensor:
        """Return the logits [..., C] of the model's own classifier for states [..., S] as `state` returns them."""
        flat = hidden_AD[..., : self.d_model].reshape(-1, self.d_model)
        return self.stack.classify(flat).view(*hidden_AD.shape[:-1], -1)

    def logit_bounds(self, hidden_AD: Tensor) -> LogitBounds:
        """Raise NotImplementedError: a classifier is small enough to be read in full."""
        raise NotImplementedError("a classifier is read out as a whole")

    def head_weights(self, ids_AK: Tensor) -> Tensor:
        """Raise NotImplementedError: a classifier is read out as a whole, not for some labels."""
        raise NotImplementedError("a classifier is read out as a whole")

    def logits_of(self, hidden_AD: Tensor, weights_AKD: Tensor) -> Tensor:
        """Raise NotImplementedError: a classifier is read out as a whole, not for some labels."""
        raise NotImplementedError("a classifier is read out as a whole")

    def embed(self, texts: Sequence[EncodedText]) -> tuple[Tensor, BlockCalls]:
        """Embed a batch of texts, padded on the right; return states [B, T, D] and the recorded calls of all blocks."""
        longest, pad = max(len(text.ids) for text in texts), self.stack.pad_id
        rows = [(*text.ids, *(pad,) * (longest - len(text.ids))) for text in texts]
        masks = [(1,) * len(text.ids) + (0,) * (longest - len(text.ids)) for text in texts]
        types_BT = None
        if self.stack.has_token_types and all(text.types is not None for text in texts):
            types = [(*(text.types or ()), *(0,) * (longest - len(text.ids))) for text in texts]
            types_BT = torch.tensor(types, device=self.device)
        ids_BT, mask_BT = (torch.tensor(rows_BT, device=self.device) for rows_BT in (rows, masks))
        return self.stack.embed(ids_BT, mask_BT, types_BT)

    def block_cost(self, n_tokens: int) -> Cost:
        """Return the cost of one block for a text of ``n_tokens`` tokens, averaged over the blocks."""
        return self.work.cost(n_tokens)

    def why_not(self, parts: Parts, n_rows: int) -> str | None:
        """Return why a method cannot be run on this model; None if it can. The batch size ``n_rows`` is ignored."""
        return why_not(parts, is_regression=self.is_regression)


def why_not(parts: Parts, *, is_regression: bool, is_fitted: bool = False) -> str | None:
    """Return why a method cannot be run on an encoder; None if it can.

    Args:
        parts: The method.
        is_regression: Whether the model predicts a number, not a label.
        is_fitted: Whether the method is trained on the train split first.
    """
    if type(parts.kv_policy) is not StateCopy:
        return f"an encoder keeps no keys and values, which KV policy {parts.kv_policy.name!r} needs"
    if type(parts.head) not in (LMHead, TrainedHead):
        return "its head reads a part of the vocabulary, and a classifier is read out as a whole"
    if is_regression and not parts.gate.scores_numbers:
        return "its gate needs labels to choose from, and the model gives a number (regression)"
    if is_fitted and type(parts.head) is not TrainedHead:
        return "it is fitted on the model's own head, and blocks of an encoder are read out by their off-ramps"
    return None


def _counted(stack: EncoderStack) -> TextWork:
    """Return the work of a block by text length, averaged over blocks, from FLOPs counted at three text lengths.

    A polynomial of degree 2 goes through the three counts.
    """
    flops = torch.tensor([_flops(stack, length) for length in _COUNTED], dtype=torch.float64) / stack.n_blocks
    powers = torch.tensor([[1.0, length, length**2] for length in _COUNTED], dtype=torch.float64)
    fixed, per_token, per_pair = torch.linalg.solve(powers, flops).tolist()
    shared = {id(parameter): parameter.numel() for module in stack.modules for parameter in module.parameters()}
    return TextWork(fixed, per_token, per_pair, sum(shared.values()) // len(stack.modules))


@torch.no_grad()
def _flops(stack: EncoderStack, n_tokens: int) -> int:
    ids_BT = torch.full((1, n_tokens), min(stack.pad_id + 1, stack.lm.config.vocab_size - 1), device=stack.lm.device)
    hidden, context = stack.embed(ids_BT, torch.ones_like(ids_BT))
    # MATH: the FLOP counter does not know the CPU's own attention kernel.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        for block in range(1, stack.n_blocks + 1):
            hidden = stack.block(block, hidden, context)
    return int(counter.get_total_flops())
