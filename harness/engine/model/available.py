"""Free memory of a device, and total memory of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MEMINFO, _CGROUPS, _OWN_CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

_CGROUP_FILES: Final = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""For cgroup versions 2 and 1: files with the limit and the usage, and memory.stat's key for reclaimable memory."""


def available_bytes(*devices: str) -> int | None:
    """Return the total free memory in bytes of devices such as ``cpu`` and ``cuda:0``; None if that of any is unknown.

    On a CPU, it is at most what the limits of this process's control groups (cgroups) leave.
    """
    each = [_available_bytes(device) for device in devices]
    return None if None in each else sum(n_bytes for n_bytes in each if n_bytes is not None)


def machine_bytes() -> int | None:
    """Return the largest number of bytes that this process could ever use on the CPU; None if unknown.

    It is the smallest of the machine's total memory and the limits of this process's control groups (cgroups).
    """
    return min(_most_on_cpu(), default=None)


def _available_bytes(device: str) -> int | None:
    kind = device.partition(":")[0]
    if kind == "cuda":
        import torch  # takes a second, and the command line asks about the CPU too

        return int(torch.cuda.mem_get_info(device)[0]) if torch.cuda.is_available() else None
    return min(_left_on_cpu(), default=None) if kind == "cpu" else None


def _left_on_cpu() -> Iterator[int]:
    if (available := _numbers(_MEMINFO).get("MemAvailable:")) is not None:
        yield available * 1024
    for group in _own_cgroups():
        for limit, current, inactive in _CGROUP_FILES:
            most, used = _number(group / limit), _number(group / current)
            if most is not None and used is not None:
                yield max(0, most - used + _numbers(group / "memory.stat").get(inactive, 0))


def _most_on_cpu() -> Iterator[int]:
    if (total := _numbers(_MEMINFO).get("MemTotal:")) is not None:
        yield total * 1024
    limits = (_number(group / limit) for group in _own_cgroups() for limit, *_ in _CGROUP_FILES)
    yield from (most for most in limits if most is not None)


def _own_cgroups() -> Iterator[Path]:
    """Yield the folders of this process's control groups and of all their parents, each of which may limit memory."""
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
    """Return the integer in a file; None if the file cannot be read or has other content, such as ``max``."""
    word = "".join(_lines(path)).strip()
    return int(word) if word.isdecimal() else None


def _numbers(path: Path) -> dict[str, int]:
    """Parse a file of lines such as ``MemTotal: 123 kB``; return the integer of each line, by the line's first word."""
    words = (line.split() for line in _lines(path))
    return {pair[0]: int(pair[1]) for pair in words if len(pair) > 1 and pair[1].isdecimal()}
