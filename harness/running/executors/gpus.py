"""GPUs of this machine: at most one worker at a time runs on each."""

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exitbench.errors import UserError
from exitbench.harness.processes.locks import locked

POLL_S = 0.5
"""Seconds between checks for a free GPU while a group waits."""


@dataclass(frozen=True)
class Gpu:
    """A GPU visible to this process.

    Attributes:
        uuid: Id of the GPU, independent of which GPUs are visible; its lock has this name.
        visible_as: Value of CUDA_VISIBLE_DEVICES for a process that may use only this GPU.
    """

    uuid: str
    visible_as: str


def visible_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that this process may use, in CUDA's order."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = named.split(",") if named else [str(index) for index in range(count)]
    uuids = [str(torch.cuda.get_device_properties(index).uuid) for index in range(count)]
    return tuple(Gpu(uuid, name.strip()) for uuid, name in zip(uuids, names, strict=False))


def lock_folder() -> Path:
    """Return the folder of the GPUs' locks, created if missing; all of a user's runs share it.

    Only the user can write there: in a folder writable by all, another user could create any name first.

    Raises:
        UserError: The folder belongs to another user, is writable by others, or is a link.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    of_user = Path(runtime) if runtime else None
    base = of_user if of_user is not None and _is_private(of_user) else Path(tempfile.gettempdir())
    folder = base / f"exitbench-gpus-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _is_private(folder):
        raise UserError(
            f"{folder}, for the locks of GPUs, is not a folder that you alone can write to. Remove it, or set "
            "XDG_RUNTIME_DIR to a folder of your own with mode 0700."
        )
    return folder


def _is_private(folder: Path) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


@contextlib.contextmanager
def free_gpu(
    gpus: Sequence[Gpu], locks: Path, stopped: Callable[[], bool], needed: Sequence[int] = ()
) -> Iterator[Mapping[str, str] | None]:
    """Wait for a free GPU, or for all GPUs that one model needs, and hold it within the context.

    Args:
        gpus: GPUs to choose from.
        locks: Folder of their locks.
        stopped: Returns True to stop waiting.
        needed: Indices of the GPUs needed by a model spread over several; empty to take any one GPU.

    Yields:
        Environment variables of a process that will use the GPU; None if `stopped` ended the wait.
    """
    while not stopped():
        for chosen in ([gpus[place] for place in needed],) if needed else [[gpu] for gpu in gpus]:
            with contextlib.ExitStack() as acquired:
                # All or none: holding one while waiting for another could deadlock.
                if all(acquired.enter_context(locked(locks / f"{gpu.uuid}.lock", wait=False)) for gpu in chosen):
                    # With a single GPU the variable is not set, so that all runs have the same environment. With a
                    # device map it is not set either, since the map names GPUs by their index among all.
                    names_gpu = not needed and len(gpus) > 1
                    yield {"CUDA_VISIBLE_DEVICES": chosen[0].visible_as} if names_gpu else {}
                    return
        time.sleep(POLL_S)
    yield None
