"""Quiet lm-eval's logger while this project drives it: it warns of every task whose records we hand over ourselves."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_lm_eval() -> Iterator[None]:
    """Log only lm-eval's errors as long as the context is open."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
