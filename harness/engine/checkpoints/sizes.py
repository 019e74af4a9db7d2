"""What a checkpoint's weights are stored as, what they take in memory, and what a device has left of it.

Only headers of safetensors are read: nothing here loads a weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError

from exitbench.errors import UserError
from exitbench.harness.engine.checkpoints.files import TRAINED_BESIDE, weight_files
from exitbench.harness.engine.checkpoints.tensor_files import FORMATS, opened
from exitbench.harness.engine.products.int8 import computes_in
from exitbench.harness.reading.regular_files import is_file

_MEMINFO, _CGROUPS, _OWN_CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

_CGROUP_FILES: Final = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of versions 2 and 1: the limit, what is in use, and how memory.stat calls what of it could be given back."""


def stored_tensors(paths: Iterable[Path]) -> Iterator[tuple[str, int]]:
    """Number format, as safetensors spells it, and size of every tensor that files of weights hold.

    Raises:
        UserError: A file is damaged.
    """
    for path in paths:
        try:
            with opened(path) as file:
                slices = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118
                found = [(stored.get_dtype(), prod(stored.get_shape())) for stored in slices]
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path}: not a complete safetensors file ({error}).") from error
        yield from found


def numel_by_format(tensors: Iterable[tuple[str, int]]) -> Counter[str]:
    """How many numbers of each format some tensors hold."""
    counted: Counter[str] = Counter()
    for number_format, numel in tensors:
        counted[number_format] += numel
    return counted


def stored_dtype(folder: Path) -> str:
    """Return the number format that most numbers of a checkpoint's weights have; ``float32`` for ``float64``.

    Raises:
        UserError: Its weights cannot be read.
    """
    counted = numel_by_format(stored_tensors(weight_files(folder).paths))
    most = max(FORMATS, key=lambda spelled: counted[spelled])
    return "float32" if most == "F64" else str(FORMATS[most]).removeprefix("torch.")


def weights_bytes(folder: Path, dtype: torch.dtype) -> int:
    """Return what a checkpoint's weights take while they are read in a number format, trained heads included.

    Raises:
        UserError: They cannot be read.
    """
    heads = [folder / name for name in TRAINED_BESIDE if is_file(folder / name)]
    paths = (*weight_files(folder).paths, *heads)
    return sum(numel for _, numel in stored_tensors(paths)) * computes_in(dtype).itemsize


def require_room(folder: Path, dtype: torch.dtype, *devices: str) -> None:
    """Check that a checkpoint's weights fit into the memory that devices have left; nothing is loaded on ``meta``.

    Raises:
        UserError: They do not; has the numbers.
    """
    available = available_bytes(*devices)
    if available is not None and (needed := weights_bytes(folder, dtype)) > available:
        name = str(dtype).removeprefix("torch.")
        raise UserError(
            f"{folder}: does not fit: its weights take {gib(needed)} in {name}, and {gib(available)} are available on "
            f"{', '.join(devices)}. Nothing was loaded."
        )


def available_bytes(*devices: str) -> int | None:
    """Return the memory that devices have left, of this process's control group on a CPU; None where nobody says."""
    each = [_available_bytes(device) for device in devices]
    return None if None in each else sum(n_bytes for n_bytes in each if n_bytes is not None)


def _available_bytes(device: str) -> int | None:
    kind = torch.device(device).type
    if kind == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) if torch.cuda.is_available() else None
    return min(_left_on_cpu(), default=None) if kind == "cpu" else None


def gib(n_bytes: int) -> str:
    """Spell a size: ``12.3 GiB``."""
    return f"{n_bytes / 2**30:,.{1 if n_bytes >= 2**30 else 3}f} GiB"


def _left_on_cpu() -> Iterator[int]:
    if (available := _numbers(_MEMINFO).get("MemAvailable:")) is not None:
        yield available * 1024
    for group in _own_cgroups():
        for limit, current, inactive in _CGROUP_FILES:
            most, used = _number(group / limit), _number(group / current)
            if most is not None and used is not None:
                yield max(0, most - used + _numbers(group / "memory.stat").get(inactive, 0))


def _own_cgroups() -> Iterator[Path]:
    """Folders of the control groups of this process, and of those that they lie in: each may have a limit."""
    for line in _lines(_OWN_CGROUP):
        _, controllers, path = line.split(":", 2)
        root = _CGROUPS / "memory" if "memory" in controllers.split(",") else _CGROUPS
        group = root / path.lstrip("/")
        if not controllers or "memory" in controllers.split(","):
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """The number in a file; None where there is none, such as ``max``."""
    word = "".join(_lines(path)).strip()
    return int(word) if word.isdecimal() else None


def _numbers(path: Path) -> dict[str, int]:
    """The second word of every line, by the first."""
    words = (line.split() for line in _lines(path))
    return {found[0]: int(found[1]) for found in words if len(found) > 1 and found[1].isdecimal()}
