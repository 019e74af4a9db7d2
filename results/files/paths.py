"""Strip home folders from paths in what is handed on."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

_PACKAGES: Final = re.compile(r"[~/][^\s\"':]*/((?:site|dist)-packages|lib/python3\.\d+)(?=/)")
"""Where an interpreter keeps what it runs."""
_ENDS: Final = r"(?=[/\\\s\"'`:;,)\]>]|$)"
"""What may follow a folder's path."""
_HOMES: Final = re.compile(r"(?<![\w.~/-])(?:/home|/Users)/[^/\s\"'`:;,)\]>]+|(?<![\w.~/-])/root" + _ENDS)
"""Where homes usually are: what was stored on another machine is of another user."""


def without_home(text: str) -> str:
    """Return a text with ``~`` for home folders, and ``...`` for what is above an interpreter's packages."""
    for home in _homes():
        text = re.sub(re.escape(home) + _ENDS, "~", text)
    return _PACKAGES.sub(r".../\1", _HOMES.sub("~", text))


def _homes() -> list[str]:
    """The home folder as people name it and as it is, the longest first."""
    named = [os.environ.get("HOME", ""), os.environ.get("USERPROFILE", "")]
    with suppress(ImportError, KeyError):  # Windows has none; a container's user may not be in it
        import pwd

        named.append(pwd.getpwuid(os.getuid()).pw_dir)
    paths = {path for home in named if home for path in (home.rstrip("/"), os.path.realpath(home))}
    return sorted((path for path in paths if len(Path(path).parts) > 1), key=len, reverse=True)
