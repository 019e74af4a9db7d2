"""Processes of the fork server: what they inherit, how they end, and that they do not outlive the server's client."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from exitbench.harness.processes import fork_server
from exitbench.harness.processes.fork_server import PRELOADED, ForkedProcess, Process, prepare, start
from exitbench.harness.running import worker


def write_empty_modules(folder: Path) -> None:
    """Write modules with which a fork server starts at once: an empty torch to import, and the others there already."""
    others = [name for name in PRELOADED if name != "torch"]
    (folder / "sitecustomize.py").write_text(f"""
import sys, types
sys.modules |= {{name: types.ModuleType(name) for name in {others}}}
""")
    (folder / "torch.py").write_text("import os; home = os.environ.get('HF_HOME')")


class Started:
    """Starter of a forked process that runs the given source; `run` returns its exit code and its output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, source: str, *arguments: str, **options: Any) -> Process:
        (self.folder / "asked.py").write_text(textwrap.dedent(source))
        with (self.folder / "log").open("w") as log:
            options = {"variables": {"PYTHONPATH": str(self.folder)}} | options
            return start("asked", arguments, options.pop("descriptors", ()), output=log.fileno(), **options)

    def run(self, source: str, *arguments: str, **options: Any) -> tuple[int, str]:
        code = self.begin(source, *arguments, **options).wait(30)
        return code, (self.folder / "log").read_text()


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Started:
    """Return a starter with one folder for all tests: each value of PYTHONPATH needs another fork server."""
    folder = tmp_path_factory.mktemp("modules")
    write_empty_modules(folder)
    return Started(folder)


# First, since earlier files may have started this server.
def test_server_with_the_real_imports_forks() -> None:
    assert isinstance(start("this", (), (), output=subprocess.DEVNULL), ForkedProcess)
    assert fork_server._server is not None and fork_server._server._imported is not None
    assert worker.__file__ in fork_server._server._imported["files"]


def test_process_has_the_imports_arguments_variables_folder_and_stdin(
    asked: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = """
        import os, sys
        print("torch" in sys.modules, __name__, sys.argv, os.getcwd(), os.environ["GOMP_SPINCOUNT"], sys.stdin.read())
        """
    given = tmp_path / "given"
    given.write_text("from a file")
    with given.open() as stdin:
        code, printed = asked.run(source, "one", stdin=stdin.fileno())
    assert code == 0
    assert printed == f"True __main__ ['{asked.folder / 'asked.py'}', 'one'] {tmp_path} 10000 from a file\n"


def test_passed_descriptors_are_appended_to_the_arguments(asked: Started) -> None:
    read, write = os.pipe()
    source = """
        import os, sys
        os.write(int(sys.argv[2]), sys.argv[1].encode())
        """
    assert asked.run(source, "told", descriptors=(write,)) == (0, "")
    os.close(write)
    assert os.read(read, 100) == b"told"
    assert os.read(read, 100) == b"", "no other process holds the descriptor"
    os.close(read)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("raise SystemExit(3)", 3),
        ("raise SystemExit('reason')", 1),
        ("raise SystemExit(None)", 0),
        ("raise KeyboardInterrupt", 130),
        ("import os; os._exit(7)", 7),
        ("import os; os.abort()", -signal.SIGABRT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_exit_codes_equal_those_of_a_regular_process(asked: Started, source: str, code: int) -> None:
    process = asked.begin(source)
    assert isinstance(process, ForkedProcess)
    assert process.wait(30) == code == process.poll()


def test_an_error_is_printed_with_its_traceback(asked: Started) -> None:
    code, printed = asked.run("def fails():\n    raise ValueError('reason')\nfails()\n")
    assert code == 1
    assert "asked.py" in printed and printed.endswith("ValueError: reason\n")


def test_changed_script_is_read_again(asked: Started) -> None:
    for text in ("first", "then another"):
        assert asked.run(f"print('{text}')") == (0, f"{text}\n")


def test_process_can_be_signalled_and_waited_for(asked: Started) -> None:
    process = asked.begin("import time; time.sleep(60)")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == -signal.SIGTERM
    process.send_signal(signal.SIGTERM)  # without effect


def test_changed_environment_variables_reach_the_process_and_its_imports(
    asked: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import os, sys; print(os.environ.get('HF_HOME'), sys.modules['torch'].home)"
    monkeypatch.setenv("HF_HOME", "elsewhere")
    assert asked.run(source) == (0, "elsewhere elsewhere\n")
    monkeypatch.delenv("HF_HOME")
    assert asked.run(source) == (0, "None None\n")
    assert isinstance(asked.begin("pass"), ForkedProcess)


def server_after(asked: Started) -> object:
    assert asked.run("pass")[0] == 0
    return fork_server._server


def test_variable_set_by_an_import_does_not_restart_the_server(asked: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    first = server_after(asked)
    assert isinstance(first, fork_server._Server) and first._imported is not None
    first._imported["variables"]["SET_BY_AN_IMPORT"] = "1"
    monkeypatch.setenv("SET_BY_AN_IMPORT", "1")
    assert server_after(asked) is first
    monkeypatch.setenv("SET_BY_AN_IMPORT", "2")
    assert server_after(asked) is not first


def test_changed_source_file_restarts_the_server(asked: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    first = server_after(asked)
    monkeypatch.setattr(fork_server, "_modified", lambda files: {file: 0 for file in files})
    assert server_after(asked) is not first


def test_a_dead_server_is_replaced(asked: Started) -> None:
    asked.run("pass")
    assert fork_server._server is not None
    fork_server._server._process.kill()
    fork_server._server._process.wait()
    assert isinstance(asked.begin("pass"), ForkedProcess)


def test_regular_process_is_started_if_the_server_cannot_start(asked: Started, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError")
    variables = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{asked.folder}"}
    process = asked.begin("import sys; print('torch' in sys.modules, sys.argv[1:])", "one", variables=variables)
    assert isinstance(process, subprocess.Popen)
    assert process.wait(30) == 0
    assert (asked.folder / "log").read_text() == "False ['one']\n"


CLIENT = """
import sys, time
from exitbench.harness.processes.fork_server import start

with open(sys.argv[1], "w") as log:
    process = start("hangs", (), (), output=log.fileno())
print(process.pid, flush=True)
time.sleep(600)
"""
HANGS = """
import ctypes, os

print("begun", flush=True)
if os.fork() == 0:
    ctypes.PyDLL(None).sleep(600)  # holds the GIL, so that no thread of this process can end it
ctypes.PyDLL(None).sleep(600)
"""


def test_a_process_and_its_children_do_not_outlive_the_client(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / "hangs.py").write_text(HANGS)
    write_empty_modules(tmp_path)
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(tmp_path / "client.py"), str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        wait_until(lambda: "begun" in (tmp_path / "log").read_text())
        assert members(pid), "the process leads its group"
        client.kill()
    wait_until(lambda: not members(pid))


def members(group: int) -> list[str]:
    """Return the processes of a group, without those that only wait to be reaped."""
    lines = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if line.split()[0] == str(group) and not line.split()[1].startswith("Z")]


def wait_until(holds: Any) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_prepare_starts_the_server_once() -> None:
    prepare()
    server = fork_server._server
    prepare()
    assert server is not None and fork_server._server is server


def test_awaiting_a_server_that_died_while_it_imported_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(fork_server, "_server", server := fork_server._Server.__new__(fork_server._Server))
    server.client_pid, server._socket = os.getpid(), ours
    ours.sendall(b"a request that nobody reads")
    theirs.close()  # with unread data: the connection is reset
    with ours:
        fork_server.await_imports()
    assert server._imported is None
