"""Runs code that a model wrote, where somebody has said that it may be run.

Two processes (`confined.py`): the program's, and that of the tests, which decides and which the program cannot reach.
Each has namespaces of its own, so that there is no network, no environment and no process that outlives it; no sockets,
Unix sockets neither; a small file system of its own for what it writes, all others read-only; and limits of time,
memory and processes. The program can still read what its user can read. Whoever fears more runs ExitBench in a
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
"""As long as lm-eval gives a solution."""
_WALL_SECONDS: Final = 20.0
_MEMORY_BYTES: Final = 1 << 30
_FILE_BYTES: Final = 1 << 20
_DISK_BYTES: Final = 1 << 24
"""Of all files together, which lie in memory."""

_LIMITS: Final = {
    "RLIMIT_CPU": CPU_SECONDS,
    "RLIMIT_AS": _MEMORY_BYTES,
    "RLIMIT_FSIZE": _FILE_BYTES,
    "RLIMIT_NPROC": 0,
    "RLIMIT_CORE": 0,
    "RLIMIT_NOFILE": 64,
}
# Nothing that the program starts outlives it: the namespace of its processes ends with it.
_APART: Final = ("--user", "--map-root-user", "--net", "--ipc", "--mount", "--pid", "--fork", "--kill-child")


def pass_at_1(references: list[str], predictions: list[str]) -> float:
    """Return the share of programs that pass their tests, as lm-eval's metric of this name."""
    passed = [passes(code, tests) for tests, code in zip(references, predictions, strict=True)]
    return sum(passed) / len(passed)


def passes(program: str, tests: str) -> bool:
    """Return whether a program comes to its end without an error, and then its tests do, within the limits.

    Raises:
        UserError: This system cannot keep a program from the network and from files.
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
        for role, given in (("solution", solution), ("judge", judge)):
            fds = [number for key in ("receive", "send", "descriptor") if isinstance(number := given.get(key), int)]
            running.append(_start([*command, role], json.dumps(limits | given), folder, fds))
        for end in (*to_program, *from_program):
            os.close(end)  # so that each learns when the other has ended
        with contextlib.suppress(subprocess.TimeoutExpired):
            running[-1].wait(_WALL_SECONDS)
        return _said(read_end, len(token)) == token.encode()
    finally:
        for process in running:
            _end(process)
        os.close(read_end)
        os.close(write_end)
        shutil.rmtree(folder, ignore_errors=True)


def _start(command: list[str], given: str, folder: str, descriptors: list[int]) -> subprocess.Popen[bytes]:
    with tempfile.TemporaryFile() as given_file:
        given_file.write(given.encode())
        given_file.seek(0)
        return subprocess.Popen(
            command,
            stdin=given_file,
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


def _said(read_end: int, length: int) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return os.read(read_end, length + 1)
    return b""


@cache
def _command() -> tuple[str, ...]:
    """Return the command that runs `confined.py` in namespaces of its own, which was tried.

    Raises:
        UserError: It does not work on this system.
    """
    path = shutil.which("unshare")
    why = "there is no `unshare` (Linux, util-linux)"
    if path is not None:
        script = str(Path(confined.__file__))
        command = (path, *_APART, sys.executable, "-I", "-S", script)
        given = json.dumps({"limits": _LIMITS, "disk_bytes": _DISK_BYTES})
        with tempfile.TemporaryDirectory(prefix="exitbench-code-") as folder:
            tried = subprocess.run(
                [*command, "try"], input=given, capture_output=True, text=True, check=False, cwd=folder
            )
        if tried.returncode == 0:
            return command
        why = f"it cannot be confined: {tried.stderr.strip().splitlines()[-1:] or tried.returncode}"
    raise UserError(
        f"What the model wrote is run without a network only, and on this system {why}. Allowed: Linux 5.12 or later "
        "on x86-64 or ARM, or a container there, with user namespaces."
    )


def mbpp_examples() -> list[dict[str, Any]]:
    """Return lm-eval's examples of MBPP, out of its source: importing it needs a package that is not installed."""
    import lm_eval.tasks

    path = Path(lm_eval.tasks.__file__).parent / "mbpp" / "utils.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == "list_fewshot_samples":
            (returned,) = (one for one in node.body if isinstance(one, ast.Return))
            assert returned.value is not None
            examples: list[dict[str, Any]] = ast.literal_eval(returned.value)
            return examples
    raise UserError(f"{path} has no list_fewshot_samples. Allowed: lm-eval 0.4.13.")
