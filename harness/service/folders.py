"""Layout of the runs folder: spool, database, report, models and logs; and ingestion of the spool."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from exitbench.errors import UserError
from exitbench.terminal import print_escaped


@dataclass(frozen=True)
class Runs:
    """The folder of ``--runs`` and the paths in it."""

    root: Path

    @property
    def spool(self) -> Path:
        """Folder of all attempts (raw results), from which the database can be built again."""
        return self.root / "spool"

    @property
    def database(self) -> Path:
        """File of the result database, which is built from the spool."""
        return self.root / "exitbench.duckdb"

    @property
    def report(self) -> Path:
        """Folder of the report: its HTML pages and figures."""
        return self.root / "report"

    @property
    def models(self) -> Path:
        """Folder of models trained from recipes."""
        return self.root / "models"

    @property
    def logs(self) -> Path:
        """Folder of the workers' specifications and printed output."""
        return self.root / "logs"

    @property
    def repetitions(self) -> Path:
        """Spool (folder of results) of the cells that `exitbench verify` ran again."""
        return self.root / "repetitions"

    @property
    def slurm(self) -> Path:
        """Folder of the files submitted to Slurm and the printed output of its jobs."""
        return self.root / "slurm"

    def require_writable(self) -> None:
        """Check, before any work, that results can be written; create the folder if it does not exist.

        Raises:
            UserError: The folder cannot be created or written, or this version cannot fill the database.
        """
        from exitbench.results.database.connection import check_path

        check_path(self.database)
        try:
            os.makedirs(self.root, exist_ok=True)
            TemporaryFile(dir=self.root).close()
        except OSError as error:
            raise UserError(
                f"--runs {self.root}: cannot be written ({error.strerror}). Name a folder that can be."
            ) from None
        if self.database.exists():
            from exitbench.results.database.connection import open_database

            open_database(self.database, read_only=False).close()


def existing_runs(root: Path) -> Runs:
    """Return the runs folder at `root`, for commands that do not create it.

    Raises:
        UserError: The folder does not exist.
    """
    if not root.is_dir():
        raise UserError(f"--runs {root}: there is no such folder. `exitbench run` and `exitbench import` make it.")
    return Runs(root)


def ingest_spool(spool: Path, database: Path, on_wait: Callable[[str], None] | None = print_escaped) -> tuple[str, ...]:
    """Ingest finished attempts into the database; print and return one message per attempt that was left out.

    If another run is filling the database, wait for it, and call `on_wait` with a message. If `on_wait` is None,
    the wait is short.
    """
    from exitbench.results.ingest.ingest import ingest

    not_ingested = ingest(spool, database, on_wait=on_wait).quarantined
    for message in not_ingested:
        print_escaped(f"left out of the database: {message}")
    return not_ingested
