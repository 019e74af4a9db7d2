"""Where the project keeps what it can make again, for all runs of a user."""

import os
from pathlib import Path


def user_cache() -> Path:
    """Return the folder, which need not be there: ``~/.cache/exitbench``, or below ``XDG_CACHE_HOME``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "exitbench"
