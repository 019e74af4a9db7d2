"""The one error a person who typed something wrong ever sees.

It lies beneath every package (it imports nothing of the project), so that methods, tasks and
results can all raise it and the command line prints it without a traceback and exits with code 2.
"""

import errno
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


class UserError(ValueError):
    """Bad input: says what was wrong, where, and what is allowed. Fits on one screen."""


def no_room(error: BaseException) -> OSError | None:
    """Return what the system said if an error came about because a disk is full or cannot be written."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _NO_ROOM:
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


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
