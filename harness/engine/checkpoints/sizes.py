"""Number formats of a checkpoint's stored weights, and their size in memory.

Only safetensors headers are read: nothing here loads a weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.files import TRAINED_BESIDE, weight_files
from exitbench.harness.engine.checkpoints.tensor_files import FORMATS, open_safetensors
from exitbench.harness.engine.model.available import available_bytes
from exitbench.harness.engine.products.int8 import computes_in
from exitbench.harness.reading.regular_files import is_file


def stored_tensors(paths: Iterable[Path]) -> Iterator[tuple[str, int]]:
    """Yield the number format (safetensors' name, such as ``BF16``) and number of elements of each tensor in the files.

    Raises:
        UserError: A file is damaged.
    """
    for path in paths:
        try:
            with open_safetensors(path) as file:
                slices = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118
                sizes = [(stored.get_dtype(), prod(stored.get_shape())) for stored in slices]
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path}: not a complete safetensors file ({error}).") from error
        yield from sizes


def numel_by_format(tensors: Iterable[tuple[str, int]]) -> Counter[str]:
    """Return the total number of elements of each number format, from (format, number of elements) of each tensor."""
    counted: Counter[str] = Counter()
    for number_format, numel in tensors:
        counted[number_format] += numel
    return counted


def stored_dtype(folder: Path) -> str:
    """Return torch's name of the number format that most of a checkpoint's weights have; float32 instead of float64.

    Raises:
        UserError: The weights cannot be read.
    """
    counted = numel_by_format(stored_tensors(weight_files(folder).paths))
    most = max(FORMATS, key=lambda name: counted[name])
    return "float32" if most == "F64" else str(FORMATS[most]).removeprefix("torch.")


def weights_bytes(folder: Path, dtype: torch.dtype) -> int:
    """Return the bytes of memory that a checkpoint's weights, trained heads included, take in a number format.

    Raises:
        UserError: The weights cannot be read.
    """
    heads = [folder / name for name in TRAINED_BESIDE if is_file(folder / name)]
    paths = (*weight_files(folder).paths, *heads)
    return sum(numel for _, numel in stored_tensors(paths)) * computes_in(dtype).itemsize


def require_room(folder: Path, dtype: torch.dtype, *devices: str) -> None:
    """Check that a checkpoint's weights fit into the devices' free memory; on ``meta`` nothing is loaded.

    Raises:
        UserError: The weights do not fit; the message gives both sizes.
    """
    available = available_bytes(*devices)
    if available is not None and (needed := weights_bytes(folder, dtype)) > available:
        name = str(dtype).removeprefix("torch.")
        raise UserError(
            f"{folder}: does not fit: its weights take {gib(needed)} in {name}, and {gib(available)} are available on "
            f"{', '.join(devices)}. Nothing was loaded."
        )


def gib(n_bytes: int) -> str:
    """Return a number of bytes as text, such as ``12.3 GiB``."""
    return f"{n_bytes / 2**30:,.{1 if n_bytes >= 2**30 else 3}f} GiB"
