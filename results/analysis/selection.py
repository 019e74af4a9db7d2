"""Select runs by id, by a prefix of an id, or by a glob over names.

A run's name is `MODEL/TASK_LABEL/METHOD`, followed by `:name=value,..` for those parameters in which the method's runs
on that model and task differ. A glob matches the name with these parameters, with all parameters, or with none.
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
_MAX_SHOWN_NAMES: Final = 12


@dataclass(frozen=True)
class Run:
    """Finished attempt, with the fields from which its name is built.

    Attributes:
        params: Every parameter of the method.
        newest: True if no later run has the same model, task, settings, method and parameters. Globs match only such
            runs, ids match any run.
        about: Description for messages, which distinguishes runs of the same name.
    """

    attempt_id: str
    cell_id: str
    model: str
    task_label: str
    method: str
    params: Mapping[str, Any]
    newest: bool
    about: str = ""

    @classmethod
    def from_cell(cls, attempt_id: str, cell: Mapping[str, Any], about: str) -> "Run":
        """Return a selectable run (`newest`) from the content of its cell.json."""
        model, task, method = cell["model"]["name"], cell["task"]["label"], cell["method"]
        return cls(attempt_id, cell["cell_id"], model, task, method["name"], method["params"], True, about)

    @property
    def bare_name(self) -> str:
        """Name of the run without parameters: `MODEL/TASK_LABEL/METHOD`."""
        return f"{self.model}/{self.task_label}/{self.method}"


class RunIndex:
    """Index that selects runs by id, prefix of an id, or glob; `what` is the noun for a run in error messages."""

    def __init__(self, runs: Iterable[Run], what: str = "run") -> None:
        self._what = what
        self._runs = sorted(runs, key=lambda run: run.attempt_id)
        varying: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for run in self._runs:
            for name, value in run.params.items():
                varying[run.bare_name][name].add(_value_text(value))
        self._varying = {
            bare: frozenset(name for name, values in params.items() if len(values) > 1)
            for bare, params in varying.items()
        }

    def name(self, run: Run) -> str:
        """Return the run's name with those parameters in which the indexed runs of its method differ."""
        return _with(run, self._varying.get(run.bare_name, ()))

    def find(self, text: str) -> list[Run]:
        """Return the runs selected by an id, a prefix of an id, or a glob over names; there is at least one.

        Raises:
            UserError: No run is selected; the message suggests similar names.
        """
        selected = self._by_glob(text) if _is_glob(text) else self._by_id(text)
        if selected:
            return selected
        names = sorted({self.name(run) for run in self._runs if run.newest})
        close = get_close_matches(text, names, n=3, cutoff=0.3)
        hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise UserError(
            f"no {self._what} is named {text!r}.{hint} Allowed: an attempt or cell id (its first {MIN_PREFIX} "
            "characters or more), or a glob over MODEL/TASK/METHOD. "
            + (f"There are {len(names)} names, such as {names[0]}." if names else "There is none yet.")
        )

    def find_one(self, text: str) -> Run:
        """Return the single run selected by an id, a prefix of an id, or a glob over names.

        Raises:
            UserError: No run or several runs are selected; the message lists them.
        """
        selected = self.find(text)
        if len(selected) > 1:
            raise UserError(f"{text!r} names {len(selected)} {self._what}s, one is needed:\n{self.listing(selected)}")
        return selected[0]

    def listing(self, runs: Sequence[Run]) -> str:
        """Return text with one line per run: attempt id, name and description; long lists are cut."""
        lines = [f"  {run.attempt_id}  {self.name(run)}  {run.about}".rstrip() for run in runs[:_MAX_SHOWN_NAMES]]
        return "\n".join(
            lines + ([f"  and {len(runs) - _MAX_SHOWN_NAMES} more"] if len(runs) > _MAX_SHOWN_NAMES else [])
        )

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
        # A cell id selects the cell's latest attempt.
        cells = {run.cell_id: run for run in self._runs if run.cell_id.startswith(prefix)}
        return attempts or list(cells.values())


def _is_glob(text: str) -> bool:
    return any(sign in text for sign in "/*?[")


def _with(run: Run, names: Iterable[str]) -> str:
    stated = ",".join(f"{name}={_value_text(run.params[name])}" for name in sorted(names) if name in run.params)
    return f"{run.bare_name}:{stated}" if stated else run.bare_name


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
