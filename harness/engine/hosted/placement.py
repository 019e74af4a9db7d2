"""Which device runs which blocks of a model too large for one: whole blocks, one stretch of them a device.

The first device is *home*: beside its blocks it has embeddings, encoder, final norm and LM head, and there gates and
read-outs are. accelerate's hooks take what a block is handed to the block's device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import Any

from torch import nn

from exitbench.harness.cells.cell import DeviceMap


def modules_on(lm: nn.Module, blocks: Sequence[nn.Module], devices: DeviceMap) -> dict[str, str]:
    """Return the device of every module and loose tensor of a model, by name, as transformers loads it.

    Args:
        lm: The model.
        blocks: Its decoder blocks, the first first.
        devices: Where they go; as many blocks as there are.
    """
    of_blocks = chain.from_iterable(repeat(device, count) for device, count in devices)
    where = {id(block): device for block, device in zip(blocks, of_blocks, strict=True)}
    found: dict[str, str] = {}

    def place(name: str, module: nn.Module) -> None:
        if id(module) in where or not any(id(inner) in where for inner in module.modules()):
            found[name] = where.get(id(module), devices[0][0])
            return
        prefix = f"{name}." if name else ""
        for own, _ in chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False)):
            found[prefix + own] = devices[0][0]
        for child, inner in module.named_children():
            place(prefix + child, inner)

    place("", lm)
    return found


def hand_over_whole_blocks(blocks: Sequence[Any]) -> None:
    """Leave accelerate's hooks on blocks and take those off what is inside: it is all on one device."""
    from accelerate.hooks import remove_hook_from_module

    for block in blocks:
        for inner in block.children():
            remove_hook_from_module(inner, recurse=True)


def shared_out(n_blocks: int, rest_bytes: int, room: Mapping[str, int]) -> DeviceMap:
    """Share blocks among devices by their room, the first with less because all else is there too.

    Args:
        n_blocks: Blocks, L.
        rest_bytes: What all else takes, on the first device.
        room: Bytes of each device.
    """
    first, *_ = room
    left = {device: max(0, size - (rest_bytes if device == first else 0)) for device, size in room.items()}
    total = sum(left.values()) or 1
    devices: list[tuple[str, int]] = []
    given = reached = 0
    for device, size in left.items():
        reached += size
        # Block 1 stays at home: what it makes for all blocks (position biases) is cut by rows there.
        up_to = max(round(n_blocks * reached / total), 1 if device == first else given)
        if up_to > given:
            devices.append((device, up_to - given))
            given = up_to
    return tuple(devices)
