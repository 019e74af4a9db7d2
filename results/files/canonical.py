"""Canonical JSON: one spelling for every value, so that equal content has equal digests; digests of sources."""

import hashlib
import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any


def canonical_json(value: Any) -> str:
    """Return the JSON text of `value` with sorted keys, no spaces, and no NaN or infinity.

    Raises:
        ValueError: `value` holds NaN or infinity, which JSON does not have.
        TypeError: `value` holds something JSON does not have, or keys that do not sort.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_id(value: Any) -> str:
    """Return the SHA-256 (64 hex digits) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def source_files(package: ModuleType, pattern: str = "*.py") -> list[tuple[str, Path]]:
    """Return a package's files, by default those in Python, with their names in it; nothing that Python compiled."""
    return [
        (str(path.relative_to(folder)), path)
        for folder in package.__path__
        for path in sorted(Path(folder).rglob(pattern))
        if path.suffix != ".pyc" and path.is_file()
    ]


@cache
def sources_sha256(package: ModuleType) -> str:
    """Return the SHA-256 of the names and contents of all Python files of a package."""
    digest = hashlib.sha256()
    for name, path in source_files(package):
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
