"""Parameters of a model by part, and what a block costs as far as its configuration tells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from exitbench.harness.engine.hosted.stack import Stack, head_shape
from exitbench.harness.engine.model.cost import TokenPlace
from exitbench.harness.engine.model.exit_heads import ExitHeads, Headed
from exitbench.methods.base import Cost


@dataclass(frozen=True)
class Parameters:
    """How many parameters each part has; what two parts share counts for the first of them.

    Attributes:
        embedding: Of tokens.
        blocks: Decoder blocks, all together.
        encoder: The encoder, its embedding of tokens apart where that is the decoder's.
        head: The LM head; 0 where it is the embedding.
        other: Norms after the last block, positions and the like.
    """

    embedding: int
    blocks: int
    encoder: int
    head: int
    other: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.blocks + self.encoder + self.head + self.other

    @property
    def is_tied(self) -> bool:
        """Whether the LM head is the embedding."""
        return self.head == 0


def count_parameters(stack: Stack) -> Parameters:
    """Count the parameters of a model of transformers, which may be on ``meta``."""
    seen: set[int] = set()

    def new(tensors: Iterable[Tensor]) -> int:
        fresh = {id(tensor): tensor for tensor in tensors if id(tensor) not in seen}
        seen.update(fresh)
        return sum(tensor.numel() for tensor in fresh.values())

    embedding = new(stack.lm.get_input_embeddings().parameters())
    blocks = new(tensor for block in stack.blocks for tensor in block.parameters())
    encoder = 0 if stack.encoder is None else new(stack.encoder.parameters())
    return Parameters(embedding, blocks, encoder, new(stack.head.parameters()), new(stack.lm.parameters()))


class Sketch(Headed):
    """A model as its configuration tells it: what costs ask for, where no engine has counted.

    All weights of a block count as read, so that experts which a token does not go through count too.

    Attributes:
        stack: Parts of the model.
        d_model: Width of what the LM head reads, D.
        heads: Of queries, by the configuration; 0 where it has none.
        kv_heads: Of keys and values.
        head_size: Their width.
        kv_width: Width of one block's keys.
    """

    def __init__(self, stack: Stack, exit_heads: ExitHeads | None) -> None:
        self.stack, self.exit_heads = stack, exit_heads
        self.d_model = int(stack.head.weight.shape[1])
        self.heads, self.kv_heads, self.head_size = head_shape(
            stack.config if stack.encoder is None else stack.decoder_config, self.d_model
        )
        self._inner, self.kv_width = self.heads * self.head_size, self.kv_heads * self.head_size
        self._weights = sum(map(_multiplied, stack.blocks)) / len(stack.blocks)

    @property
    def n_blocks(self) -> int:
        """Decoder blocks, L."""
        return len(self.stack.blocks)

    @property
    def max_positions(self) -> int | None:
        """Tokens that prompt and answer may have together; None where positions have no end, or of their own each."""
        return self.stack.max_positions

    @property
    def lm_head(self) -> Any:
        """The LM head, a module of transformers'."""
        return self.stack.head

    def block_cost(self, place: TokenPlace) -> Cost:
        """Work of a mean decoder block for one token of one row."""
        keys = place.context + (0 if self.stack.encoder is None else place.source)
        flops = 2 * self._weights + 4 * keys * self._inner
        return Cost(matmul_flops=flops, read_numel=self._weights + 2 * keys * self.kv_width)

    def logits(self, hidden: Tensor) -> Tensor:
        """Nothing can be read out."""
        raise NotImplementedError("a sketch has no weights")

    def final_normed(self, hidden: Tensor) -> Tensor:
        """Nothing can be normed."""
        raise NotImplementedError("a sketch has no weights")

    def logits_of(self, hidden_AD: Tensor, weights_AKD: Tensor) -> Tensor:
        """Nothing can be read out."""
        raise NotImplementedError("a sketch has no weights")


def _multiplied(block: nn.Module) -> int:
    """Weights of a block's products: matrices, but not tables that are looked up."""
    tables = {id(module.weight) for module in block.modules() if isinstance(module, nn.Embedding)}
    return sum(tensor.numel() for tensor in block.parameters() if tensor.dim() > 1 and id(tensor) not in tables)
