"""End child processes with their parent, however that one ends.

The parent holds one end of a pipe and never writes to it; the system closes that end with the parent, even after
`kill -9`, and whoever reads the other end is told.
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
    """End this process as soon as nobody holds the other end of a pipe; in a group of its own, the whole group.

    Args:
        lifeline: The end of the pipe that is read.
    """
    threading.Thread(target=_wait, args=(lifeline,), name="lifeline", daemon=True).start()


def end_with_starting_thread() -> None:
    """Have Linux end this process when the thread that started it does; elsewhere nothing.

    What `end_with` cannot do: end code that never lets go of the interpreter. It is for processes whose starting thread
    follows them to their end, since Linux goes by threads.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _wait(lifeline: int) -> None:
    with contextlib.suppress(OSError):  # somebody closed it: nothing says any more whether the parent is there
        while os.read(lifeline, 1):
            pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
