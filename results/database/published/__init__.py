"""Published results of papers and their authors' files, and their digest; `rows` reads them."""

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

ROWS: Final = "published_results.csv"
RULES: Final = "comparable.toml"


def digest() -> str:
    """Digest of the sources."""
    return hashlib.sha256("\0".join(map(text, (ROWS, RULES))).encode()).hexdigest()


@cache
def text(name: str) -> str:
    """Return the text of one."""
    return (files(__name__) / name).read_text(encoding="utf-8")
