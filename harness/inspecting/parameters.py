"""Parameters of a model by part, and what a block costs as far as its configuration tells."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor, nn

from exitbench.harness.engine.checkpoints.files import weight_files
from exitbench.harness.engine.checkpoints.sizes import numel_by_format, stored_tensors
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


_PICKLES: Final = ("pytorch_model.bin", "pytorch_model.bin.index.json")
"""What transformers would open, and this project never does."""


@dataclass(frozen=True)
class Stored:
    """The files of a model's own weights.

    Attributes:
        files: Their names.
        size_bytes: Of all files together.
        n_tensors: Tensors in them.
        numel_by_format: Numbers of each format, as safetensors spells it.
    """

    files: tuple[str, ...]
    size_bytes: int
    n_tensors: int
    numel_by_format: Mapping[str, int]

    @property
    def numel(self) -> int:
        """Numbers of any format."""
        return sum(self.numel_by_format.values())


def read_stored(folder: Path) -> Stored:
    """Read the headers of a checkpoint's weights.

    Raises:
        UserError: There are none that are read, or a file is damaged.
    """
    paths = weight_files(folder).paths
    tensors = list(stored_tensors(paths))
    size_bytes = sum(path.stat().st_size for path in paths)
    numel = dict(numel_by_format(tensors).most_common())
    return Stored(tuple(path.name for path in paths), size_bytes, len(tensors), numel)


def conversion(folder: Path, auto_class: str, *, has_tokenizer: bool) -> str | None:
    """Return the command that converts a folder's pickle; None where it has none that transformers opens.

    Args:
        folder: The checkpoint.
        auto_class: Of transformers, that reads such models.
        has_tokenizer: Whether there is one to go with it.
    """
    if not any((folder / name).is_file() for name in _PICKLES):
        return None
    source, target = json.dumps(str(folder)), json.dumps(f"{folder}-safetensors")
    saved = [auto_class, "AutoTokenizer"] if has_tokenizer else [auto_class]
    steps = (f"t.{cls}.from_pretrained({source}).save_pretrained({target})" for cls in saved)
    return f"python -c {shlex.quote('; '.join(['import transformers as t', *steps]))}"
