"""Server that runs `exitbench` commands, and Python, in forks of itself, which need no imports of their own.

Each line of standard input is a request in JSON: the command's words, its folder, and the files for its standard input
and output. A command is `exitbench ...`, `python -m ...` or `python`. The reply is the exit code; for `python` alone,
which reads its input to the end, it comes at once. Processes that a command starts (workers, contract tests) are forks
too, since imports would take longer than their work. Generated documents and empty databases are made by the first
command that needs them. The server has one core, so a command has one worker.
"""

import contextlib
import importlib
import json
import os
import pickle
import pkgutil
import runpy
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

IMPORTED = ("torch._dynamo", "lm_eval.evaluator", "exitbench.harness.running.worker", "exitbench.reports.render")
PYTHON = """
import contextlib, io, json, os, sys, traceback
replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what workers print is no reply
names = {"__name__": "__main__"}
for line in sys.stdin:
    code, where = json.loads(line)
    printed, error = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(code, where, "exec"), names)
        except BaseException:
            error = traceback.format_exc()
    print(json.dumps([printed.getvalue(), error]), file=replies, flush=True)
"""


class Forked(subprocess.Popen[Any]):
    """`Popen` that runs `python -m exitbench...` and `python SCRIPT.py` in a fork of this process, which has imports.

    It starts other commands as usual.
    """

    def __init__(self, command: Sequence[Any], **options: Any) -> None:
        words = [str(word) for word in command] if not isinstance(command, str | bytes) else []
        if words[:1] == [sys.executable] and (program := _program(words[1:])) is not None:
            passed_fds, environment = set(options.get("pass_fds", ())), options.get("env")

            def run() -> None:
                for descriptor in {int(name) for name in os.listdir("/proc/self/fd")} - passed_fds - {0, 1, 2}:
                    with contextlib.suppress(OSError):  # that of the folder listed
                        os.close(descriptor)
                if environment is not None:
                    os.environ.clear()
                    os.environ.update(environment)
                end_with(program)

            options["preexec_fn"] = run
        super().__init__(command, **options)


def _program(arguments: Sequence[str]) -> Callable[[], None] | None:
    """Return what Python does with these arguments, if they name a module of ours or a script."""
    if "-m" in arguments:
        module, *rest = arguments[arguments.index("-m") + 1 :]
        return partial(run_module, module, *rest) if module.startswith("exitbench.") else None
    return partial(run_script, *arguments) if arguments and arguments[0].endswith(".py") else None


def end_with(do: Callable[[], object]) -> None:
    """Run a function with reopened standard streams, and end the process with the exit code that Python would give."""
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", closefd=False) for descriptor in (1, 2))
    code: object = 0
    try:
        do()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)


def run_module(module: str, *arguments: str) -> None:
    """Run a module as `python -P -m` does."""
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def run_script(path: str, *arguments: str) -> None:
    """Run a script as `python SCRIPT.py` does."""
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")


def make_once(shared: Path) -> None:
    """Keep generated documents and empty databases in a folder, for all forks."""
    from exitbench.results.database import connection, current
    from exitbench.results.database.access import mark_verified_in_process
    from exitbench.tasks import builtin

    generate, create = builtin.documents, connection._create

    def kept(name: str, make: Callable[[Path], object]) -> Path:
        if not (path := shared / name).exists():
            make(new := path.with_name(f"{name}.{os.getpid()}"))
            new.rename(path)
        return path

    def documents(*asked: Any, **named: Any) -> Any:
        name = json.dumps([asked, named]).replace("/", "")
        path = kept(name, lambda new: new.write_bytes(pickle.dumps(generate(*asked, **named))))
        return pickle.loads(path.read_bytes())

    def copy(path: Path) -> None:
        version = current.version()
        path.with_name(f"{path.name}.wal").unlink(missing_ok=True)
        shutil.copyfile(kept(f"{version}.duckdb", create), path)
        mark_verified_in_process(path, version)

    builtin.documents, connection._create = documents, copy


def serve(shared: Path) -> None:
    """Import the modules, then serve commands until standard input ends."""
    for name in IMPORTED:
        importlib.import_module(name)
    from transformers import PreTrainedTokenizerFast, T5ForConditionalGeneration  # noqa: F401 - imported by being asked for

    from exitbench import methods
    from exitbench.harness.cli.main import console
    from exitbench.harness.running import timing
    from exitbench.methods import registry
    from exitbench.reports import figures, tables
    from exitbench.reports.registry import discover

    discover(figures), discover(tables)  # imports matplotlib
    for module in pkgutil.iter_modules(methods.__path__, "exitbench.methods."):
        importlib.import_module(module.name)
    for method in registry._methods.values():
        registry.syntax_sha256(method)  # which every plan needs
    make_once(shared)
    timing._stop_reason = lambda *_: "rounds"  # after one round, since guides compare no times
    subprocess.Popen = Forked  # type: ignore[misc]
    for line in sys.stdin:
        words, folder, input_text, output = json.loads(line)
        if not (child := os.fork()):
            os.dup2(os.open(input_text, os.O_RDONLY), 0)
            os.dup2(os.open(output, os.O_WRONLY), 1)
            if words != ["python"]:
                os.dup2(1, 2)
            os.chdir(folder)
            sys.argv = words
            if words[:2] == ["python", "-m"]:
                sys.path.insert(0, folder)
                end_with(partial(run_module, *words[2:]))
            end_with(console if words != ["python"] else lambda: exec(PYTHON, {}))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if words != ["python"] else 0, flush=True)


if __name__ == "__main__":
    sys.path.pop(0)  # a program has no working folder there
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(sys.argv[1]) % len(os.sched_getaffinity(0))]})
    with tempfile.TemporaryDirectory() as folder:
        serve(Path(folder))
