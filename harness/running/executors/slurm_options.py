"""Slurm options of the command line: ``--slurm KEY=VALUE``."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from exitbench.errors import UserError

DEFAULT_TIME: Final = "4:00:00"
MAX_TIMEOUTS: Final = 20
"""Maximum number of times that a timed-out job is requeued."""

RESERVED: Final = (
    *("array", "error", "job-name", "nodes", "ntasks", "ntasks-per-node"),
    *("open-mode", "output", "requeue", "signal", "wait", "wrap"),
)
"""Options of sbatch that the executor sets; the user may not set them."""

# minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds
_TIME: Final = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d+){0,2})")


@dataclass(frozen=True)
class SlurmOptions:
    """Options of sbatch for a run's jobs.

    Attributes:
        minutes: Time limit of a job.
        cpus: Number of cores of a job.
        flags: All other options by long name; the value is True for an option without a value.
    """

    minutes: int
    cpus: int
    flags: Mapping[str, str | bool]

    @property
    def parameters(self) -> dict[str, Any]:
        """The options in the form of submitit's parameters."""
        return {
            "time": self.minutes,
            "cpus_per_task": self.cpus,
            "additional_parameters": {"requeue": True, **self.flags},
        }


def read_options(texts: Sequence[str]) -> SlurmOptions:
    """Parse the values of ``--slurm``.

    Args:
        texts: `KEY=VALUE`, or `KEY` if sbatch takes no value; keys are sbatch's long names.

    Raises:
        UserError: A text does not have this form, a key is given twice, a value is not a time or a number, or the
            executor sets the option itself.
    """
    flags: dict[str, str | bool] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not re.fullmatch(r"[a-z][a-z-]*", name) or (equals and not value):
            raise UserError(f"--slurm {text}: expected KEY=VALUE with a long option of sbatch, e.g. partition=gpu.")
        if name in RESERVED:
            raise UserError(f"--slurm {text}: {name} is set by ExitBench; not allowed: {', '.join(RESERVED)}.")
        if name in flags:
            raise UserError(f"--slurm {text}: {name} is given twice.")
        flags[name] = value if equals else True
    time, cpus = str(flags.pop("time", DEFAULT_TIME)), str(flags.pop("cpus-per-task", 1))
    if not cpus.isdecimal() or int(cpus) < 1:
        raise UserError(f"--slurm cpus-per-task={cpus}: expected a whole number of 1 or more.")
    return SlurmOptions(_minutes(time), int(cpus), flags)


def _minutes(text: str) -> int:
    """Return minutes, rounded up, from a time limit in one of sbatch's formats."""
    match = _TIME.fullmatch(text)
    parts = [int(part) for part in match["parts"].split(":")] if match else []
    if match and match["days"]:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        hours += 24 * int(match["days"])
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, minutes, seconds = 0, *(*parts, 0, 0)[:2]
    total = hours * 60 + minutes + (seconds > 0)
    if total < 1:
        raise UserError(f"--slurm time={text}: expected sbatch's form, e.g. 90 (minutes), 4:00:00 or 1-12.")
    return total
