"""An interrupt ends a run even if a library catches it; `tests/faults/test_interrupts.py` sends real signals."""

import logging
import signal
import threading
import time

import pytest

from exitbench.harness.processes.interrupts import Interruptible


def test_an_error_that_a_library_makes_of_an_interrupt_is_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), Interruptible():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("Query interrupted") from None


class Dying:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_that_is_lost_comes_again_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), Interruptible():
        Dying()
        time.sleep(60)
    assert capfd.readouterr().err == ""


def test_other_errors_stay_what_they_are_and_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="mine"), Interruptible():
        raise ValueError("mine")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interruptible():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_changes() -> None:
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


def test_what_a_library_logs_of_an_interrupt_is_not_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), Interruptible():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            logging.getLogger("library").error("Exception closing connection", exc_info=True)
    assert capfd.readouterr().err == ""
    assert logging.root.manager.disable == logging.NOTSET
