"""Placement of a model's blocks on several GPUs: the key ``device_map`` of ``[models.NAME]`` in a suite."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from exitbench.errors import UserError
from exitbench.harness.cells.cell import DeviceMap
from exitbench.harness.reading.toml import MAX_COUNT, TomlTable

RequestedMap = DeviceMap | Literal["auto"]

_DEVICE = re.compile(r"cpu|cuda:[0-9]{1,3}")
_ALLOWED = '"auto", or a table such as { "cuda:0" = 12, "cuda:1" = 20 }: how many decoder blocks each device has'
_SHARE = 0.9
"""Largest share of a GPU's memory that an automatic map fills with weights; keys, values, activations use the rest."""


def read_device_map(table: TomlTable) -> RequestedMap | None:
    """Return the ``device_map`` that a model's table in a suite requests; None if the table has no such key.

    It is ``auto``, or pairs of a device and its number of decoder blocks.

    Raises:
        UserError: ``device_map`` is neither ``auto`` nor a table from devices to numbers of blocks.
    """
    requested = table.values.get("device_map")
    if requested is None or requested == "auto":
        return requested
    if not isinstance(requested, dict) or not requested:
        raise table.error("device_map", f"allowed: {_ALLOWED}.")
    for device, blocks in requested.items():
        is_count = isinstance(blocks, int) and not isinstance(blocks, bool) and 0 < blocks <= MAX_COUNT
        if not (_DEVICE.fullmatch(device) and is_count):
            raise table.error("device_map", f"{device!r} = {blocks!r}; allowed: {_ALLOWED}.")
    return tuple(requested.items())


def resolve_device_map(
    location: str, requested: RequestedMap, device: str, folder: Path, dtype: str, n_blocks: int
) -> DeviceMap:
    """Return the number of blocks on each device: as requested, or for ``auto`` in proportion to the GPUs' memory.

    Args:
        location: File, line and key of the model, for messages.
        requested: ``device_map`` of the suite: ``auto``, or pairs of a device and its number of blocks.
        device: Device of the whole suite, ``cpu`` or ``cuda``.
        folder: Folder of the checkpoint.
        dtype: Number format of the loaded weights, such as ``bfloat16``.
        n_blocks: Number of decoder blocks, L.

    Raises:
        UserError: The map does not fit the model, the suite's device or this machine.
    """
    if requested == "auto":
        return _shared_out(location, device, folder, dtype)
    if other_devices := [name for name, _ in requested if name.partition(":")[0] != device]:
        raise UserError(
            f"{location}: device_map names {other_devices[0]}, and the suite's device is {device}; allowed: its own."
        )
    if (mapped := sum(blocks for _, blocks in requested)) != n_blocks:
        raise UserError(f"{location}: device_map has {mapped} blocks; allowed: {n_blocks}, those of the model.")
    return requested


def require_gpus(location: str, device_map: DeviceMap, count: int) -> None:
    """Check that this machine has every GPU that a device map names.

    Args:
        location: File, line and key of the model, for messages.
        device_map: Number of blocks on each device.
        count: Number of GPUs that torch sees.

    Raises:
        UserError: A GPU is missing.
    """
    if missing := [name for name in dict(device_map) if name != "cpu" and gpu_index(name) >= count]:
        raise UserError(f"{location}: device_map names {missing[0]}; torch sees {count} GPUs here, from cuda:0 on.")


def gpu_index(device: str) -> int:
    """Return the index N of the device ``cuda:N``."""
    return int(device.partition(":")[2])


def describe_map(device_map: DeviceMap) -> str:
    """Return a device map as text: ``blocks 1-12 on cuda:0, 13-32 on cuda:1``, and the device of all other modules."""
    shares, first = [], 1
    for device, count in device_map:
        shares.append(f"{first}-{first + count - 1} on {device}")
        first += count
    return f"blocks {', '.join(shares)}; embeddings, final norm, LM head and gates on {device_map[0][0]}"


def _shared_out(location: str, device: str, folder: Path, dtype: str) -> DeviceMap:
    import torch

    from exitbench.harness.engine.checkpoints.hosted_loading import skeleton
    from exitbench.harness.engine.checkpoints.loading import read_config
    from exitbench.harness.engine.hosted.stack import assign_blocks, find_stack

    count = torch.cuda.device_count() if device == "cuda" else 0
    if not count:
        raise UserError(
            f'{location}: device_map = "auto" shares blocks among GPUs; the suite\'s device is {device}, and torch '
            f"sees {torch.cuda.device_count()} GPUs here."
        )
    # Total memory, not what is free now, so that the same request gives the same map tomorrow.
    room = {
        f"cuda:{index}": int(_SHARE * torch.cuda.get_device_properties(index).total_memory) for index in range(count)
    }
    lm = skeleton(folder, read_config(folder))
    blocks = find_stack(lm).blocks
    numel = sum(weight.numel() for weight in lm.parameters())
    other_numel = numel - sum(weight.numel() for block in blocks for weight in block.parameters())
    return assign_blocks(len(blocks), other_numel * getattr(torch, dtype).itemsize, room)
