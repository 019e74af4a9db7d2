"""GPU and CPU telemetry around each timing round: clock, power, temperature, throttling, load.

Telemetry is read between timed decodes, never during a decode. A value that the hardware does not provide is None.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from exitbench.harness.running.environment import available_cores

Moment = Literal["start", "end"]

_CPU_INFO = Path("/proc/cpuinfo")
_THERMAL = Path("/sys/class/thermal")
_GPU_QUERY = ("clocks.sm", "power.draw", "temperature.gpu", "clocks_throttle_reasons.active")
_WAIT_S = 10.0

# NVML's reasons for a clock below the requested one, by bit; an idle GPU is not throttled.
_REASONS = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}


@dataclass(frozen=True)
class DeviceReading:
    """One reading of a device's telemetry; a row of the spool's ``device`` table.

    Attributes:
        round: Round of the timing, from 0.
        moment: ``start`` or ``end`` of the round.
        clock_mhz: Mean clock of the CPU's cores, or clock of the GPU's multiprocessors.
        throttle: Reasons for a reduced clock, separated by commas, or ``none``.
        load_average: Mean number of running or ready processes over the machine's last minute. None if this process may
            use only some of the cores.
    """

    round: int
    moment: Moment
    device: str
    clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    throttle: str | None
    load_average: float | None


def read_device(device: str, round_: int, moment: Moment) -> DeviceReading:
    """Return the current telemetry of a device.

    Args:
        device: ``cpu`` or ``cuda``, as torch names it.
        round_: Round of the timing, from 0.
        moment: ``start`` if the reading precedes the round's decodes, ``end`` if it follows them.
    """
    clock_mhz, power_w, temperature_c, throttle = _gpu() if device.startswith("cuda") else _cpu()
    return DeviceReading(round_, moment, device, clock_mhz, power_w, temperature_c, throttle, _load())


_Values = tuple[float | None, float | None, float | None, str | None]


def _cpu() -> _Values:
    return cpu_clock_mhz(_text(_CPU_INFO)), None, hottest_c(_THERMAL), None


def cpu_clock_mhz(cpu_info: str) -> float | None:
    """Return the mean clock of the cores from the text of /proc/cpuinfo; None if the text has no clocks."""
    clocks = [float(clock) for clock in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", cpu_info, re.MULTILINE)]
    return sum(clocks) / len(clocks) if clocks else None


def hottest_c(folder: Path) -> float | None:
    """Return the highest temperature of the thermal zones below `folder` in degrees Celsius; None without zones."""
    texts = [_text(zone).strip() for zone in folder.glob("thermal_zone*/temp")]
    return max((int(text) / 1000 for text in texts if text.lstrip("-").isdigit()), default=None)


def _gpu() -> _Values:
    command = ["nvidia-smi", f"--query-gpu={','.join(_GPU_QUERY)}", "--format=csv,noheader,nounits", *_gpu_id()]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_WAIT_S)
    except (OSError, subprocess.SubprocessError):
        return None, None, None, None
    return gpu_values(completed.stdout)


def gpu_values(answer: str) -> _Values:
    """Return (clock in MHz, power in W, temperature in degrees Celsius, throttling) from a line that nvidia-smi prints.

    The line has one field per entry of `_GPU_QUERY`. A value that the GPU does not report is None; if the line is
    malformed, all are None.
    """
    fields = [field.strip() for field in answer.partition("\n")[0].split(",")]
    if len(fields) != len(_GPU_QUERY):
        return None, None, None, None
    clock_mhz, power_w, temperature_c = (_number(field) for field in fields[:3])
    return clock_mhz, power_w, temperature_c, _reasons(fields[3])


def _gpu_id() -> Sequence[str]:
    """Return the nvidia-smi option that selects torch's current GPU, since nvidia-smi ignores CUDA_VISIBLE_DEVICES."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    return [] if uuid is None else [f"--id=GPU-{uuid}"]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A]
        return None


def _reasons(mask: str) -> str | None:
    try:
        bits = int(mask, 16)
    except ValueError:
        return None
    return ", ".join(reason for bit, reason in _REASONS.items() if bits & bit) or "none"


def _load() -> float | None:
    """Return the machine's load average; None if this process may use only some of its cores."""
    if available_cores() < (os.cpu_count() or 1):
        return None
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
