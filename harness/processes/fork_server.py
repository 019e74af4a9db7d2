"""Fork server: starts Python processes in which the slow imports are done already.

Importing torch and transformers takes seconds, and a fork takes milliseconds. The server is a process that imports
`PRELOADED`, computes nothing, and forks a supervisor for every request. The supervisor forks the requested process,
reports its exit code, and kills it if the client ends. If environment variables or source files have changed, another
server takes its place.

The standard library's fork server is not used, because its children have the environment variables with which the
server was started.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NoReturn

PRELOADED: Final = (
    "torch",
    "transformers.modeling_utils",
    "datasets",
    "lm_eval.api.task",
    "exitbench.harness.conformance",
    "exitbench.harness.running.worker",
)
"""What workers import, without plug-ins. None of these modules starts a CUDA context or a thread of its own."""

SPINNING: Final = {"GOMP_SPINCOUNT": "10000"}
"""Environment variables that `spinning` sets."""

_CHANGING: Final = "PYTEST_CURRENT_TEST"
"""A variable that no module reads when it is imported, and that changes all the time."""

_LENGTH_BYTES: Final = 8
_MOST_DESCRIPTORS: Final = 8


def spinning() -> dict[str, str]:
    """Return environment variables that limit how long a torch thread spins while it waits for the other threads.

    The OpenMP library in torch's wheels lets threads spin 300,000 times, for some milliseconds. If another process
    occupies the core of one thread, all others spin (docs/measuring.md). Empty if the user has chosen a wait policy.
    """
    return {} if "OMP_WAIT_POLICY" in os.environ else SPINNING


class ForkedProcess:
    """Process started by the fork server, with the methods of `subprocess.Popen` that its callers need.

    It leads its own process group, and is killed when this object's process ends.
    """

    def __init__(self, control: socket.socket, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._control = control

    def poll(self) -> int | None:
        """Return the exit code, -N if signal N ended the process, or None while it runs."""
        if self.returncode is None and select.select([self._control], [], [], 0)[0]:
            with self._control:
                told = _read_line(self._control)
            self.returncode = int(told) if told else -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code.

        Raises:
            subprocess.TimeoutExpired: The process runs longer than `timeout` seconds.
        """
        if self.returncode is None and not select.select([self._control], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("forked process", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to the process; no effect after its end."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


Process = ForkedProcess | subprocess.Popen[bytes]


class _Server:
    """Handle of a running fork server, whose requests are sent over a socket."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.variables, self.client_pid = dict(variables), os.getpid()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=self.variables,
            )

    def fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> ForkedProcess | None:
        """Ask the server to fork a process, and return the process; None if the server has died.

        ``request`` has the module, its arguments, environment variables and folder; ``descriptors`` are passed on.
        """
        control, theirs = socket.socketpair()
        message = json.dumps(request).encode()
        try:
            with theirs:
                framed = len(message).to_bytes(_LENGTH_BYTES, "big")
                socket.send_fds(self._socket, [framed], [theirs.fileno(), *descriptors])
            self._socket.sendall(message)
            pid = _read_line(control)
        except OSError:
            pid = ""
        if not pid:
            control.close()
            return None
        return ForkedProcess(control, int(pid))

    def serves(self, variables: Mapping[str, str]) -> bool:
        """Return whether this process can use the server for a fork with these environment variables.

        The server must be alive, started by this process and with the same variables; source files must be unchanged.
        """
        if self.client_pid != os.getpid() or self._process.poll() is not None or self._imported is None:
            return False
        expected = self.variables | self._imported["variables"]
        if any(value not in (expected.get(name), self.variables.get(name)) for name, value in variables.items()):
            return False
        return self.variables.keys() <= variables.keys() and self._imported["files"] == _modified(
            self._imported["files"]
        )

    def await_imports(self) -> None:
        """Wait until the imports are done, or the server has died; return at once in a fork of its client."""
        if self.client_pid == os.getpid():
            _ = self._imported

    @cached_property
    def _imported(self) -> dict[str, Any] | None:
        """Environment variables set by the server's imports, and its modules' files; None if the imports failed."""
        line = _read_line(self._socket)
        return json.loads(line) if line else None

    def close(self) -> None:
        """End the server; processes that it has forked continue."""
        self._socket.close()
        if self.client_pid == os.getpid():  # otherwise this process is a fork of the client
            self._process.wait()


_server: _Server | None = None
_starting = threading.Lock()


def _server_for(variables: Mapping[str, str]) -> _Server:
    """Return a server with these environment variables; start one if needed. The caller must hold `_starting`."""
    global _server
    fixed = _fixed(variables)
    if _server is not None and not _server.serves(fixed):
        _server.close()
        _server = None
    _server = _server or _Server(fixed)
    return _server


def _fixed(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name != _CHANGING}


def prepare() -> None:
    """Start a fork server in the background if none runs, so that its imports are done when it is needed."""
    global _server
    with _starting:
        _server = _server or _Server(_fixed(_environment(None)))


def await_imports() -> None:
    """Wait until the imports of the fork server are done; return at once if this process has started none."""
    with _starting:
        if _server is not None:
            _server.await_imports()


def start(
    module: str,
    arguments: Sequence[str],
    descriptors: Sequence[int],
    *,
    output: int,
    stdin: int = subprocess.DEVNULL,
    variables: Mapping[str, str] | None = None,
) -> Process:
    """Start ``python -m module arguments`` as a fork of the server, or as a new process if the server has died.

    Args:
        module: The module to run.
        arguments: Its arguments.
        descriptors: File descriptors that it inherits. Their numbers in the new process are appended to its arguments.
        output: Descriptor of standard output and standard error, or DEVNULL.
        stdin: Descriptor of standard input, or DEVNULL.
        variables: Environment variables, in addition to this process's.
    """
    environment = _environment(variables)
    request = {"module": module, "arguments": list(arguments), "variables": environment, "folder": os.getcwd()}
    with open(os.devnull, "r+b", buffering=0) as nothing, _starting:
        standard = [nothing.fileno() if file == subprocess.DEVNULL else file for file in (stdin, output)]
        if (process := _server_for(environment).fork(request, [*standard, *descriptors])) is not None:
            return process
    command = (sys.executable, "-P", "-m", module, *arguments)
    return start_command(command, descriptors, output=output, stdin=stdin, variables=variables)


def start_command(
    command: Sequence[str],
    descriptors: Sequence[int],
    *,
    output: int,
    stdin: int = subprocess.DEVNULL,
    variables: Mapping[str, str] | None = None,
) -> Process:
    """Start a command as a new process in its own session; arguments other than ``command`` are as in `start`."""
    return subprocess.Popen(
        [*command, *map(str, descriptors)],
        stdin=stdin,
        stdout=output,
        stderr=output,
        pass_fds=descriptors,
        start_new_session=True,
        env=_environment(variables),
    )


def _environment(variables: Mapping[str, str] | None) -> dict[str, str]:
    return {**spinning(), **os.environ, **(variables or {})}


def _serve(requests: socket.socket) -> None:
    before = dict(os.environ)
    for module in PRELOADED:
        importlib.import_module(module)
    variables = {name: value for name, value in os.environ.items() if before.get(name) != value}
    own = [module for name, module in sys.modules.items() if name.startswith("exitbench.")]
    files = _modified([str(module.__file__) for module in own if getattr(module, "__file__", None)])
    requests.sendall(json.dumps({"variables": variables, "files": files}).encode() + b"\n")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the supervisors
    while (received := _receive(requests)) is not None:
        request, descriptors = received
        if os.fork() == 0:
            requests.close()
            _supervise(request, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _modified(files: Iterable[str]) -> dict[str, int]:
    """Return the modification time of each existing file, in nanoseconds, by path."""
    times: dict[str, int] = {}
    for file in files:
        with contextlib.suppress(OSError):
            times[file] = os.stat(file).st_mtime_ns
    return times


def _receive(requests: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Receive the next fork request and its file descriptors; return None after the client has ended."""
    head, descriptors, _, _ = socket.recv_fds(requests, _LENGTH_BYTES, _MOST_DESCRIPTORS)
    if not head:
        return None
    message = b""
    while len(message) < int.from_bytes(head, "big"):
        if not (piece := requests.recv(1 << 16)):
            return None
        message += piece
    return json.loads(message), descriptors


def _supervise(request: dict[str, Any], control: int, stdin: int, output: int, *inherited: int) -> NoReturn:
    """Fork the requested process, send its process id to the client, wait for it, and send its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(control)
        _become(request, stdin, output, inherited)
    with contextlib.suppress(OSError):  # the process has done it itself, or ended
        os.setpgid(pid, pid)
    for descriptor in (stdin, output, *inherited):
        os.close(descriptor)
    with socket.socket(fileno=control) as client:
        threading.Thread(target=_kill_without, args=(client, pid), daemon=True).start()
        with contextlib.suppress(OSError):  # the client has ended
            client.sendall(f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)


def _kill_without(client: socket.socket, pid: int) -> None:
    """Kill a process group as soon as the client closes its end of the socket, for whatever reason."""
    with contextlib.suppress(OSError):
        client.recv(1)
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _become(request: dict[str, Any], stdin: int, output: int, inherited: Sequence[int]) -> NoReturn:
    """Set up descriptors and environment in a forked child, and run the requested module; never return."""
    with contextlib.suppress(OSError):  # the supervisor has done it
        os.setpgid(0, 0)
    for descriptor, place in ((stdin, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, place)
    for descriptor in {stdin, output}:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["variables"])
    os.chdir(request["folder"])
    sys.argv = [request["module"], *request["arguments"], *map(str, inherited)]
    code: object = 0
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    # A usual exit takes the modules apart, which takes most of a second after importing torch.
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


def _read_line(stream: socket.socket) -> str:
    """Read the next line from a socket; return an empty text if the other end is closed."""
    line = b""
    while not line.endswith(b"\n"):
        try:
            piece = stream.recv(1)
        except ConnectionResetError:  # the other end died with unread data
            return ""
        if not piece:
            return ""
        line += piece
    return line.decode().strip()


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        _serve(requests)
