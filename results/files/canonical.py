"""Canonical JSON: one spelling for every value, so that equal content has equal digests."""

import hashlib
import json
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
