"""Python without Unix: code that reads results imports and uses nothing that Windows lacks.

The test runs a process that claims to be on Windows. Modules and names that Windows lacks are removed, and LockFileEx
is replaced by flock. Libraries are imported before that, because their Windows versions differ.
"""

import subprocess
import sys
from pathlib import Path

from exitbench import __version__

LIBRARIES = "import asyncio, shutil, socket, subprocess, tempfile, duckdb_engine, pyarrow.parquet"
MORE_LIBRARIES = "import concurrent.futures.process, jinja2, matplotlib.pyplot, rich.progress"
WITHOUT_UNIX = """
import ctypes, fcntl, os, signal, sys
from types import ModuleType, SimpleNamespace

def LockFileEx(handle, flags, reserved, low, high, overlapped, flock=fcntl.flock, bits=fcntl):
    try:
        flock(handle.value, (bits.LOCK_EX if flags & 2 else bits.LOCK_SH) | (bits.LOCK_NB if flags & 1 else 0))
    except BlockingIOError:
        return 0
    return 1

class NotOnWindows:
    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")
for name in MODULES:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, NotOnWindows())
for name in ("O_CLOEXEC", "O_DIRECTORY", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "fork", "getegid", "geteuid", "getgid",
             "getpgrp", "getuid", "killpg", "mkfifo", "pread", "pwrite", "sched_getaffinity", "setsid", "statvfs"):
    vars(os).pop(name, None)
for name in ("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2",
             "pthread_kill", "pthread_sigmask", "setitimer"):
    vars(signal).pop(name, None)
sys.platform = "win32"
sys.modules["msvcrt"] = SimpleNamespace(get_osfhandle=lambda descriptor: descriptor)
ctypes.WinDLL = lambda name, **options: SimpleNamespace(LockFileEx=LockFileEx)
ctypes.get_last_error = lambda: 33
"""
COMMAND = "from exitbench.harness.cli.main import main\nsys.exit(main(sys.argv[1:]))"
IMPORTS = """
from importlib import import_module
from pkgutil import walk_packages
import exitbench.reports, exitbench.results
for package in (exitbench.results, exitbench.reports):
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)
print(exitbench.__version__, "torch" in sys.modules)
"""
TWO_READERS_THEN_A_WRITER = """
from exitbench.results.files.atomic import lock
files = [open(sys.argv[1], "a") for _ in range(3)]
print([lock(file.fileno(), shared=shared) for file, shared in zip(files, (True, True, False))])
"""


def on_windows(script: str, *arguments: str, libraries: str = LIBRARIES) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", libraries + WITHOUT_UNIX + script, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_packages_results_and_reports_import_without_unix_modules_and_torch() -> None:
    done = on_windows(IMPORTS, libraries=f"{LIBRARIES}\n{MORE_LIBRARIES}")
    assert (done.returncode, done.stdout) == (0, f"{__version__} False\n"), done.stderr


def test_command_line_help_works_without_unix_modules() -> None:
    done = on_windows(COMMAND, "--help")
    assert done.returncode == 0, done.stderr
    assert "Start here" in done.stdout


def test_sql_query_works_without_unix_modules(few_database: Path) -> None:
    asked = ("sql", "FROM runs", "--runs", str(few_database.parent), "--format", "csv")
    done = on_windows(COMMAND, *asked)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 10


def test_readers_share_a_lock_that_a_writer_cannot_take(tmp_path: Path) -> None:
    assert on_windows(TWO_READERS_THEN_A_WRITER, str(tmp_path / "lock")).stdout == "[True, True, False]\n"
