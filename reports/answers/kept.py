"""Packs of the page before: of answers that are as they were then, digests are read and no tokens."""

import contextlib
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

from exitbench import reports
from exitbench.reports.answers.document_choice import Group
from exitbench.results import analysis
from exitbench.results.analysis.traces import TracedRun, content_digests
from exitbench.results.database.connection import Database
from exitbench.results.files.atomic import write_whole_file
from exitbench.results.files.formats import content_id, sources_sha256

_MAKES: Final = ("duckdb", "numpy", "pyarrow")
_NAME: Final = re.compile("[0-9a-f]{64}")
_DIGEST_BYTES: Final = hashlib.sha256().digest_size


def kept_packs(
    folder: Path, database: Database, groups: Sequence[Group], make: Callable[[Group], bytes]
) -> list[bytes]:
    """Return the pack of each group, as it was made before or made now; the folder is left with these alone.

    Each is named after all that it is made from. One that is damaged is made again.

    Args:
        folder: Where they lie; made where it does not exist, and nobody else's files in it are touched.
        database: An open database.
        groups: All of a page.
        make: Reads a group's rows and packs them.
    """
    names = _names(database, groups)
    packs = [
        _read(folder / name) or _made(folder / name, make(group)) for name, group in zip(names, groups, strict=True)
    ]
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if _NAME.fullmatch(path.name) and path.name not in names:
                path.unlink(missing_ok=True)
    return packs


def _made(path: Path, pack: bytes) -> bytes:
    with contextlib.suppress(OSError):  # it is made again then
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole_file(path, hashlib.sha256(pack).digest() + pack)
    return pack


def _read(path: Path) -> bytes | None:
    """Return what was written; nothing where it is not whole."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    pack = content[_DIGEST_BYTES:]
    return pack if hashlib.sha256(pack).digest() == content[:_DIGEST_BYTES] else None


def _names(database: Database, groups: Sequence[Group]) -> list[str]:
    digests = content_digests(database, *shown_by(groups))
    return [content_id([_code(), _asked(group), _contents(group, digests)]) for group in groups]


def shown_by(groups: Sequence[Group]) -> tuple[set[str], set[str]]:
    """Return the attempts and the documents whose rows are packed for a page."""
    attempts = {attempt for group in groups for run in group.runs for attempt in _attempts(run)}
    return attempts, {key for group in groups for key in group.shown_keys}


def _attempts(run: TracedRun) -> list[str]:
    """Return the attempts whose rows are packed for a run."""
    own = (run.attempt_id, run.probe_attempt_id, run.scores_attempt_id)
    return [attempt for attempt in own if attempt is not None]


def _asked(group: Group) -> object:
    return [group.shown_keys, [(_attempts(run), run.scores_attempt_id, run.blocks) for run in group.runs]]


def _contents(group: Group, digests: Mapping[str, list[str]]) -> object:
    """Return digests of what a group's pack is made from: rows of its attempts, and how its tokens are spelled."""
    of = [group.runs[0].tokenizer_sha256, *(attempt for run in group.runs for attempt in _attempts(run))]
    return [digests.get(one, []) for one in of]


@cache
def _code() -> str:
    """Digest of all that reads and packs."""
    return content_id([sources_sha256(reports), sources_sha256(analysis), *(version(name) for name in _MAKES)])
