"""Conformance checks in a subprocess, so that a method that hangs or ends its process does no harm.

The child process reads settings as JSON from its standard input. It writes to a pipe: one line after importing the
methods, then one JSON line per verdict. Output of methods is discarded. The child ends with its parent (`lifeline`).
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from tempfile import TemporaryFile
from typing import IO, Any

from exitbench.harness.conformance import ConformanceResult, checks_version
from exitbench.harness.processes.fork_server import start
from exitbench.harness.processes.lifeline import end_with, end_with_starting_thread

TIMEOUT_S = 120.0
"""Seconds allowed for checking one setting, and for importing the methods; most checks take half a second."""
_READY = "ready"


def examine_apart(settings: Sequence[Mapping[str, Any]], timeout_s: float = TIMEOUT_S) -> list[ConformanceResult]:
    """Check methods for conformance in a subprocess; return one verdict per setting, in order.

    A setting is a method with parameters. Its verdict is a failure if it hangs or ends the process. All later settings
    of the same method then fail too, without being checked.

    Args:
        settings: Mappings with ``name`` and ``params`` of the method, ``n_blocks`` and ``exit_blocks`` of the model.
        timeout_s: Seconds allowed per setting.
    """
    verdicts: list[ConformanceResult] = []
    ended: dict[str, str] = {}  # reason why the process ended, by method
    while len(verdicts) < len(settings):
        remaining = settings[len(verdicts) :]
        if why := ended.get(remaining[0]["name"]):
            verdicts.append(ConformanceResult((why,), checks_version()))
            continue
        child = _Child(remaining, timeout_s)
        try:
            verdicts += child.verdicts()
        finally:
            child.end()
        if len(verdicts) < len(settings):
            ended[settings[len(verdicts)]["name"]] = child.why
    return verdicts


class _Child:
    """Child process that checks settings (methods with parameters) one after the other.

    Attributes:
        why: Why the process ended or was given up before all settings were checked; set by `verdicts`.
    """

    def __init__(self, settings: Sequence[Mapping[str, Any]], timeout_s: float) -> None:
        self.why, self._timeout_s = "", timeout_s
        self._read_end, write_end = os.pipe()
        lifeline, self._lifeline = os.pipe()
        with TemporaryFile() as asked:
            asked.write(json.dumps([dict(setting) for setting in settings]).encode())
            asked.seek(0)
            # Its own process group: Ctrl-C in the terminal reaches only the parent, which ends the child.
            self._process = start(__name__, (), (write_end, lifeline), stdin=asked.fileno(), output=subprocess.DEVNULL)
        os.close(write_end)
        os.close(lifeline)

    def verdicts(self) -> Iterator[ConformanceResult]:
        """Yield the verdicts as the child writes them; if it ends or hangs before the last, set `why` to the reason."""
        lines = _lines(self._read_end, self._timeout_s)
        try:
            if next(lines, None) != _READY:
                self.why = f"importing the methods {self._ended()}"
                return
            for line in lines:
                yield ConformanceResult.from_json(json.loads(line))
        except TimeoutError:
            self.why = f"hangs: no answer within {self._timeout_s:g} s"
            return
        except (ValueError, KeyError, TypeError):
            self.why = "writes to where only the trial's verdicts belong"
            return
        self.why = self._ended()

    def end(self) -> None:
        """Kill the child and all processes in its group, and close the pipes."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._read_end)
        os.close(self._lifeline)

    def _ended(self) -> str:
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"ends the process it runs in, with {how}"


def _lines(read_end: int, timeout_s: float) -> Iterator[str]:
    """Yield the lines that arrive from a pipe, until it is closed at the other end.

    The first line reports that the methods were imported; it is given at least `TIMEOUT_S` seconds.

    Args:
        read_end: File descriptor of the pipe.
        timeout_s: Seconds allowed for each further line.

    Raises:
        TimeoutError: No line arrives in time.
    """
    buffer, deadline = b"", time.monotonic() + max(timeout_s, TIMEOUT_S)
    while True:
        if not select.select([read_end], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        if not (piece := os.read(read_end, 65536)):
            return
        *complete, buffer = (buffer + piece).split(b"\n")
        for line in complete:
            yield line.decode(errors="replace")
            deadline = time.monotonic() + timeout_s


def _main(settings: IO[str], verdicts: IO[str], lifeline: int) -> None:
    os.set_inheritable(verdicts.fileno(), False)  # processes started by a method must not keep the pipes open
    os.set_inheritable(lifeline, False)
    end_with_starting_thread()
    end_with(lifeline)
    import torch

    from exitbench.harness.conformance import Shape, examine
    from exitbench.methods.registry import get_method

    torch.set_num_threads(1)
    requests = json.load(settings)
    print(_READY, file=verdicts, flush=True)
    for request in requests:
        try:
            method = get_method(request["name"]).from_params(request["params"])
            result = examine(method, Shape(request["n_blocks"], tuple(request["exit_blocks"])))
        except Exception as error:  # the method object cannot be built
            result = ConformanceResult((f"{type(error).__name__}: {error}",), checks_version())
        print(json.dumps(result.to_json()), file=verdicts, flush=True)


if __name__ == "__main__":
    with open(int(sys.argv[1]), "w", encoding="utf-8") as pipe:
        _main(sys.stdin, pipe, int(sys.argv[2]))
