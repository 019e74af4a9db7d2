"""An interrupt ends a run even if a library catches it; `tests/faults/test_interrupts.py` sends real signals."""

import logging
import signal
import threading
import time

import pytest

from exitbench.harness.processes.interrupts import Interruptible


def test_error_raised_by_a_library_on_interrupt_becomes_keyboard_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), Interruptible():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("Query interrupted") from None


class Dying:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_swallowed_interrupt_is_raised_again_without_output(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), Interruptible():
        Dying()
        time.sleep(60)
    assert capfd.readouterr().err == ""


def test_other_errors_are_unchanged_and_the_signal_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="mine"), Interruptible():
        raise ValueError("mine")
    assert signal.getsignal(signal.SIGINT) is before


def test_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interruptible():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_interruptible_has_no_effect_outside_the_main_thread() -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            with Interruptible():
                pass
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed


def test_library_log_messages_during_an_interrupt_are_suppressed(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), Interruptible():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            logging.getLogger("library").error("Exception closing connection", exc_info=True)
    assert capfd.readouterr().err == ""
    assert logging.root.manager.disable == logging.NOTSET
