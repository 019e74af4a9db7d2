"""Per-user cache folder for data that can be recomputed, shared by all runs."""

import os
from pathlib import Path


def user_cache() -> Path:
    """Return the cache folder, which need not exist: ``~/.cache/exitbench``, or below ``XDG_CACHE_HOME``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "exitbench"
