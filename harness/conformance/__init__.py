"""Conformance checks: test on a small random decoder whether a method fulfils the contracts of its base classes.

They are a short form of the conformance tests in `tests/methods`, fast enough to run before a method's first cell, also
for third-party methods. The result is a verdict: the method conforms, or a list of violations.
"""

from __future__ import annotations

import hashlib
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from exitbench import __version__
from exitbench.harness.conformance.costs import declared
from exitbench.harness.conformance.decoder import USUAL, Breach, Shape, Trial
from exitbench.harness.conformance.scoring import (
    depth_follows_threshold,
    direction,
    independence,
    model_unchanged,
    replays,
    score_is_repeatable,
    thresholds,
)
from exitbench.methods.base import Method


@dataclass(frozen=True)
class ConformanceResult:
    """Result of a method's conformance checks: the verdict whether it fulfils the contracts of its base classes.

    Attributes:
        problems: Descriptions of the violations; empty if the method conforms.
        checked: Version of the checks: ExitBench's version and a digest of the checks' source.
    """

    problems: tuple[str, ...]
    checked: str

    @property
    def conforms(self) -> bool:
        """Whether the method violates no contract of its base classes."""
        return not self.problems

    def __str__(self) -> str:
        return "conforms" if self.conforms else f"fails: {'; '.join(self.problems)}"

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as the JSON record that is stored with a run: `verdict`, `problems` and `checked`."""
        word = "conforms" if self.conforms else "fails"
        return {"verdict": word, "problems": list(self.problems), "checked": self.checked}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ConformanceResult:
        """Return the result stored in a JSON record that `to_json` returned.

        Raises:
            KeyError, TypeError, ValueError: The record is invalid.
        """
        problems = record["problems"]
        if not (isinstance(problems, list) and all(isinstance(problem, str) for problem in problems)):
            raise TypeError(f"problems are a list of texts, not {problems!r}")
        result = cls(tuple(problems), str(record["checked"]))
        if record["verdict"] != ("conforms" if result.conforms else "fails"):
            raise ValueError(f"{record['verdict']!r} with {len(problems)} problems")
        return result


@cache
def checks_version() -> str:
    """Return the version of these checks, stored with verdicts: ExitBench's version and a digest of their source."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{__version__}-{digest.hexdigest()[:12]}"


__all__ = ["USUAL", "ConformanceResult", "Shape", "examine"]

_CHECKS: Final[tuple[Callable[[Trial], Iterator[str]], ...]] = (
    thresholds,
    independence,
    score_is_repeatable,
    depth_follows_threshold,
    direction,
    replays,
    declared,
    model_unchanged,
)


def examine(method: Method, shape: Shape = USUAL) -> ConformanceResult:
    """Run all conformance checks on a method, and return the verdict.

    An exception in a check counts as a violation and ends the checks, since later results would not be meaningful.

    Args:
        method: The method with its parameters.
        shape: Number of blocks, and blocks with an exit head, of the model for which the parameters are meant.
    """
    problems: list[str] = []
    try:
        with torch.no_grad():
            trial = Trial(method, shape)
            for check in _CHECKS:
                problems += check(trial)
    except Breach as breach:
        problems.append(str(breach))
    except Exception as error:
        problems.append(f"{type(error).__name__}: {' '.join(str(error).split())}{_traceback_line(error, method)}")
    return ConformanceResult(tuple(problems), checks_version())


def _traceback_line(error: Exception, method: Method) -> str:
    """Return text for a message: file and number of the last traceback line in the method's source; empty if none."""
    source_file = inspect.getfile(type(method))
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == source_file]
    return f" ({Path(source_file).name}, line {lines[-1]})" if lines else ""
