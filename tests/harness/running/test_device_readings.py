"""Readings of the device are None if the device does not provide them, and never an error."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exitbench.harness.running import device_readings
from exitbench.harness.running.device_readings import cpu_clock_mhz, gpu_values, hottest_c, read_device


def test_cpu_clock_is_the_mean_over_cores() -> None:
    text = "processor\t: 0\ncpu MHz\t\t: 2000.000\n\nprocessor\t: 1\ncpu MHz\t\t: 3000.500\n"
    assert cpu_clock_mhz(text) == pytest.approx(2500.25)
    assert cpu_clock_mhz("Hardware : something else\n") is None


def test_temperature_is_that_of_the_hottest_zone(tmp_path: Path) -> None:
    assert hottest_c(tmp_path) is None
    for number, text in enumerate(("41000\n", "67500\n", "")):
        zone = tmp_path / f"thermal_zone{number}"
        zone.mkdir()
        (zone / "temp").write_text(text)
    assert hottest_c(tmp_path) == 67.5


@pytest.mark.parametrize(
    ("answer", "values"),
    [
        ("1980, 312.45, 54, 0x0000000000000000\n", (1980.0, 312.45, 54.0, "none")),
        ("345, 75.10, 30, 0x0000000000000001\n", (345.0, 75.1, 30.0, "none")),
        ("1200, 699.90, 88, 0x0000000000000024\n", (1200.0, 699.9, 88.0, "power cap, thermal slowdown")),
        ("1410, [N/A], 40, [N/A]\n", (1410.0, None, 40.0, None)),
        ("No devices were found\n", (None, None, None, None)),
    ],
)
def test_nvidia_smi_output_is_parsed(answer: str, values: tuple[Any, ...]) -> None:
    assert gpu_values(answer) == values


def fails(error: Exception) -> Callable[..., Any]:
    def run(*arguments: Any, **options: Any) -> Any:
        raise error

    return run


@pytest.mark.parametrize(
    "error", [FileNotFoundError(), subprocess.TimeoutExpired("x", 1), subprocess.CalledProcessError(9, "x")]
)
def test_failing_nvidia_smi_leaves_the_readings_empty(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_readings, "_gpu_id", lambda: [])
    monkeypatch.setattr(subprocess, "run", fails(error))
    reading = read_device("cuda", 2, "end")
    assert (reading.round, reading.moment, reading.device) == (2, "end", "cuda")
    assert (reading.clock_mhz, reading.power_w, reading.temperature_c, reading.throttle) == (None, None, None, None)


def test_cpu_reading_includes_the_load_average(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    reading = read_device("cpu", 0, "start")
    assert reading.load_average is not None
    assert (reading.power_w, reading.throttle) == (None, None)


def test_load_average_is_omitted_if_the_process_may_not_use_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert read_device("cpu", 0, "start").load_average is None
