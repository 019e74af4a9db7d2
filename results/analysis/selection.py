"""Select runs by id, by the beginning of one, or by a glob over names.

A run's name is `MODEL/TASK_LABEL/METHOD`, followed by `:name=value,..` of the parameters in which the method's runs on
that model and task differ. A glob matches the name with those parameters, with all of them, or with none.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final

from exitbench.errors import UserError

MIN_PREFIX: Final = 4
_SHOWN: Final = 12


@dataclass(frozen=True)
class Run:
    """A finished attempt, as far as one needs to know it to name it.

    Attributes:
        params: Every parameter of the method.
        newest: Whether globs see it: no later run asks the same (ids reach the others too).
        about: What tells it from a run of the same name.
    """

    attempt_id: str
    cell_id: str
    model: str
    task_label: str
    method: str
    params: Mapping[str, Any]
    newest: bool
    about: str = ""

    @property
    def bare_name(self) -> str:
        """The name without parameters."""
        return f"{self.model}/{self.task_label}/{self.method}"


class RunIndex:
    """Runs to choose from; `what` is what messages call one of them."""

    def __init__(self, runs: Iterable[Run], what: str = "run") -> None:
        self._what = what
        self._runs = sorted(runs, key=lambda run: run.attempt_id)
        varying: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for run in self._runs:
            for name, value in run.params.items():
                varying[run.bare_name][name].add(_spelled(value))
        self._varying = {
            bare: frozenset(name for name, values in params.items() if len(values) > 1)
            for bare, params in varying.items()
        }

    def name(self, run: Run) -> str:
        """Return the run's name with the parameters that tell it from others of its method."""
        return _with(run, self._varying.get(run.bare_name, ()))

    def find(self, text: str) -> list[Run]:
        """Return the runs that a text names, at least one.

        Raises:
            UserError: None; says which are spelled alike.
        """
        found = self._by_glob(text) if _is_glob(text) else self._by_id(text)
        if found:
            return found
        names = sorted({self.name(run) for run in self._runs if run.newest})
        close = get_close_matches(text, names, n=3, cutoff=0.3)
        hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise UserError(
            f"no {self._what} is named {text!r}.{hint} Allowed: an attempt or cell id (its first {MIN_PREFIX} "
            "characters or more), or a glob over MODEL/TASK/METHOD. "
            + (f"There are {len(names)} names, such as {names[0]}." if names else "There is none yet.")
        )

    def find_one(self, text: str) -> Run:
        """Return the one run that a text names.

        Raises:
            UserError: None, or several; lists them.
        """
        found = self.find(text)
        if len(found) > 1:
            raise UserError(f"{text!r} names {len(found)} {self._what}s, one is needed:\n{self.listing(found)}")
        return found[0]

    def listing(self, runs: Sequence[Run]) -> str:
        """Return a line a run: attempt, name, what else tells them apart."""
        lines = [f"  {run.attempt_id}  {self.name(run)}  {run.about}".rstrip() for run in runs[:_SHOWN]]
        return "\n".join(lines + ([f"  and {len(runs) - _SHOWN} more"] if len(runs) > _SHOWN else []))

    def _by_glob(self, pattern: str) -> list[Run]:
        return [
            run
            for run in self._runs
            if run.newest
            and any(fnmatchcase(name, pattern) for name in (run.bare_name, self.name(run), _with(run, run.params)))
        ]

    def _by_id(self, prefix: str) -> list[Run]:
        if len(prefix) < MIN_PREFIX:
            return []
        attempts = [run for run in self._runs if run.attempt_id.startswith(prefix)]
        # A cell stands for its latest attempt.
        cells = {run.cell_id: run for run in self._runs if run.cell_id.startswith(prefix)}
        return attempts or list(cells.values())


def _is_glob(text: str) -> bool:
    return any(sign in text for sign in "/*?[")


def _with(run: Run, names: Iterable[str]) -> str:
    stated = ",".join(f"{name}={_spelled(run.params[name])}" for name in sorted(names) if name in run.params)
    return f"{run.bare_name}:{stated}" if stated else run.bare_name


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
