"""Jobs in Slurm's queue, and their states."""

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from exitbench.errors import UserError

FORGOTTEN: Final = "no longer known to Slurm"
"""State of a job that ended so long ago that Slurm's queue no longer lists it."""

ENDED: Final = {
    FORGOTTEN: "interrupted",
    "COMPLETED": "failed",
    "CANCELLED": "interrupted",
    "PREEMPTED": "interrupted",
    "REVOKED": "interrupted",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "OUT_OF_MEMORY": "oom",
    "FAILED": "failed",
    "NODE_FAIL": "failed",
    "BOOT_FAIL": "failed",
}
"""Final states of a Slurm job, mapped to the spool status of a cell that the job began and did not end."""

_SQUEUE_TIMEOUT_S: Final = 60.0


class NoAnswer(UserError):
    """Exception raised if Slurm does not answer; the failure may be temporary."""


@dataclass(frozen=True)
class Job:
    """One job of a Slurm array.

    Attributes:
        job_id: Job id as used by scancel: ``12_3``.
        state: State in Slurm's spelling.
    """

    job_id: str
    state: str

    @property
    def is_live(self) -> bool:
        """Whether the job is running, or may run later."""
        return self.state not in ENDED


def list_jobs(names: Iterable[str]) -> dict[tuple[str, int], Job]:
    """Return the user's jobs with the given names, by (name, array index); includes jobs that ended minutes ago.

    Raises:
        NoAnswer: Slurm does not answer.
    """
    wanted = sorted(names)
    if not wanted:
        return {}
    command = ["squeue", "--me", "--noheader", "--array", "--states=all", "--format=%j|%F|%K|%T"]
    try:
        completed = subprocess.run(
            [*command, f"--name={','.join(wanted)}"],
            capture_output=True,
            text=True,
            check=True,
            timeout=_SQUEUE_TIMEOUT_S,
        )
    except subprocess.CalledProcessError as error:
        raise NoAnswer(f"Slurm does not answer (squeue): {error.stderr.strip()}") from None
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"Slurm does not answer: squeue took more than {_SQUEUE_TIMEOUT_S:g} s.") from None
    jobs = {}
    for line in completed.stdout.splitlines():
        name, array_id, index, state = line.split("|")
        # A submission of a single group is not an array.
        jobs[name, int(index) if index.isdecimal() else 0] = Job(
            f"{array_id}_{index}" if index.isdecimal() else array_id, state
        )
    return jobs
