"""Whether a method keeps the contracts, tried on a small decoder with random weights.

A short form of the conformance suite in `tests/methods`, quick enough to run before a method's first cell, and for
methods of other distributions too.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import torch

from exitbench.harness.conformance.costs import declared
from exitbench.harness.conformance.decoder import USUAL, Shape, Trial
from exitbench.harness.conformance.decoding import independence, model_unchanged, thresholds
from exitbench.harness.conformance.in_sql import replays
from exitbench.harness.conformance.scoring import depth_follows_threshold, direction, same_again
from exitbench.harness.conformance.verdict import Verdict, checks_version
from exitbench.harness.conformance.watched import Breach
from exitbench.methods.base import Method

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
