"""Stored choices of forms (implementations of matrix products), the same for all runs of a model on a machine.

They are files in the user's cache folder. The first process to store a choice decides for all: a process that measured
at the same time uses the stored choice instead of its own. A file that is damaged, or does not match its name, is
overwritten. If the file cannot be written, no choice is in effect.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.harness.reading.regular_files import read_json
from exitbench.results.files.formats import content_id
from exitbench.user_cache import user_cache


def cpu_model() -> str:
    """Return the processor's model name, or its architecture if the name is unknown."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        match = None
    return match[1] if match else platform.processor() or platform.machine()


def this_machine(threads: int) -> dict[str, Any]:
    """Return the entries of a cache key that describe this machine, for ``threads`` torch threads.

    They are the processor, the instruction set that torch uses, torch's version and the number of threads.
    """
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    return {"cpu": cpu_model(), "capability": capability, "torch": torch.__version__, "threads": threads}


_MOST_BYTES: Final = 2**16
_PREFIX: Final = "products-"

ChoiceKey = Mapping[str, Any]
"""Cache key of a choice: machine, library, threads, number format, and shapes with the forms of each."""


def stored_choices(key: ChoiceKey) -> dict[str, str] | None:
    """Return the form (matrix-product implementation) stored for each weight key (role and shape of a weight).

    None if no choices are stored for the cache key, or the file is damaged.
    """
    return _read_valid(_path(key), key)


def store_choices(key: ChoiceKey, chosen: Mapping[str, str]) -> dict[str, str] | None:
    """Store the form (matrix-product implementation) chosen for each weight; return the choices that are then stored.

    ``chosen`` maps weight keys (role and shape of a weight) to forms. If another process has stored choices for this
    cache key before, these are kept and returned. None if nothing can be stored.
    """
    path = _path(key)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({"key": key, "chosen": chosen}, indent=1, sort_keys=True), encoding="utf-8")
        try:
            os.link(partial, path)
        except FileExistsError:
            if _read_valid(path, key) is None:
                partial.replace(path)
    except OSError:
        return None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return _read_valid(path, key)


def list_choices(machine: ChoiceKey) -> Iterator[tuple[str, ChoiceKey, dict[str, str]]]:
    """Yield (id, cache key, form by weight key) for every choice stored for a machine, which `this_machine` describes.

    The id is part of the file's name. The weight key is the role and shape of a weight.
    """
    for path in sorted(user_cache().glob(f"{_PREFIX}*.json")):
        key = _content(path).get("key")
        if not isinstance(key, dict) or path != _path(key) or not machine.items() <= key.items():
            continue
        if key.keys() != {*machine, "threads", "dtype", "places"}:
            continue  # another version's
        with contextlib.suppress(KeyError, TypeError, AttributeError):  # a file of another program
            if (chosen := _read_valid(path, key)) is not None:
                yield path.stem.removeprefix(_PREFIX), key, chosen


def _path(key: ChoiceKey) -> Path:
    return user_cache() / f"{_PREFIX}{content_id(key)[:16]}.json"


def _read_valid(path: Path, key: ChoiceKey) -> dict[str, str] | None:
    """Return the form by weight key (role and shape of a weight) that a file stores.

    None if the file's cache key is not ``key``, or if a form is not available on this machine.
    """
    content = _content(path)
    chosen, places = content.get("chosen"), key["places"]
    if content.get("key") != key or not isinstance(chosen, dict) or chosen.keys() != places.keys():
        return None
    return chosen if all(chosen[place] in places[place]["forms"] for place in places) else None


def _content(path: Path) -> dict[str, Any]:
    try:
        return read_json(path, _MOST_BYTES)
    except UserError:
        return {}
