"""The GPUs of this machine, and one worker at a time on each."""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exitbench.harness.locks import locked

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
    """Return where the locks of GPUs lie: a user's runs share them, whatever their folders."""
    return Path(tempfile.gettempdir()) / f"exitbench-gpus-{os.getuid()}"


@contextlib.contextmanager
def free_gpu(gpus: Sequence[Gpu], locks: Path, stopped: Callable[[], bool]) -> Iterator[Mapping[str, str] | None]:
    """Hold a GPU that nobody else holds while the context lasts; waits for one.

    Args:
        gpus: Those to choose from.
        locks: Folder of their locks.
        stopped: Whether to give up waiting.

    Yields:
        Environment variables of a process that is to use it; None after giving up.
    """
    while not stopped():
        for gpu in gpus:
            with locked(locks / f"{gpu.uuid}.lock", wait=False) as held:
                if held:
                    # A machine's only GPU needs no name, so that runs there have the same environment.
                    yield {"CUDA_VISIBLE_DEVICES": gpu.visible_as} if len(gpus) > 1 else {}
                    return
        time.sleep(POLL_S)
    yield None
