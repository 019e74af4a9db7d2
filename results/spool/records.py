"""Kinds of records that a spool keeps next to its attempts, by the names of their folders and files.

    <spool>/trainings/<weights_sha256>/     <spool>/rescores/<attempt_id>/<digest>/     <spool>/imports/<digest>/
    <spool>/vocabularies/<tokenizer_sha256>/    <spool>/tags/<attempt_id>/<digest>/     <spool>/perf/<digest>.json

Each record is complete or absent. Names that begin with a dot are of partially written records.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exitbench.errors import UserError
from exitbench.results.spool.schema import ATTEMPT_ID, SHA256, SHORT_SHA256


@dataclass(frozen=True)
class RecordKind:
    """Kind of record that a spool keeps next to its attempts, such as trainings or rescores.

    Attributes:
        folder: Name of the spool's subfolder with these records.
        names: Pattern of the names at each level below that folder; the last one is for the record itself.
        is_file: True if a record is a file, not a folder.
    """

    folder: str
    names: tuple[re.Pattern[str], ...]
    is_file: bool = False


TRAINING: Final = RecordKind("trainings", (SHA256,))
VOCABULARY: Final = RecordKind("vocabularies", (SHA256,))
RESCORE: Final = RecordKind("rescores", (ATTEMPT_ID, SHORT_SHA256))
TAG: Final = RecordKind("tags", (ATTEMPT_ID, SHORT_SHA256))
IMPORT: Final = RecordKind("imports", (SHORT_SHA256,))
BENCHMARK: Final = RecordKind("perf", (re.compile(rf"{SHORT_SHA256.pattern}\.json"),), is_file=True)
RECORD_KINDS: Final = (TRAINING, VOCABULARY, RESCORE, TAG, IMPORT, BENCHMARK)


def records(spool_root: Path, kind: RecordKind) -> tuple[list[Path], list[str]]:
    """Return the paths of a spool's records of one kind, and a message per other file or folder among them.

    Raises:
        UserError: A folder cannot be listed.
    """
    top = spool_root / kind.folder
    if top.is_symlink():
        return [], [link_message(top)]
    folders, problems = ([top] if top.is_dir() else []), []
    for form in kind.names:
        matching = []
        for path in (path for folder in folders for path in _visible(folder)):
            if fault := _fault(path, form, is_file=kind.is_file and form is kind.names[-1]):
                problems.append(fault)
            else:
                matching.append(path)
        folders = matching
    return folders, problems


def _visible(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"The spool folder {folder} cannot be listed: {error.strerror}.") from error


def _fault(path: Path, form: re.Pattern[str], *, is_file: bool) -> str | None:
    if path.is_symlink():
        return link_message(path)
    if not form.fullmatch(path.name):
        return f"{path}: is no record by its name, which is not of the form {form.pattern}."
    if not (path.is_file() if is_file else path.is_dir()):
        return f"{path}: is no {'regular file' if is_file else 'folder'}."
    return None


def link_message(path: Path) -> str:
    """Return the message that a path in a spool is a link, through which nothing is read."""
    return f"{path}: is a link, and nothing is read through one. Put what it leads to in its place."
