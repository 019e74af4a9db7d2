"""Layout of the runs folder: where spool, database, report, models and logs lie."""

import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from exitbench.errors import UserError


@dataclass(frozen=True)
class Runs:
    """The folder of ``--runs`` and what is in it."""

    root: Path

    @property
    def spool(self) -> Path:
        """Every attempt; the source of truth."""
        return self.root / "spool"

    @property
    def database(self) -> Path:
        """The result database, derived from the spool."""
        return self.root / "exitbench.duckdb"

    @property
    def report(self) -> Path:
        """Folder of the report."""
        return self.root / "report"

    @property
    def models(self) -> Path:
        """Trained recipes."""
        return self.root / "models"

    @property
    def logs(self) -> Path:
        """What workers were given and what they printed."""
        return self.root / "logs"

    @property
    def repetitions(self) -> Path:
        """Spool of what `verify` ran again."""
        return self.root / "repetitions"

    @property
    def slurm(self) -> Path:
        """What was handed to Slurm, and what its jobs printed."""
        return self.root / "slurm"

    def require_writable(self) -> None:
        """Check, before any work, that results will have a place.

        Raises:
            UserError: The folder cannot be made or written, or the database is not one that this version can fill.
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
    """Return the folder of ``--runs`` for a command that shows or looks after what is there: it makes no new one.

    Raises:
        UserError: There is no such folder.
    """
    if not root.is_dir():
        raise UserError(f"--runs {root}: there is no such folder. `exitbench run` and `exitbench import` make it.")
    return Runs(root)
