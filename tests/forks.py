"""Processes of `python -m exitbench...`, as forks of one process that has the imports that most of them need.

A worker takes seconds for its imports and, on models as small as those of the tests, a fraction of one for all else.
With `started_as_forks` what a test starts is a fork in place of a new interpreter: a child of the test's process with
the descriptors, folder, environment and session that were asked for. So are the processes of a `spawn` pool, and those
that a fork starts itself. Whatever else is started, `python -c` among it, is what it always is.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NoReturn

_IMPORTED = ("exitbench.harness.running.worker", "exitbench.reports.render", "lm_eval.evaluator", "torch._dynamo")
_OF_TRANSFORMERS = ("T5ForConditionalGeneration", "GPT2LMHeadModel", "PreTrainedTokenizerFast")
_READ_AT_IMPORT = ("HF_HOME", "HF_HUB_", "HF_ENDPOINT", "HF_TOKEN", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "HOME")
"""How variables begin that modules look at when they are imported: where one is another, so is the process."""
_POOLED = "--multiprocessing-fork"
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Asked:
    """A process as it is asked for; its descriptors come beside, in the order of `numbers`."""

    words: list[str]
    folder: str
    variables: dict[str, str]
    numbers: list[int]
    own_session: bool


def _read(given: Sequence[Any], started_with: Mapping[str, str]) -> tuple[Asked, list[int]] | None:
    """What `fork_exec` is asked for, and the descriptors; None where that needs an interpreter of its own."""
    words = [os.fsdecode(word) for word in given[0]]
    rest = [word for word in words[1:] if word != "-P"]
    ours = rest[:1] == ["-m"] and rest[1].startswith("exitbench.")
    if words[0] != sys.executable or not (ours or rest[-1:] == [_POOLED]):
        return None
    pass_fds, folder, environment = given[3:6]
    p2cread, _, _, c2pwrite, _, errwrite, _, errpipe_write, _, own_session = given[6:16]
    variables = dict(os.environ)
    if environment is not None:
        pairs = (os.fsdecode(pair).partition("=") for pair in environment)
        variables = {name: value for name, _, value in pairs}
    if any(
        variables.get(name) != started_with.get(name)
        for name in {*variables, *started_with}
        if name.startswith(_READ_AT_IMPORT)
    ):
        return None
    standard = [0 if p2cread == -1 else p2cread, 1 if c2pwrite == -1 else c2pwrite, 2 if errwrite == -1 else errwrite]
    passed = [number for number in pass_fds if number != errpipe_write]
    where = os.getcwd() if folder is None else os.path.abspath(os.fsdecode(folder))
    return Asked(words, where, variables, [0, 1, 2, *passed], bool(own_session)), [*standard, *passed]


class Server:
    """The process that is forked; it starts when it is first needed, and ends with this one.

    Attributes:
        rests: Whether new interpreters are started instead.
    """

    def __init__(self) -> None:
        self.rests = False
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None

    def fork(self, asked: Asked, descriptors: Sequence[int]) -> int:
        """The id of a new child of this process."""
        with self._lock:
            connection = self._connection = self._connection or self._start()
            # The server's child starts it and ends: the orphan is for the next process above that takes orphans.
            _take_orphans(True)
            try:
                socket.send_fds(connection, [json.dumps(asdict(asked)).encode()], list(descriptors))
                answer = connection.recv(64)
            finally:
                _take_orphans(False)
        if not answer:
            raise RuntimeError("the process that is forked has ended")
        return int(answer)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # an interrupt from the terminal is for the tests
            )
        return ours


def _take_orphans(take: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(take), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


@contextlib.contextmanager
def started_as_forks() -> Iterator[Server]:
    """What this process starts meanwhile is a fork, where that is possible; see the head of this file."""
    server, started_with = Server(), dict(os.environ)

    def fork_exec(original: Callable[..., int], *given: Any) -> int:
        found = None if server.rests else _read(given, started_with)
        return original(*given) if found is None else server.fork(*found)

    with _replaced(fork_exec):
        yield server


@contextlib.contextmanager
def _replaced(fork_exec: Callable[..., int]) -> Iterator[None]:
    """Have `subprocess` and `multiprocessing` start processes by this, which is given the original too."""
    import _posixsubprocess

    original = _posixsubprocess.fork_exec
    places = [(_posixsubprocess, "fork_exec"), (subprocess, "_fork_exec")]
    for module, name in places:
        setattr(module, name, partial(fork_exec, original))
    try:
        yield
    finally:
        for module, name in places:
            setattr(module, name, original)


# ------------------------------------------------------------------------------------------------ in the server


def _serve(connection: socket.socket) -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    transformers = importlib.import_module("transformers")
    for name in _OF_TRANSFORMERS:
        getattr(transformers, name)  # imported by being asked for
    os.sched_getaffinity = lambda process: {0}  # as in tests: one core
    while True:
        message, received, _, _ = socket.recv_fds(connection, 1 << 20, 250)
        if not message:
            return
        read, write = os.pipe()
        if not os.fork():
            between = os.getpid()
            if child := os.fork():
                os.write(write, str(child).encode())
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.001)
            _become(Asked(**json.loads(message)), received)
        os.wait()
        connection.send(os.read(read, 64))
        for descriptor in (read, write, *received):
            os.close(descriptor)


def _become(asked: Asked, descriptors: Sequence[int]) -> NoReturn:
    """Go on as the process asked for, to its end."""
    free = max(asked.numbers) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, free) for descriptor in descriptors]
    for descriptor, number in zip(moved, asked.numbers, strict=True):
        os.dup2(descriptor, number)
    for descriptor in {int(name) for name in os.listdir("/proc/self/fd")} - set(asked.numbers):
        with contextlib.suppress(OSError):  # that of the folder listed
            os.close(descriptor)
    if asked.own_session:
        os.setsid()
    os.chdir(asked.folder)
    os.environ.clear()
    os.environ.update(asked.variables)
    for folder in reversed(asked.variables.get("PYTHONPATH", "").split(os.pathsep)):
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
    started_with = dict(os.environ)

    def fork_here(original: Callable[..., int], *given: Any) -> int:
        found = _read(given, started_with)
        if found is None:
            return original(*given)
        if not (child := os.fork()):
            _become(*found)
        return child

    with _replaced(fork_here):
        _end_with(partial(_run, asked.words))


def _run(words: Sequence[str]) -> None:
    if words[-1] == _POOLED:
        sys.argv = ["-c", _POOLED]
        exec(words[-2], {"__name__": "__main__"})
        return
    place = words.index("-m")
    if "-P" not in words[:place]:
        sys.path.insert(0, os.getcwd())
    _, module, *arguments = words[place:]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with(do: Callable[[], object]) -> NoReturn:
    """Do something with standard streams of its own, and end the process as Python would."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - to the end of the process
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    code: object = 0
    try:
        do()
    except SystemExit as end:
        code = end.code or 0
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF)


if __name__ == "__main__":
    sys.path.pop(0)  # a program has no working folder there
    _serve(socket.socket(fileno=int(sys.argv[1])))
