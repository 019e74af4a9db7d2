"""NVML's counters, from a fake library: GPUs are found by UUID, energy is converted, and error codes become reasons."""

import ctypes
from typing import Any

import pytest

from exitbench.harness.running.energy.counters import CounterError, CounterSource
from exitbench.harness.running.energy.nvml import nvml_counters


class Library:
    """Fake of NVML that returns the energy counted by each GPU."""

    def __init__(self, spent_mj: dict[str, int]) -> None:
        self.spent_mj = spent_mj
        self.codes: dict[str, int] = {}

    def nvmlInit_v2(self) -> int:
        return self.codes.get("init", 0)

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        if uuid.decode() not in self.spent_mj:
            return 6  # not found
        handle._obj.value = 1 + list(self.spent_mj).index(uuid.decode())
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: ctypes.c_void_p, energy: Any) -> int:
        assert handle.value is not None
        energy._obj.value = list(self.spent_mj.values())[handle.value - 1]
        return self.codes.get("energy", 0)


def test_nvml_counters_follow_the_order_of_torch_gpus() -> None:
    library = Library({"GPU-a": 7, "GPU-b": 2**40, "GPU-of-others": 9})
    result = nvml_counters(["GPU-b", "GPU-a"], lambda name: library)
    assert [(counter.domain, counter.read_uj()) for counter in result.counters] == [
        ("gpu-0", 2**40 * 1000),
        ("gpu-1", 7_000),
    ]
    assert result.summary == "gpu-0, gpu-1"
    library.spent_mj["GPU-a"] = 10
    assert result.counters[1].read_uj() == 10_000
    library.codes["energy"] = 15  # lost
    with pytest.raises(CounterError, match="nvmlDeviceGetTotalEnergyConsumption ends with code 15"):
        result.counters[1].read_uj()


@pytest.mark.parametrize(
    ("codes", "uuids", "spent_mj", "says"),
    [
        ({"init": 9}, ["GPU-a"], 7, "nvmlInit_v2 ends with code 9"),
        ({"energy": 3}, ["GPU-a"], 7, "nvmlDeviceGetTotalEnergyConsumption ends with code 3"),
        ({}, ["GPU-a", "MIG-b"], 7, "nvmlDeviceGetHandleByUUID ends with code 6"),
        ({}, ["GPU-a"], 2**63, f"NVML says {2**63} mJ"),
    ],
)
def test_unreadable_gpu_counter_disables_all_with_a_reason(
    codes: dict[str, int], uuids: list[str], spent_mj: int, says: str
) -> None:
    library = Library({"GPU-a": spent_mj})
    library.codes = codes
    assert nvml_counters(uuids, lambda name: library) == CounterSource(
        (), f"counters of the GPU are not readable: {says}"
    )


def test_missing_or_old_nvml_library_is_reported() -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    assert nvml_counters(["GPU-a"], missing) == CounterSource(
        (), "no counters of the GPU: libnvidia-ml.so.1 is not there"
    )
    told = "counters of the GPU are not readable: libnvidia-ml.so.1 has no nvmlInit_v2"
    assert nvml_counters(["GPU-a"], lambda name: object()) == CounterSource((), told)
    told = "no counters of the GPU: torch does not say which one it is"
    assert nvml_counters([], lambda name: object()) == CounterSource((), told)
