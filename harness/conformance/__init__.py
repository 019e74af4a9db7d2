"""Whether a method keeps the contracts, tried on a small decoder with random weights.

A short form of the conformance suite in `tests/methods`, quick enough to run before a method's first cell, and for
methods of other distributions too. A verdict says that a method conforms, or what it breaks.
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
    same_again,
    thresholds,
)
from exitbench.methods.base import Method


@dataclass(frozen=True)
class Verdict:
    """Whether a method keeps the contracts.

    Attributes:
        problems: What it breaks, in words; none where it conforms.
        checked: Which checks were made (`checks_version`).
    """

    problems: tuple[str, ...]
    checked: str

    @property
    def conforms(self) -> bool:
        """Whether nothing was found."""
        return not self.problems

    def __str__(self) -> str:
        return "conforms" if self.conforms else f"fails: {'; '.join(self.problems)}"

    def to_json(self) -> dict[str, Any]:
        """Return what is stored with a run."""
        word = "conforms" if self.conforms else "fails"
        return {"verdict": word, "problems": list(self.problems), "checked": self.checked}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Verdict:
        """Read what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: It is something else.
        """
        problems = record["problems"]
        if not (isinstance(problems, list) and all(isinstance(problem, str) for problem in problems)):
            raise TypeError(f"problems are a list of texts, not {problems!r}")
        made = cls(tuple(problems), str(record["checked"]))
        if record["verdict"] != ("conforms" if made.conforms else "fails"):
            raise ValueError(f"{record['verdict']!r} with {len(problems)} problems")
        return made


@cache
def checks_version() -> str:
    """Version of ExitBench and a digest of the checks' source: verdicts of other checks are not taken for theirs."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{__version__}-{digest.hexdigest()[:12]}"


__all__ = ["USUAL", "Shape", "Verdict", "examine"]

_CHECKS: Final[tuple[Callable[[Trial], Iterator[str]], ...]] = (
    thresholds,
    independence,
    same_again,
    depth_follows_threshold,
    direction,
    replays,
    declared,
    model_unchanged,
)


def examine(method: Method, shape: Shape = USUAL) -> Verdict:
    """Try every contract; what raises an error ends the trial, since nothing after it would say more.

    Args:
        method: The method with its parameters.
        shape: Of the model that they are meant for.
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
        problems.append(f"{type(error).__name__}: {' '.join(str(error).split())}{_where(error, method)}")
    return Verdict(tuple(problems), checks_version())


def _where(error: Exception, method: Method) -> str:
    """The innermost line of the method's own file that the error went through."""
    own = inspect.getfile(type(method))
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    return f" ({Path(own).name}, line {lines[-1]})" if lines else ""
