"""Options of a run, validated on construction."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from exitbench.errors import UserError, suggestion
from exitbench.harness.cells.cell import KINDS, Kind
from exitbench.harness.planning.retry import RETRIED, Retry
from exitbench.harness.running.shard import Shard

if TYPE_CHECKING:  # suites need torch, but the command line reads options before it decides whether to load torch
    from exitbench.harness.planning.suite import Suite

MOST_DOCUMENTS: Final = 10**9
MOST_THREADS: Final = 4096


@dataclass(frozen=True)
class RunOptions:
    """Selection of a suite's cells, and options for running them.

    Attributes:
        suite: Name of a bundled suite, path of a TOML file, or a loaded suite.
        runs: Folder of all run data.
        only: Glob over MODEL/TASK/METHOD/KIND.
        limit: Maximum number of documents per task.
        kinds: Kinds of cells to run; None for all kinds.
        shard: Parts of the suite to run; empty for the whole suite.
        data_dir: Root folder of local files.
        retry: Cells to run besides new ones: ``none``, ``stale``, ``failed`` (also stale ones) or ``all``.
        threads: Number of torch threads; None for the number of cores not used by other processes.
        executor: ``local`` (this machine) or ``slurm``.
        slurm: Options of sbatch, as KEY=VALUE.
        hub: Whether models may be downloaded from the hub.
        confirm_run_unsafe_code: Whether tasks may execute code that a model generated.

    Raises:
        UserError: A value is not allowed.
    """

    suite: str | Path | Suite
    runs: Path = Path("runs")
    only: str | None = None
    limit: int | None = None
    kinds: tuple[Kind, ...] | None = None
    shard: tuple[Shard, ...] = ()
    data_dir: Path | None = None
    retry: Retry = "failed"
    threads: int | None = None
    executor: Literal["local", "slurm"] = "local"
    slurm: tuple[str, ...] = ()
    hub: bool = False
    confirm_run_unsafe_code: bool = False

    def __post_init__(self) -> None:
        _check_count("limit", self.limit, MOST_DOCUMENTS)
        _check_count("threads", self.threads, MOST_THREADS)
        for kind in self.kinds or ():
            _check_word("kinds", kind, KINDS)
        _check_word("retry", self.retry, tuple(RETRIED))
        if self.data_dir is not None and not self.data_dir.is_dir():
            raise UserError(f"data_dir: there is no folder {str(self.data_dir)!r}.")


def _check_count(name: str, value: Any, most: int) -> None:
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if value is not None and not (is_whole and 1 <= value <= most):
        raise UserError(f"{name} is {value!r}. Allowed: a whole number from 1 to {most}.")


def _check_word(name: str, word: str, allowed: tuple[str, ...]) -> None:
    if word not in allowed:
        raise UserError(f"{name} has {word!r}.{suggestion(word, allowed)}")
