"""The GPUs of this machine, and one worker at a time on each."""

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
"""How often a group that waits for a GPU looks again."""


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes:
        uuid: What it is called whatever else is visible; names its lock.
        visible_as: What CUDA_VISIBLE_DEVICES must say for a process to see it alone.
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
    """Return where the locks of GPUs lie, made when missing: a user's runs share them, whatever their folders.

    Nobody else can write there: in a folder that all may write to, another user could be first at any name.

    Raises:
        UserError: Somebody else has made it, or it is a link.
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
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


@contextlib.contextmanager
def free_gpu(
    gpus: Sequence[Gpu], locks: Path, stopped: Callable[[], bool], needed: Sequence[int] = ()
) -> Iterator[Mapping[str, str] | None]:
    """Hold a GPU that nobody else holds while the context lasts, or all that one model needs; waits for them.

    Args:
        gpus: Those to choose from.
        locks: Folder of their locks.
        stopped: Whether to give up waiting.
        needed: Which of them, by place, a model spread over several has to have; empty: any one.

    Yields:
        Environment variables of a process that is to use it; None after giving up.
    """
    while not stopped():
        for chosen in ([gpus[place] for place in needed],) if needed else [[gpu] for gpu in gpus]:
            with contextlib.ExitStack() as held:
                # All or none: who held one while it waited for another could wait for ever.
                if all(held.enter_context(locked(locks / f"{gpu.uuid}.lock", wait=False)) for gpu in chosen):
                    # A machine's only GPU needs no name, so that runs there have the same environment; and a map
                    # names GPUs by their place among all.
                    one = not needed and len(gpus) > 1
                    yield {"CUDA_VISIBLE_DEVICES": chosen[0].visible_as} if one else {}
                    return
        time.sleep(POLL_S)
    yield None
