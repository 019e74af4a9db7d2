"""Worker events: one JSON object per line, through a pipe that carries nothing else.

::

  {"event": "wait", "cell": cell_id, "holder": str}             # another process runs the cell
  {"event": "held", "cell": cell_id}                            # that process has released it
  {"event": "start", "cell": cell_id, "label": str, "documents": int, "cells": int}     # cells sharing the decode
  {"event": "progress", "cell": cell_id, "done": int}           # documents finished so far
  {"event": "end", "cell": cell_id, "status": "ok" | "failed" | ...}
  {"event": "no_room", "cell": cell_id, "path": str, "why": str}    # the spool cannot be written; the worker ends

A worker runs third-party methods, so its events are validated before they are used.
"""

import json
from collections.abc import Collection
from typing import Any, Final

from exitbench.results.spool.schema import STATUSES

_KEYS: Final[dict[str, dict[str, type]]] = {
    "wait": {"holder": str},
    "held": {},
    "start": {"label": str, "documents": int, "cells": int},
    "progress": {"done": int},
    "end": {"status": str},
    "no_room": {"path": str, "why": str},
}
"""Keys of each event in addition to `event` and `cell`."""


def read_event(line: str, cell_ids: Collection[str]) -> dict[str, Any] | None:
    """Parse a JSON line as an event, a dictionary; return None if it is not a valid event of the worker's cells.

    Args:
        line: Line written by a worker.
        cell_ids: Ids of the cells of that worker.
    """
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    keys = _KEYS.get(word) if isinstance(event, dict) and isinstance(word := event.get("event"), str) else None
    if keys is None or event.keys() != {"event", "cell", *keys}:
        return None
    # `isinstance` would accept a bool as an int.
    if not isinstance(event["cell"], str) or any(type(event[key]) is not kind for key, kind in keys.items()):
        return None
    is_known = event["cell"] in cell_ids and event.get("status", "ok") in STATUSES
    counts = (event.get("documents", 0), event.get("done", 0), event.get("cells", 1) - 1)
    return event if is_known and min(counts) >= 0 else None
