"""Results of benchmarks and their goals: printed at once, stored with the benchmark, and in one table at the end.

A benchmark's `extra_info`, which goes into the database, has ``measured``, its ``unit``, a ``note``, the goal, if any,
as ``at_least`` or ``at_most``, the ``instructions`` that torch used, and all other measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from ratios import Comparison

HEADER = ("benchmark", "measured", "goal", "", "beside it")


class Recorder:
    """What a benchmark calls with its result, which is stored with the benchmark and printed.

    Attributes:
        benchmark: pytest-benchmark's fixture.
        capsys: pytest's fixture.
    """

    def __init__(self, benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
        self.benchmark, self.capsys = benchmark, capsys

    def __call__(
        self,
        measured: float | Comparison,
        unit: str,
        *,
        over: float = 1.0,
        at_least: float | None = None,
        at_most: float | None = None,
        note: str = "",
        **about: object,
    ) -> None:
        """Store and print a result.

        Args:
            measured: The benchmark's main result, or a comparison, whose ratio, quartiles and times are stored.
            unit: Unit printed after the number; "%" for a share.
            over: Ideal ratio by which the ratio of a comparison is divided.
            at_least: Goal of a number for which larger is better.
            at_most: Goal of a number for which smaller is better.
            note: Short remark.
            **about: All other measurements, by name.
        """
        import torch  # not needed for mere collection

        if isinstance(measured, Comparison):
            note = "; ".join(filter(None, (note, measured.spread(over))))
            about, measured = {**about, **measured.about()}, measured.ratio / over
        goals = {"at_least": at_least, "at_most": at_most}
        goals = {name: goal for name, goal in goals.items() if goal is not None}
        instructions = torch.backends.cpu.get_cpu_capability()
        info = {"measured": measured, "unit": unit, "note": note, "instructions": instructions}
        self.benchmark.extra_info.update({**info, **goals, **about})
        with self.capsys.disabled():
            told = _row(self.benchmark.name, self.benchmark.extra_info)
            print("\n" + "  ".join(filter(None, told)), flush=True)


@pytest.fixture
def record(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> Recorder:
    """Return what stores and prints the benchmark's result."""
    return Recorder(benchmark, capsys)


def table(results: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return the lines of a table of all results, from pairs of name and extra info."""
    rows = [HEADER, *(_row(name, info) for name, info in results if "measured" in info)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def is_met(info: Mapping[str, Any]) -> bool | None:
    """Return whether the goal is met; None without a goal."""
    if "at_least" in info:
        return bool(info["measured"] >= info["at_least"])
    return bool(info["measured"] <= info["at_most"]) if "at_most" in info else None


def _row(name: str, info: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    unit = info["unit"]
    bounds = {"at_least": "at least", "at_most": "at most"}
    of_goal = unit if unit == "%" else ""
    goal = next((f"{words} {shown(info[key], of_goal)}" for key, words in bounds.items() if key in info), "")
    met = {None: "", True: "met", False: "MISSED"}[is_met(info)]
    return name, shown(info["measured"], unit), goal, met, info["note"]


def shown(value: float, unit: str) -> str:
    """Return a number with its unit as text."""
    if unit == "%":
        return f"{value:.1%}"
    digits = 2 if value < 100 else 0
    return f"{value:.{digits}f} {unit}".rstrip()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print all results with their goals; a pytest hook, which conftest.py imports."""
    session = getattr(terminalreporter.config, "_benchmarksession", None)
    lines = table((item.name, item.extra_info) for item in getattr(session, "benchmarks", ()))
    if len(lines) > 1:
        terminalreporter.section("measured beside its goal")
        terminalreporter.write("\n".join(lines) + "\n")
