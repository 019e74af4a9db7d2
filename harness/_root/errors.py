"""UserError: bad input, told in one screen with what is allowed and exit code 2, without a traceback.

It lies beneath every package (it imports nothing of the project), so that methods, tasks and
results can all raise it and the command line prints it without a traceback and exits with code 2.
"""

import errno
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})

# How those say it that have no error of their own for it: torch on a CPU, CUDA's libraries, C++, Python's last words.
_NO_MEMORY: Final = (
    "DefaultCPUAllocator",
    "enforce fail at alloc_cpu",
    "out of memory",
    "std::bad_alloc",
    "OutOfMemoryError",
    "MemoryError",
)


class UserError(ValueError):
    """Bad input: says what was wrong, where, and what is allowed. Fits on one screen."""


def told(error: BaseException, most: int = 300) -> str:
    """Return what a library's error says, on one line that is not too long."""
    words = " ".join(str(error).split())
    return words if len(words) <= most else f"{words[: most - 3]}..."


def no_room(error: BaseException) -> OSError | None:
    """Return what the system said if an error came about because a disk is full or cannot be written."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _NO_ROOM:
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error came about because the machine or its accelerator has no more memory."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    # Accelerators' and the database's own errors are known by name, so that nothing here imports their libraries.
    named = type(error).__name__ in ("OutOfMemoryError", "OutOfMemoryException")
    return named or (isinstance(error, RuntimeError) and says_out_of_memory(str(error)))


def says_out_of_memory(words: str) -> bool:
    """Return whether the message of an error, or the last line of a log, says that there was no more memory."""
    return any(sign in words for sign in _NO_MEMORY)


def suggestion(word: str, allowed: Iterable[str]) -> str:
    """Return ``' Did you mean X?'`` for a near miss, and what is allowed.

    Args:
        word: What the user wrote.
        allowed: Every accepted spelling.
    """
    choices = sorted(allowed)
    close = get_close_matches(word, choices, n=1, cutoff=0.6)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Allowed: {', '.join(choices)}."
