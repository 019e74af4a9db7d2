"""Lifelines: end child processes when their parent ends, for whatever reason.

The parent holds one end of a pipe and never writes to it. The system closes that end when the parent ends, even after
`kill -9`. The child then reads end-of-file at its end.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with(lifeline: int) -> None:
    """Start a thread that kills this process when the write end of a pipe is closed, i.e. when the parent ends.

    If this process leads a process group, the whole group is killed.

    Args:
        lifeline: File descriptor of the pipe's read end.
    """
    threading.Thread(target=_wait, args=(lifeline,), name="lifeline", daemon=True).start()


def end_with_starting_thread() -> None:
    """Make Linux kill this process when the thread that started it ends; do nothing on other systems.

    Unlike `end_with`, this also ends code that never releases the GIL. Use it only if the starting thread outlives the
    process, since Linux tracks the thread, not its process.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _wait(lifeline: int) -> None:
    with contextlib.suppress(OSError):  # this process closed the read end: the parent can no longer be observed
        while os.read(lifeline, 1):
            pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
