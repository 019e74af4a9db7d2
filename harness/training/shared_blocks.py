"""Blocks that share their weights for the first steps, as a Universal Transformer's do.

What one block learns, such as to find a fact again, all later ones can do with what it found: many hops come of one
(Dehghani et al. 2019; Saunshi et al. 2024 find the same of stacked blocks). Apart, each block learns it anew.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from exitbench.errors import UserError
from exitbench.harness.engine.encoders.families import FAMILIES
from exitbench.harness.engine.encoders.stack import find_encoder_stack
from exitbench.harness.training.readable import decoder_blocks


class SharedBlocks:
    """Blocks 2..L as one: the gradients of all go into block 2, and its weights into the others.

    Block 1 stays apart: it reads embeddings, and a T5's has the table of relative positions.
    """

    def __init__(self, model: Any) -> None:
        blocks = [list(block.parameters()) for block in _blocks(model)[1:]]
        if len({tuple(p.shape for p in block) for block in blocks}) != 1:
            raise UserError("shared_steps: the blocks from the second on have different shapes.")
        self.groups: list[tuple[nn.Parameter, ...]] = list(zip(*blocks, strict=True))

    @torch.no_grad()
    def gather_gradients(self) -> None:
        """Sum up the blocks' gradients in block 2; the others are left without, so that no optimiser moves them."""
        for first, *others in self.groups:
            found: list[Tensor] = [p.grad for p in (first, *others) if p.grad is not None]
            first.grad = torch.stack(found).sum(0) if found else None
            for other in others:
                other.grad = None

    @torch.no_grad()
    def spread_weights(self) -> None:
        """Give all blocks the weights of block 2."""
        for first, *others in self.groups:
            for other in others:
                other.copy_(first)


def _blocks(model: Any) -> Sequence[nn.Module]:
    """Blocks of a decoder, or of an encoder without one."""
    if model.config.model_type in FAMILIES:
        return find_encoder_stack(model).modules
    return list(decoder_blocks(model))
