"""Find decoder blocks, LM head and encoder of a transformers model, and assign them to devices.

No family is named: the blocks are the decoder's only `ModuleList` of the length that its configuration states.

A model too large for one device is divided: each device has consecutive whole blocks. The first device is *home*: it
also has embeddings, encoder, final norm and LM head, and runs gates and read-outs.
accelerate's hooks move a block's arguments to its device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

from torch import nn

from exitbench.errors import UserError
from exitbench.harness.cells.cell import DeviceMap

DEPTHS = ("decoder_layers", "num_decoder_layers", "num_hidden_layers", "num_layers", "n_layer")
"""Names of the number of decoder blocks in configurations; the first present one counts."""
POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len", "max_sequence_length")
"""Names of the largest number of positions in configurations."""


@dataclass(frozen=True)
class Stack:
    """Parts of a transformers language model, as the hosted engine uses them.

    Attributes:
        lm: The whole model, with its LM head.
        decoder: Module that embeds tokens and calls the blocks.
        encoder: The encoder; None in a decoder-only model.
        blocks: Decoder blocks, in order.
        name: Name of the list of blocks within the decoder, such as `layers`.
        head: The LM head.
    """

    lm: Any
    decoder: Any
    encoder: Any | None
    blocks: tuple[nn.Module, ...]
    name: str
    head: Any

    @property
    def config(self) -> Any:
        """Configuration of the text decoder."""
        return self.lm.config.get_text_config(decoder=True)

    @property
    def max_positions(self) -> int | None:
        """Maximum number of tokens of prompt and answer together; None if unlimited, or for an encoder-decoder."""
        return None if self.encoder is not None else longest_text(self.config)

    @property
    def encoder_blocks(self) -> int:
        """Number of encoder blocks; 0 for a decoder-only model, 1 if the configuration does not say."""
        if self.encoder is None:
            return 0
        return first_int(self.encoder_config, ("encoder_layers", "num_layers", "num_hidden_layers")) or 1

    @property
    def encoder_config(self) -> Any:
        """Configuration of the encoder module, or of the whole model if the encoder has none."""
        return getattr(self.encoder, "config", self.lm.config)

    @property
    def decoder_config(self) -> Any:
        """Configuration of an encoder-decoder's decoder module, or of the whole model if the decoder has none."""
        return getattr(self.decoder, "config", self.lm.config)


def find_stack(lm: Any) -> Stack:
    """Return the parts of a transformers language model: decoder, blocks, LM head and encoder.

    Raises:
        UserError: The decoder blocks are not one list of different modules, or there is no LM head.
    """
    decoder, is_seq2seq = lm.get_decoder(), bool(lm.config.is_encoder_decoder)
    lists = {
        name: module
        for name, module in decoder.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) and not _is_within_list(decoder, name)
    }
    config = getattr(decoder, "config", lm.config) if is_seq2seq else lm.config.get_text_config(decoder=True)
    depth = first_int(config, DEPTHS)
    candidates = {name: blocks for name, blocks in lists.items() if len(lists) == 1 or len(blocks) == depth}
    family = lm.config.model_type
    if len(candidates) != 1:
        lengths = ", ".join(f"{name} ({len(blocks)})" for name, blocks in lists.items()) or "none"
        raise UserError(
            f"model_type {family!r}: its {depth} decoder blocks are not one list that can be found (lists of modules: "
            f"{lengths})."
        )
    ((name, blocks),) = candidates.items()
    if len({id(block) for block in blocks}) != len(blocks):
        raise UserError(f"model_type {family!r}: its blocks share one module, which is called several times.")
    head = lm.get_output_embeddings()
    if head is None or getattr(head, "weight", None) is None:
        raise UserError(f"model_type {family!r}: no LM head is found (get_output_embeddings).")
    encoder = lm.get_encoder() if is_seq2seq else None
    return Stack(lm, decoder, encoder, tuple(blocks), name, head)


def _is_within_list(decoder: nn.Module, name: str) -> bool:
    parents = [name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)]
    return any(isinstance(decoder.get_submodule(parent), nn.ModuleList) for parent in parents)


def first_int(config: Any, names: Sequence[str]) -> int | None:
    """Return the first of a configuration's values with these names that is an integer; None if there is none."""
    return next((value for name in names if isinstance(value := getattr(config, name, None), int)), None)


def longest_text(config: Any) -> int | None:
    """Return the maximum number of tokens (positions) that a model's configuration states; None if it states none."""
    lengths = (getattr(config, key, None) for key in POSITIONS)
    return next((value for value in lengths if isinstance(value, int) and value > 0), None)


def head_shape(config: Any, width: int) -> tuple[int, int, int]:
    """Return a decoder's number of query heads, number of key/value heads, and head size; zeros if it has no heads.

    Args:
        config: Configuration of the decoder.
        width: Width of the residual stream; it is divided among the query heads if no head size is stated.
    """
    heads = first_int(config, ("decoder_attention_heads", "num_attention_heads", "num_heads", "n_head"))
    if not heads:
        return 0, 0, 0
    groups, size = first_int(config, ("num_key_value_heads",)), first_int(config, ("head_dim", "d_kv"))
    return heads, groups or heads, size or width // heads


def modules_on(lm: nn.Module, blocks: Sequence[nn.Module], devices: DeviceMap) -> dict[str, str]:
    """Return a `device_map` for transformers: the device of each part of the model, by name.

    Parts are the blocks, modules that contain no block, and tensors that belong to neither.

    Args:
        lm: The model.
        blocks: Its decoder blocks, in order.
        devices: Number of blocks on each device; they add up to ``len(blocks)``.
    """
    of_blocks = chain.from_iterable(repeat(device, count) for device, count in devices)
    device_of = {id(block): device for block, device in zip(blocks, of_blocks, strict=True)}
    placement: dict[str, str] = {}

    def place(name: str, module: nn.Module) -> None:
        if id(module) in device_of or not any(id(inner) in device_of for inner in module.modules()):
            placement[name] = device_of.get(id(module), devices[0][0])
            return
        prefix = f"{name}." if name else ""
        for tensor_name, _ in chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False)):
            placement[prefix + tensor_name] = devices[0][0]
        for child, inner in module.named_children():
            place(prefix + child, inner)

    place("", lm)
    return placement


def remove_inner_hooks(blocks: Sequence[Any]) -> None:
    """Remove accelerate's hooks from the modules inside each block; the block's own hook stays.

    Inner hooks are not needed, since a block is on one device as a whole.
    """
    from accelerate.hooks import remove_hook_from_module

    for block in blocks:
        for inner in block.children():
            remove_hook_from_module(inner, recurse=True)


def assign_blocks(n_blocks: int, rest_bytes: int, room: Mapping[str, int]) -> DeviceMap:
    """Return the number of blocks on each device, by memory; the first device also holds everything but the blocks.

    Args:
        n_blocks: Number of blocks, L.
        rest_bytes: Size in bytes of everything but the blocks.
        room: Bytes available on each device, in the order in which blocks are assigned.
    """
    first, *_ = room
    free = {device: max(0, size - (rest_bytes if device == first else 0)) for device, size in room.items()}
    total = sum(free.values()) or 1
    devices: list[tuple[str, int]] = []
    assigned = reached = 0
    for device, size in free.items():
        reached += size
        # Block 1 stays at home: rows of its shared outputs (position biases) are selected there.
        up_to = max(round(n_blocks * reached / total), 1 if device == first else assigned)
        if up_to > assigned:
            devices.append((device, up_to - assigned))
            assigned = up_to
    return tuple(devices)
