"""Conformance verdict of a method: conforms, or what it breaks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from exitbench import __version__


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
