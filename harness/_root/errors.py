"""UserError, the exception for bad input, and helpers that classify and format error messages.

Imports nothing from this project, so that methods, tasks and results can all raise `UserError`. The command line
prints the error without a traceback and exits with code 2.
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
    """Exception for bad input. The message names the wrong value, its place and the allowed values, on one screen.

    Examples:
        >>> try:
        ...     raise UserError(f"dtype is 'flot32'.{suggestion('flot32', ['float32', 'int8'])}")
        ... except UserError as error:
        ...     print(error)
        dtype is 'flot32'. Did you mean 'float32'? Allowed: float32, int8.
    """


def one_line(error: BaseException, most: int = 300) -> str:
    """Return an error's message on one line, cut to `most` characters."""
    words = " ".join(str(error).split())
    return words if len(words) <= most else f"{words[: most - 3]}..."


def no_room(error: BaseException) -> OSError | None:
    """Return the OSError in an error's cause chain that reports a full or read-only disk, or None if there is none."""
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
    """Return whether an error message, or the last line of a log, reports that no memory was left."""
    return any(sign in words for sign in _NO_MEMORY)


def suggestion(word: str, allowed: Iterable[str]) -> str:
    """Return the end of an error message: the closest allowed value, if one is similar, and all allowed values.

    Args:
        word: The value that the user wrote.
        allowed: Every accepted value.

    Examples:
        >>> suggestion("qualty", ["quality", "timing"])
        " Did you mean 'quality'? Allowed: quality, timing."
    """
    choices = sorted(allowed)
    close = get_close_matches(word, choices, n=1, cutoff=0.6)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Allowed: {', '.join(choices)}."
