"""NVML energy counters of GPUs since Volta, from the driver's library: millijoules since the driver was loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from exitbench.harness.running.energy.counters import Counter, CounterError, CounterSource
from exitbench.results.files.values import INT64

_LIBRARY: Final = "libnvidia-ml.so.1"
_MOST_WATTS: Final = 3_000
"""Upper bound of a GPU's plausible power, in watts."""


def nvml_counters(uuids: Sequence[str], load: Callable[[str], Any] = ctypes.CDLL) -> CounterSource:
    """Return the energy counters of the given GPUs, or the reason why they cannot be read.

    Args:
        uuids: Ids of the GPUs, in torch's order, as ``GPU-...``.
        load: Opens a library by its name.
    """
    if not uuids:
        return CounterSource((), "no counters of the GPU: torch does not say which one it is")
    try:
        library = load(_LIBRARY)
    except OSError:
        return CounterSource((), f"no counters of the GPU: {_LIBRARY} is not there")
    try:
        _ask(library, "nvmlInit_v2")
        handles = [_handle(library, uuid) for uuid in uuids]
        counters = tuple(
            Counter(f"gpu-{index}", True, None, _MOST_WATTS, partial(_spent_uj, library, handle))
            for index, handle in enumerate(handles)
        )
        for counter in counters:
            counter.read_uj()
    except CounterError as error:
        return CounterSource((), f"counters of the GPU are not readable: {error}")
    return CounterSource(counters, ", ".join(counter.domain for counter in counters))


def _handle(library: Any, uuid: str) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _ask(library, "nvmlDeviceGetHandleByUUID", uuid.encode("ascii"), ctypes.byref(handle))
    return handle


def _spent_uj(library: Any, handle: ctypes.c_void_p) -> int:
    spent_mj = ctypes.c_ulonglong()
    _ask(library, "nvmlDeviceGetTotalEnergyConsumption", handle, ctypes.byref(spent_mj))
    if spent_mj.value > INT64 // 1000:
        raise CounterError(f"NVML says {spent_mj.value} mJ")
    return spent_mj.value * 1000


def _ask(library: Any, name: str, *arguments: Any) -> None:
    function = getattr(library, name, None)
    if function is None:
        raise CounterError(f"{_LIBRARY} has no {name}")
    if (code := function(*arguments)) != 0:
        raise CounterError(f"{name} ends with code {code}")
