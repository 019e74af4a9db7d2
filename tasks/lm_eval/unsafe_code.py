"""Runs code that a model wrote, where somebody has said that it may be run.

A process of its own, in a new group and an empty folder, without a network (a network namespace of its own), without
the environment, with limits of time, memory, files and processes. That guards against mistakes: the code can still read
what its user can read. Whoever fears more runs ExitBench in a container.
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

from exitbench.errors import UserError, told

CPU_SECONDS: Final = 3
"""As long as lm-eval gives a solution."""
_WALL_SECONDS: Final = 20.0
_MEMORY_BYTES: Final = 1 << 30
_FILE_BYTES: Final = 1 << 20

# The token is written only once the program has come to its end: exit codes and output are the program's own to fake.
_RUNNER: Final = """
import json, os, resource, sys
given = json.load(sys.stdin)
for name, most in given["limits"].items():
    resource.setrlimit(getattr(resource, name), (most, most))
exec(compile(given["program"], "<model>", "exec"), {"__name__": "__main__"})
os.write(given["descriptor"], given["token"].encode())
"""
_LIMITS: Final = {
    "RLIMIT_CPU": CPU_SECONDS,
    "RLIMIT_AS": _MEMORY_BYTES,
    "RLIMIT_FSIZE": _FILE_BYTES,
    "RLIMIT_NPROC": 0,
    "RLIMIT_CORE": 0,
}
# Nothing that the program starts outlives it: the namespace of its processes ends with it.
_APART: Final = ("--user", "--map-root-user", "--net", "--ipc", "--pid", "--fork", "--kill-child")


def pass_at_1(references: list[str], predictions: list[str]) -> float:
    """Return the share of programs that run through their tests, as lm-eval's metric of this name."""
    passed = [runs_through(f"{code}\n{tests}") for tests, code in zip(references, predictions, strict=True)]
    return sum(passed) / len(passed)


def runs_through(program: str) -> bool:
    """Return whether a program comes to its end without an error, within the limits.

    Raises:
        UserError: This system cannot run a program without a network.
    """
    command = [_unshare(), *_APART, sys.executable, "-I", "-S", "-c", _RUNNER]
    token = secrets.token_hex(16)
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    folder = tempfile.mkdtemp(prefix="exitbench-code-")
    try:
        given = {"program": program, "token": token, "descriptor": write_end, "limits": _LIMITS}
        _run(command, json.dumps(given), folder, write_end)
        return _said(read_end, len(token)) == token.encode()
    finally:
        os.close(read_end)
        os.close(write_end)
        shutil.rmtree(folder, ignore_errors=True)


def _run(command: list[str], given: str, folder: str, write_end: int) -> None:
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={"PATH": os.defpath, "HOME": folder},
        pass_fds=(write_end,),
        start_new_session=True,
    )
    try:
        process.communicate(given.encode(), timeout=_WALL_SECONDS)
    except (subprocess.TimeoutExpired, BrokenPipeError):
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _said(read_end: int, length: int) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return os.read(read_end, length + 1)
    return b""


@cache
def _unshare() -> str:
    """The program that takes the network away.

    Raises:
        UserError: There is none, or it may not be used.
    """
    path = shutil.which("unshare")
    why = "there is no `unshare` (Linux, util-linux)"
    if path is not None:
        tried = subprocess.run([path, *_APART, "true"], capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            return path
        why = f"`unshare` may not be used: {told(RuntimeError(tried.stderr))}"
    raise UserError(
        f"What the model wrote is run without a network only, and on this system {why}. Allowed: a system, or a "
        "container, with user namespaces."
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
