"""States of a cell in a plan, and the states that each ``--retry`` value runs."""

from collections.abc import Mapping
from typing import Literal

State = Literal["new", "done", "stale", "failed"]
Retry = Literal["failed", "stale", "none", "all"]

RETRIED: Mapping[Retry, frozenset[State]] = {
    "none": frozenset({"new"}),
    "stale": frozenset({"new", "stale"}),
    "failed": frozenset({"new", "stale", "failed"}),
    "all": frozenset({"new", "stale", "failed", "done"}),
}
