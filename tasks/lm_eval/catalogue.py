"""Which tasks, groups and tags there are: those of the installed lm-eval, those shipped here, those of the user.

lm-eval parses its fourteen thousand YAML files whenever it starts, which takes ten seconds and more. What names they
define is kept in the user's cache folder, with the size and time of every file; what a task says is always read anew.
"""

import contextlib
import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exitbench.errors import UserError, suggestion
from exitbench.tasks.lm_eval.user_yaml import read_folder
from exitbench.user_cache import user_cache

if TYPE_CHECKING:
    from lm_eval.tasks._index import Entry

SHIPPED = Path(__file__).parent / "yaml"


@cache
def catalogue(include: str | None) -> "dict[str, Entry]":
    """Return what each name stands for; the user's names hide those of lm-eval, as in lm-eval.

    Args:
        include: Folder of the user's YAML files.

    Raises:
        UserError: The folder is not there, or a file in it is not what is allowed (`user_yaml`).
    """
    entries = {**_installed(), **_shipped()}
    if include is not None:
        own = _indexed(read_folder(Path(include)))
        for tag, entry in own.items():
            if not entry.cfg and tag in entries:  # a tag of both has the tasks of both
                entry.tags.update(entries[tag].tags)
        entries.update(own)
    return entries


def find(name: str, include: str | None) -> "Entry":
    """Return what a name stands for.

    Raises:
        UserError: Nothing, with the names that come close.
    """
    entries = catalogue(include)
    if name not in entries:
        from difflib import get_close_matches

        close = get_close_matches(name, entries, n=8, cutoff=0.6) or [key for key in sorted(entries) if name in key][:8]
        hint = suggestion(name, close) if close else ""
        raise UserError(
            f"lm-eval has no task, group or tag {name!r}{'' if include is None else f', nor has {include}'}.{hint} "
            f"`lm-eval ls tasks` lists what lm-eval has, {len(entries)} names."
        )
    return entries[name]


def shipped_names() -> tuple[str, ...]:
    """Return the names that YAML files which come along define, sorted."""
    return tuple(sorted(_shipped()))


def _shipped() -> "dict[str, Entry]":
    from lm_eval.tasks._index import TaskIndex

    found: dict[str, Entry] = TaskIndex.build([SHIPPED])
    return found


def _indexed(configs: list[dict[str, Any]]) -> "dict[str, Entry]":
    """Entries of configurations that were read here: lm-eval gets no path, so that it opens no file."""
    from lm_eval.tasks._index import TaskIndex

    entries: dict[str, Entry] = {}
    for config in configs:
        TaskIndex.process_cfg(config, None, entries)
    return entries


@cache
def _installed() -> "dict[str, Entry]":
    import lm_eval.tasks
    from lm_eval.tasks._index import Entry, Kind, TaskIndex

    root = Path(lm_eval.tasks.__file__).parent
    kept = user_cache() / f"lm-eval-tasks-{_stamp(root)}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        rows = json.loads(kept.read_text(encoding="utf-8"))
        return {
            name: Entry(name, Kind[kind], None if path is None else root / path, None, set(tags))
            for name, (kind, path, tags) in rows.items()
        }
    built: dict[str, Entry] = TaskIndex.build([root])
    rows = {
        name: (
            entry.kind.name,
            None if entry.yaml_path is None else str(entry.yaml_path.relative_to(root)),
            sorted(entry.tags),
        )
        for name, entry in built.items()
    }
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_name(f"{kept.name}.{os.getpid()}")
        partial.write_text(json.dumps(rows), encoding="utf-8")
        partial.replace(kept)
    return built


def _stamp(root: Path) -> str:
    """Digest of where lm-eval's YAML files are, and of their sizes and times."""
    digest = hashlib.sha256(str(root).encode())
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            if name.endswith("yaml"):
                status = os.stat(os.path.join(folder, name))
                digest.update(f"{folder}/{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
