"""Per-user cache folder, shared by all runs, for data that can be recomputed."""

import os
from pathlib import Path


def user_cache() -> Path:
    """Return the cache folder's path, which may not exist yet: ``~/.cache/exitbench``, or below ``XDG_CACHE_HOME``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "exitbench"
