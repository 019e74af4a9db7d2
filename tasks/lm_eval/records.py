"""Records of lm-eval as JSON."""

import base64
import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Return a record as JSON has it: what is no number is null, what has no form of its own is its text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if hasattr(value, "tolist"):  # numpy's
        return plain(value.tolist())
    return str(value)
