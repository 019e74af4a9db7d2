"""UserError: bad input, reported on one screen with the allowed values.

Imports nothing from this project, so that methods, tasks and results can all raise it. The command line prints it
without a traceback and exits with code 2.
"""

import errno
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})

# Out-of-memory messages of libraries that raise no error class of their own: torch on CPU, CUDA libraries, C++, Python.
_NO_MEMORY: Final = (
    "DefaultCPUAllocator",
    "enforce fail at alloc_cpu",
    "out of memory",
    "std::bad_alloc",
    "OutOfMemoryError",
    "MemoryError",
)


class UserError(ValueError):
    """Bad input. The message says what was wrong, where, and what is allowed, and fits on one screen."""


def one_line(error: BaseException, most: int = 300) -> str:
    """Return a library's error message on one line, cut to `most` characters."""
    words = " ".join(str(error).split())
    return words if len(words) <= most else f"{words[: most - 3]}..."


def no_room(error: BaseException) -> OSError | None:
    """Return the underlying OSError if an error was caused by a full or read-only disk."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _NO_ROOM:
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the machine or its accelerator ran out of memory."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    # Errors of accelerators and DuckDB are recognized by class name, to avoid importing their libraries here.
    named = type(error).__name__ in ("OutOfMemoryError", "OutOfMemoryException")
    return named or (isinstance(error, RuntimeError) and says_out_of_memory(str(error)))


def says_out_of_memory(words: str) -> bool:
    """Return whether an error message, or the last line of a log, reports that memory ran out."""
    return any(sign in words for sign in _NO_MEMORY)


def suggestion(word: str, allowed: Iterable[str]) -> str:
    """Return ``' Did you mean X?'`` for a near miss, followed by the allowed values.

    Args:
        word: What the user wrote.
        allowed: Every accepted spelling.

    Examples:
        >>> suggestion("qualty", ["quality", "timing"])
        " Did you mean 'quality'? Allowed: quality, timing."
    """
    choices = sorted(allowed)
    close = get_close_matches(word, choices, n=1, cutoff=0.6)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Allowed: {', '.join(choices)}."
