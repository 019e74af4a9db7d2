"""Number of parameters of a model by part, and block costs derived from its configuration."""

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
from exitbench.harness.engine.encoders.model import OffRamps
from exitbench.harness.engine.hosted.stack import Stack, head_shape
from exitbench.harness.engine.model.cost import TokenPlace
from exitbench.harness.engine.model.exit_heads import ExitHeads, Headed
from exitbench.methods.base import Cost


@dataclass(frozen=True)
class Parameters:
    """Number of parameters per part; shared parameters count only for the first part.

    Attributes:
        embedding: Token embedding.
        blocks: All decoder blocks.
        encoder: The encoder, without a token embedding shared with the decoder.
        head: The LM head; 0 if it is tied to the embedding.
        other: Final norms, position embeddings and the like.
    """

    embedding: int
    blocks: int
    encoder: int
    head: int
    other: int

    @property
    def total(self) -> int:
        """Total number of parameters."""
        return self.embedding + self.blocks + self.encoder + self.head + self.other

    @property
    def is_tied(self) -> bool:
        """Whether the LM head shares the embedding's weights."""
        return self.head == 0


@dataclass(frozen=True)
class TrainedHeads:
    """Trained exit heads of a decoder, or off-ramps of a classifier.

    Attributes:
        kind: Kind of head.
        blocks: Blocks with a head.
        numel: Total number of parameters.
    """

    kind: str
    blocks: tuple[int, ...]
    numel: int

    @classmethod
    def of(cls, heads: ExitHeads | OffRamps | None) -> TrainedHeads | None:
        """Return the description of some heads; None if there are none."""
        if heads is None:
            return None
        return cls(heads.kind, heads.blocks, sum(tensor.numel() for tensor in heads.tensors.values()))


def count_parameters(stack: Stack) -> Parameters:
    """Return the number of parameters by part of a transformers model, which may be on the device ``meta``."""
    counted_ids: set[int] = set()

    def new(tensors: Iterable[Tensor]) -> int:
        fresh = {id(tensor): tensor for tensor in tensors if id(tensor) not in counted_ids}
        counted_ids.update(fresh)
        return sum(tensor.numel() for tensor in fresh.values())

    embedding = new(stack.lm.get_input_embeddings().parameters())
    blocks = new(tensor for block in stack.blocks for tensor in block.parameters())
    encoder = 0 if stack.encoder is None else new(stack.encoder.parameters())
    return Parameters(embedding, blocks, encoder, new(stack.head.parameters()), new(stack.lm.parameters()))


class Sketch(Headed):
    """Parts of a transformers model, from which sizes and costs are computed if no engine counts them.

    No weights are needed. All weights of a block count as read, including experts to which a token is not routed.

    Attributes:
        stack: Parts of the model.
        d_model: Input width of the LM head, D.
        heads: Number of query heads by the configuration; 0 if the configuration has none.
        kv_heads: Number of key/value heads.
        head_size: Width of a head.
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
        """Number of decoder blocks, L."""
        return len(self.stack.blocks)

    @property
    def max_positions(self) -> int | None:
        """Maximum tokens of prompt and answer together; None if unlimited, or if each has its own positions."""
        return self.stack.max_positions

    @property
    def lm_head(self) -> Any:
        """The LM head, a transformers module."""
        return self.stack.head

    def block_cost(self, place: TokenPlace) -> Cost:
        """Return the cost of an average block for one token with the context and source lengths of ``place``."""
        keys = place.context + (0 if self.stack.encoder is None else place.source)
        flops = 2 * self._weights + 4 * keys * self._inner
        return Cost(matmul_flops=flops, read_numel=self._weights + 2 * keys * self.kv_width)

    def _no_weights(self, *_: Any, **__: Any) -> Tensor:
        raise NotImplementedError("a sketch has no weights")

    logits = final_normed = logits_of_normed = logits_of = _no_weights


def _multiplied(block: nn.Module) -> int:
    """Return the number of a block's weights that one token is multiplied by; embedding tables are only looked up."""
    tables = {id(module.weight) for module in block.modules() if isinstance(module, nn.Embedding)}
    return sum(tensor.numel() for tensor in block.parameters() if tensor.dim() > 1 and id(tensor) not in tables)


_PICKLES: Final = ("pytorch_model.bin", "pytorch_model.bin.index.json")
"""Names of pickle files, which transformers opens and this project never opens."""


@dataclass(frozen=True)
class StoredWeights:
    """Stored weight files of a model.

    Attributes:
        files: File names.
        size_bytes: Total size of the files.
        n_tensors: Number of tensors.
        numel_by_format: Number of elements per safetensors dtype.
    """

    files: tuple[str, ...]
    size_bytes: int
    n_tensors: int
    numel_by_format: Mapping[str, int]

    @property
    def numel(self) -> int:
        """Total number of elements."""
        return sum(self.numel_by_format.values())


def read_stored(folder: Path) -> StoredWeights:
    """Read the headers of a checkpoint's weight files, and return files, sizes and number formats.

    Raises:
        UserError: There are no supported weight files, or a file is damaged.
    """
    paths = weight_files(folder).paths
    tensors = list(stored_tensors(paths))
    size_bytes = sum(path.stat().st_size for path in paths)
    numel = dict(numel_by_format(tensors).most_common())
    return StoredWeights(tuple(path.name for path in paths), size_bytes, len(tensors), numel)


def conversion(folder: Path, auto_class: str, *, has_tokenizer: bool) -> str | None:
    """Return the command that converts a folder's pickle to safetensors; None if the folder has no pickle.

    Args:
        folder: Folder of the checkpoint.
        auto_class: The transformers auto class for the model.
        has_tokenizer: Whether the command also saves a tokenizer.
    """
    if not any((folder / name).is_file() for name in _PICKLES):
        return None
    source, target = json.dumps(str(folder)), json.dumps(f"{folder}-safetensors")
    saved = [auto_class, "AutoTokenizer"] if has_tokenizer else [auto_class]
    steps = (f"t.{cls}.from_pretrained({source}).save_pretrained({target})" for cls in saved)
    return f"python -c {shlex.quote('; '.join(['import transformers as t', *steps]))}"
