"""Signal handling: Ctrl-C at any moment is a KeyboardInterrupt, whatever it meets.

Python raises KeyboardInterrupt between any two steps. Libraries make other errors of it (a query of DuckDB's a
RuntimeError, a module that is being imported an ImportError), and where nobody can be told, as in a finaliser, it is
lost. So that one came is remembered.
"""

import logging
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Final, Self

_AGAIN_S: Final = 0.05
"""When an interrupt that was lost comes again."""

_NUMBERS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR2") if hasattr(signal, name))


class Interruptible:
    """A context in which every error that comes after an interrupt becomes a KeyboardInterrupt.

    Signals that do not interrupt (SIGINT of a shell's background jobs, SIGTERM by default) stay as they are.
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
        logging.disable()  # libraries log what they make of it
        raise KeyboardInterrupt

    def _on_lost(self, lost: Any) -> None:
        """Take an error that can be raised nowhere."""
        if not self._came:
            self._hook(lost)
        elif isinstance(lost.exc_value, KeyboardInterrupt):
            main = threading.main_thread().ident
            assert main is not None, "the main thread runs"
            timer = threading.Timer(_AGAIN_S, signal.pthread_kill, (main, signal.SIGINT))
            timer.daemon = True
            timer.start()
