"""Signal handling: Ctrl-C at any moment ends in a KeyboardInterrupt, whatever code is running.

Python raises KeyboardInterrupt between any two bytecode steps. Libraries convert it to other errors: a DuckDB query to
RuntimeError, a running import to ImportError. In a finalizer, where no caller can catch the exception, it is lost. So
this module records that an interrupt arrived.
"""

import logging
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Final, Self

_RESEND_DELAY_S: Final = 0.05
"""Delay in seconds before a lost interrupt is sent again."""

_NUMBERS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR2") if hasattr(signal, name))


class Interruptible:
    """Context manager that raises KeyboardInterrupt in place of any error that occurs after Ctrl-C or SIGTERM.

    On entry, a signal that does not raise KeyboardInterrupt keeps its handling: SIGINT in a shell's background jobs,
    SIGTERM by default.
    """

    def __init__(self) -> None:
        self._came = False
        self._changed: list[signal.Signals] = []

    def __enter__(self) -> Self:
        self._hook = sys.unraisablehook
        if threading.current_thread() is threading.main_thread():
            sys.unraisablehook = self._on_lost
            for number in _NUMBERS:
                if signal.getsignal(number) is signal.default_int_handler:
                    self._changed.append(number)
                    signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._changed:
            signal.signal(number, signal.default_int_handler)
        sys.unraisablehook = self._hook
        if self._came:
            logging.disable(logging.NOTSET)
        if self._came and error is not None and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt from error

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        logging.disable()  # libraries would log the errors to which they convert the interrupt
        raise KeyboardInterrupt

    def _on_lost(self, lost: Any) -> None:
        """Handle an exception that Python could only print: resend SIGINT if it is a lost KeyboardInterrupt."""
        if not self._came:
            self._hook(lost)
        elif isinstance(lost.exc_value, KeyboardInterrupt):
            main = threading.main_thread().ident
            assert main is not None, "the main thread runs"
            timer = threading.Timer(_RESEND_DELAY_S, signal.pthread_kill, (main, signal.SIGINT))
            timer.daemon = True
            timer.start()
