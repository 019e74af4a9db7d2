"""Run code that a model wrote, if the user has confirmed that it may be run.

Two processes (`confined.py`): one runs the program; the other runs the tests and decides, out of the program's reach.
Both run in their own Linux namespaces, without network, inherited environment or sockets (not even Unix sockets), and
none of their processes outlives them. Time, memory and number of processes are limited. They can write only to a small
private file system. The program can still read what its user can read. For stronger isolation, run ExitBench in a
container.
"""

import ast
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.tasks import confined

CPU_SECONDS: Final = 3
"""The time that lm-eval allows per solution."""
_WALL_SECONDS: Final = 20.0
_MEMORY_BYTES: Final = 1 << 30
_FILE_BYTES: Final = 1 << 20
_DISK_BYTES: Final = 1 << 24
"""Maximum size of all files together, which are held in memory."""

_LIMITS: Final = {
    "RLIMIT_CPU": CPU_SECONDS,
    "RLIMIT_AS": _MEMORY_BYTES,
    "RLIMIT_FSIZE": _FILE_BYTES,
    "RLIMIT_NPROC": 0,
    "RLIMIT_CORE": 0,
    "RLIMIT_NOFILE": 64,
}
# No process that the program starts outlives it: its PID namespace ends with it.
_NAMESPACE_OPTIONS: Final = (
    "--user",
    "--map-root-user",
    "--net",
    "--ipc",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
)


def pass_at_1(references: list[str], predictions: list[str]) -> float:
    """Return the share of programs (`predictions`) that pass their tests (`references`), as lm-eval's `pass_at_1`."""
    passed = [passes(code, tests) for tests, code in zip(references, predictions, strict=True)]
    return sum(passed) / len(passed)


def passes(program: str, tests: str) -> bool:
    """Return whether a program runs to its end without an error, and then its tests do, within the limits.

    Raises:
        UserError: This system cannot isolate a program from the network and the file system.
    """
    command = _command()
    token = secrets.token_hex(16)
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    to_program, from_program = os.pipe(), os.pipe()
    limits = {"limits": _LIMITS, "disk_bytes": _DISK_BYTES}
    solution = {"program": program, "receive": to_program[0], "send": from_program[1]}
    judge = {"tests": tests, "receive": from_program[0], "send": to_program[1]}
    judge |= {"token": token, "descriptor": write_end}
    folder = tempfile.mkdtemp(prefix="exitbench-code-")
    running: list[subprocess.Popen[bytes]] = []
    try:
        for role, config in (("solution", solution), ("judge", judge)):
            fds = [number for key in ("receive", "send", "descriptor") if isinstance(number := config.get(key), int)]
            running.append(_start([*command, role], json.dumps(limits | config), folder, fds))
        for end in (*to_program, *from_program):
            os.close(end)  # so that each process notices when the other has ended
        with contextlib.suppress(subprocess.TimeoutExpired):
            running[-1].wait(_WALL_SECONDS)
        return _read_token(read_end, len(token)) == token.encode()
    finally:
        for process in running:
            _end(process)
        os.close(read_end)
        os.close(write_end)
        shutil.rmtree(folder, ignore_errors=True)


def _start(command: list[str], config: str, folder: str, descriptors: list[int]) -> subprocess.Popen[bytes]:
    with tempfile.TemporaryFile() as config_file:
        config_file.write(config.encode())
        config_file.seek(0)
        return subprocess.Popen(
            command,
            stdin=config_file,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder},
            pass_fds=descriptors,
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read_token(read_end: int, length: int) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return os.read(read_end, length + 1)
    return b""


@cache
def _command() -> tuple[str, ...]:
    """Return the command that runs `confined.py` in its own namespaces, after checking that it works.

    Raises:
        UserError: The command does not work on this system.
    """
    path = shutil.which("unshare")
    why = "there is no `unshare` (Linux, util-linux)"
    if path is not None:
        script = str(Path(confined.__file__))
        command = (path, *_NAMESPACE_OPTIONS, sys.executable, "-I", "-S", script)
        config = json.dumps({"limits": _LIMITS, "disk_bytes": _DISK_BYTES})
        with tempfile.TemporaryDirectory(prefix="exitbench-code-") as folder:
            check = subprocess.run(
                [*command, "try"], input=config, capture_output=True, text=True, check=False, cwd=folder
            )
        if check.returncode == 0:
            return command
        why = f"it cannot be confined: {check.stderr.strip().splitlines()[-1:] or check.returncode}"
    raise UserError(
        f"What the model wrote is run without a network only, and on this system {why}. Allowed: Linux 5.12 or later "
        "on x86-64 or ARM, or a container there, with user namespaces."
    )


def mbpp_examples() -> list[dict[str, Any]]:
    """Return lm-eval's few-shot examples of MBPP, parsed from its source code.

    Importing the module would need a package that is not installed.
    """
    import lm_eval.tasks

    path = Path(lm_eval.tasks.__file__).parent / "mbpp" / "utils.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == "list_fewshot_samples":
            (returned,) = (statement for statement in node.body if isinstance(statement, ast.Return))
            assert returned.value is not None
            examples: list[dict[str, Any]] = ast.literal_eval(returned.value)
            return examples
    raise UserError(f"{path} has no list_fewshot_samples. Allowed: lm-eval 0.4.13.")
