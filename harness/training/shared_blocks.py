"""Decoder blocks that share their weights for the first steps, as a Universal Transformer's do.

What one block learns, such as to find a fact again, all later ones can do with what it found: many hops come of one
(Dehghani et al. 2019; Saunshi et al. 2024 find the same of stacked blocks). Apart, each block learns it anew.
"""

import torch
from torch import Tensor, nn

from exitbench.errors import UserError
from exitbench.harness.training.readable import decoder_blocks


class SharedBlocks:
    """Blocks 2..L of a decoder as one: the gradients of all go into block 2, and its weights into the others.

    Block 1 stays apart: it reads embeddings, and a T5's has the table of relative positions.
    """

    def __init__(self, model: nn.Module) -> None:
        blocks = [list(block.parameters()) for block in decoder_blocks(model)[1:]]
        if len({tuple(p.shape for p in block) for block in blocks}) != 1:
            raise UserError("shared_steps: the decoder's blocks from the second on have different shapes.")
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
