"""Software and hardware of the machine: the content of env.json."""

import os
import platform
import re
import subprocess
import time
from importlib.metadata import entry_points, requires, version
from pathlib import Path
from typing import Any, Final

from exitbench.harness.engine.products.choice_store import cpu_model
from exitbench.harness.processes.fork_server import SPINNING, await_imports

PROJECT = "exitbench"

_LOOK_S: Final = 0.5

# Variables that change numbers or speed. A list rather than a copy of the environment, which may hold secrets.
ENV_VARS = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "EXITBENCH_PRODUCTS",
    "GOMP_SPINCOUNT",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_WAIT_POLICY",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)


def environment_and_hardware(threads: int) -> dict[str, Any]:
    """Return the content of env.json: software and hardware of this machine.

    Args:
        threads: Number of threads in torch's intra-op pool of the measuring process.
    """
    return {"environment": environment(), "hardware": hardware(threads)}


def environment() -> dict[str, Any]:
    """Return interpreter, platform, package versions, the project's commit, and the variables in `ENV_VARS`."""
    commit, dirty = git_state(Path(__file__).parent)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _packages(),
        "git_commit": commit,
        "git_dirty": dirty,
        # Values set by `spinning` are left out: they follow from the project's version, which is recorded.
        "env_vars": {
            name: os.environ[name] for name in ENV_VARS if os.environ.get(name) not in (None, SPINNING.get(name))
        },
    }


_RAM_STEP = 1 << 28


def hardware(threads: int) -> dict[str, Any]:
    """Return a record of the machine: CPU, cores this process may use, memory in bytes, GPU (None if there is none).

    `threads`, the number of torch threads, is included. Times are compared only between equal records. So memory is
    rounded to 256 MiB: what the kernel keeps for itself differs by a few pages from one start to the next.
    """
    return {
        "cpu": cpu_model(),
        "cores": available_cores(),
        "ram_bytes": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _RAM_STEP) * _RAM_STEP,
        **_gpu(),
        "threads": threads,
    }


def available_cores() -> int:
    """Return the number of cores this process may use."""
    return len(_affinity())


def free_cores() -> int:
    """Return how many of this process's cores no other process is using now, at least 1.

    More threads than free cores slow down all: a thread whose core is busy delays the others, which spin meanwhile. The
    load is measured over half a second, so that neither a short burst nor an old process counts. It is measured after
    the imports of this process's fork server, which would count too. Without /proc/stat, all cores count as free.
    """
    cores = _affinity()
    if len(cores) == 1:
        return 1
    await_imports()
    busy = _busy_cores(cores)
    allowed = _cgroup_cores(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")) or len(cores)
    return max(1, min(int(allowed), int(len(cores) - busy + 0.5)))


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _busy_cores(cores: set[int]) -> float:
    """Return how many of the cores (given by number) other processes keep busy; 0 if the system does not report it.

    It is the mean over half a second in which this process sleeps.
    """
    before, since_s = _busy_ticks(cores), time.monotonic()
    if before is None:
        return 0.0
    time.sleep(_LOOK_S)
    after, waited_s = _busy_ticks(cores) or before, time.monotonic() - since_s
    return (after - before) / os.sysconf("SC_CLK_TCK") / waited_s


def _busy_ticks(cores: set[int], stat: Path = Path("/proc/stat")) -> int | None:
    """Return the number of clock ticks since boot in which the cores were busy, summed over the cores; None if unknown.

    Ticks taken by other virtual machines count as busy.
    """
    try:
        lines = stat.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    fields = (line.split() for line in lines if re.match(r"cpu\d", line))
    # Columns: user, nice, system, idle, iowait, irq, softirq, steal. Nice processes yield the core, so they are not
    # counted; user includes guests.
    return sum(
        sum(map(int, [columns[1], columns[3], *columns[6:9]]))
        for columns in fields
        if int(columns[0].removeprefix("cpu")) in cores
    )


def _cgroup_cores(root: Path, membership: Path) -> float | None:
    """Return the number of cores that this process may use by its control group's limits; None if there is no limit.

    Args:
        root: Folder where the control groups are mounted.
        membership: File that names the control group of this process.
    """
    try:
        group = membership.read_text(encoding="utf-8").rpartition("0::/")[2].strip()
    except OSError:
        return None
    limits = []
    for folder in (root / group, *(root / group).parents):
        try:
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            limits.append(int(quota) / int(period))
        if folder == root:
            break
    return min(limits, default=None)


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Return the commit of the checkout that contains a folder, and whether tracked files differ from this commit.

    Both are None if git does not track the folder's files, as for an installed wheel, even inside another checkout.
    """
    tracked = _git(folder, "ls-files", "--error-unmatch", "__init__.py")
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if tracked is None or commit is None or changes is None:
        return None, None
    return commit, bool(changes)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        completed = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return completed.stdout.strip()


def _packages() -> dict[str, str]:
    """Return the versions of the project, its requirements, and the distributions of third-party methods."""
    required = [re.split(r"[^\w.-]", line)[0] for line in requires(PROJECT) or [] if "extra ==" not in line]
    plugins = [point.dist.name for point in entry_points(group="exitbench.methods") if point.dist is not None]
    return {name: version(name) for name in sorted({PROJECT, *required, *plugins})}


def _gpu() -> dict[str, Any]:
    # Imported here, so that callers of `environment` alone need not wait for torch.
    import torch

    if not torch.cuda.is_available():
        return {"gpu": None, "gpu_count": 0, "driver": None, "cuda": None}
    driver = Path("/sys/module/nvidia/version")
    return {
        "gpu": torch.cuda.get_device_name(0),
        "gpu_count": torch.cuda.device_count(),
        "driver": driver.read_text(encoding="utf-8").strip() if driver.exists() else None,
        "cuda": torch.version.cuda,
    }
