"""Checkpoints of the Hugging Face hub: found in its local cache, and downloaded into it only by `fetch`.

Only files with the names that the engines read are requested: never a pickle, never code. A cached commit consists of
links into `blobs/` that huggingface_hub created. They are followed, as in any folder that a user names
(`harness.reading.regular_files`), and their targets are read as data.
"""

from __future__ import annotations

import glob
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from exitbench.errors import UserError, no_room, one_line
from exitbench.harness.engine.checkpoints.files import (
    CONFIG,
    INDEX,
    SINGLE,
    TRAINED_BESIDE,
    check_plain,
    join_names,
    read_index,
)
from exitbench.harness.engine.checkpoints.tokenizer_files import PATTERNS, tokenizer_files
from exitbench.harness.reading.config_values import shortened
from exitbench.harness.reading.hub_responses import LISTED_FILES, checked_responses, is_commit, require_size
from exitbench.harness.reading.regular_files import read_json
from exitbench.terminal import number_of

PREFIX = "hub:"
DEFAULT_REVISION = "main"

_FORM = f"{PREFIX}OWNER/NAME or {PREFIX}OWNER/NAME@REVISION, a branch, tag or commit"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")

_SMALL = (CONFIG, "generation_config.json", "chat_template.jinja")
_TOKENIZER_ENDINGS = (".json", ".txt", ".model", ".spm")
"""File endings of tokenizer files: `PATTERNS` alone would match a `tokenizer.py` too."""


@dataclass(frozen=True)
class HubName:
    """A hub repository at a branch, tag or commit; ``str`` gives ``hub:OWNER/NAME@REVISION``, as in suites."""

    repository: str
    revision: str = DEFAULT_REVISION

    def __str__(self) -> str:
        return f"{PREFIX}{self.repository}@{self.revision}"


@dataclass(frozen=True)
class Located:
    """A checkpoint's folder on this machine.

    Attributes:
        folder: Folder with the checkpoint's files.
        source: Origin, such as ``hub:OWNER/NAME@COMMIT``; None for a user's own folder.
        remarks: Notes about the checkpoint (not errors), one sentence each.
    """

    folder: Path
    source: str | None = None
    remarks: tuple[str, ...] = ()


def read_name(written: str) -> HubName | None:
    """Return the hub repository that a user's text names; None if the text does not start with ``hub:``.

    Raises:
        UserError: The text starts with ``hub:`` but is not a valid hub name.
    """
    if not written.startswith(PREFIX):
        return None
    repository, at, revision = written.removeprefix(PREFIX).partition("@")
    revision = revision if at else DEFAULT_REVISION
    # Two dots or dashes have a meaning in the cache's folder names.
    doubled = ".." in written or "--" in repository
    if doubled or not _NAME.fullmatch(repository) or not _REVISION.fullmatch(revision):
        raise UserError(f"{shortened(written)} is not the name of a model; allowed: {_FORM}.")
    return HubName(repository, revision)


def locate(written: str | Path, *, query_hub: bool, say: Callable[[str], object]) -> Located:
    """Return the folder and the origin of a model that the user names by a folder or a hub name.

    Args:
        written: A folder, or a hub name such as ``hub:OWNER/NAME``.
        query_hub: Whether the hub may be queried for what is missing; otherwise only its cache is read.
        say: Receives a message about each download.

    Raises:
        UserError: The name is invalid, the model is not on this machine, or it cannot be fetched.
    """
    name = read_name(written) if isinstance(written, str) else None
    if name is None:
        return Located(Path(written))
    located = fetch(name, say) if query_hub else find(name)
    if located is None:
        raise not_here(name)
    return located


def not_here(name: HubName) -> UserError:
    """Return the error for a model that is missing or incomplete in the hub's cache."""
    from huggingface_hub import constants

    return UserError(
        f"{name} is not on this machine, or not whole (the hub's cache is {constants.HF_HUB_CACHE}). `--hub` fetches "
        "it (from Python: hub=True); nothing is downloaded without it."
    )


def find(name: HubName) -> Located | None:
    """Return a model's folder in the hub's local cache; None if a file that would be read is missing there.

    Raises:
        UserError: The weight index names anything but files in its own folder.
    """
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name.repository, CONFIG, revision=name.revision)
    if not isinstance(config, str) or not is_commit(Path(config).parent.name):
        return None
    folder = Path(config).parent
    listing = _listing(name.repository, folder.name)
    names = [path.name for path in folder.iterdir()] if listing is None else listing
    if not _has_weights(names) or _missing(folder, names):
        return None
    unsure = (
        "the hub's cache does not say which files the repository has: some may be missing (`run --hub` queries the hub)"
    )
    return Located(folder, _source(name, folder.name), () if listing is not None else (unsure,))


def fetch(name: HubName, say: Callable[[str], object]) -> Located:
    """Query the hub for a model's current commit, download the files that the local cache lacks, and return the folder.

    Args:
        name: The model; if it names a commit that is completely cached, the hub is not queried.
        say: Receives a message about each download.

    Raises:
        UserError: No such model or revision, no access, no connection, no file that the engines read, or an interrupted
            download (completed files are kept, and the next call resumes from them).
    """
    if is_commit(name.revision) and (cached := find(name)) is not None and not cached.remarks:
        return cached
    commit, sizes = _query_hub(name)
    if CONFIG not in sizes:
        raise UserError(f"{name}: no {CONFIG} in the repository; allowed: checkpoints as transformers saves them.")
    if not _has_weights(sizes):
        found_names = sorted(path for path in sizes if path.endswith((".safetensors", ".bin", ".pt", ".pth", ".gguf")))
        raise UserError(
            f"{name}: no {SINGLE} and no {INDEX} in the repository (found {join_names(found_names) or 'no weights'}). "
            "Only safetensors weights of these names are fetched, never pickles."
        )
    folder = _download(name, commit, _small_files(sizes), sizes, say)
    # Small files first, so that unsupported models are refused before gigabytes are downloaded.
    check_plain(folder, read_json(folder / CONFIG))
    tokenizer_files(folder)
    _download(name, commit, _weight_files(folder, sizes), sizes, say)
    if missing := _missing(folder, sizes):
        raise UserError(
            f"{name}: no {join_names(missing)} in {folder} after the download: the repository lacks it, or something "
            "that is no file lies there."
        )
    return Located(folder, _source(name, commit))


def _source(name: HubName, commit: str) -> str:
    return str(HubName(name.repository, commit))


# ------------------------------------------------------------------------------------------- which files


def _small_files(names: Collection[str]) -> list[str]:
    """Return the configuration, tokenizer and weight index files among a repository's files, sorted.

    Files in subfolders are left out.
    """
    index = () if SINGLE in names else (INDEX,)
    return sorted(name for name in names if name in (*_SMALL, *index) or _of_tokenizer(name))


def _of_tokenizer(name: str) -> bool:
    plain = not set(name) & set("/\\\0") and name.endswith(_TOKENIZER_ENDINGS)
    return plain and any(fnmatchcase(name, pattern) for pattern in PATTERNS)


def _has_weights(names: Collection[str]) -> bool:
    return SINGLE in names or INDEX in names


def _weight_files(folder: Path, names: Collection[str]) -> list[str]:
    """Return the weight files and trained heads among a repository's files; shards are listed in the folder's index.

    Raises:
        UserError: The weight index names anything but files in its own folder.
    """
    weights = [SINGLE] if SINGLE in names else sorted(set(read_index(folder / INDEX).values()))
    return [*weights, *(name for name in TRAINED_BESIDE if name in names)]


def _missing(folder: Path, names: Collection[str]) -> list[str]:
    """Return the files that would be read and are missing in the folder; ``names`` are all files of the repository.

    Weight files are looked for only if no other file is missing.
    """
    small = [name for name in _small_files(names) if not (folder / name).is_file()]
    return small or [name for name in _weight_files(folder, names) if not (folder / name).is_file()]


def _listing(repository: str, commit: str) -> list[str] | None:
    """Return the paths of all files of a commit, recorded by huggingface_hub on download; None without a record."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        return [file.path for file in get_cached_repo_tree(repository, revision=commit)]
    except CachedRepoTreeNotFoundError:
        return None


# ------------------------------------------------------------------------------------------- the network


def _query_hub(name: HubName) -> tuple[str, dict[str, int]]:
    """Query the hub; return the commit of a model's revision, and the size in bytes of each file in that commit."""
    from huggingface_hub import HfApi

    with _as_user_errors(name), checked_responses(str(name), _free_bytes()):
        api = HfApi()
        # Query the hub first: `resolve_revision` caches its result, and uses the cached one if the hub does not answer.
        info = api.model_info(name.repository, revision=name.revision, files_metadata=True)
        commit = info.sha or ""
        if not is_commit(commit):
            raise UserError(f"{name}: the hub answers with the commit {shortened(commit)}, which is not a commit.")
        if api.resolve_revision(name.repository, revision=name.revision).resolved != commit:
            raise UserError(f"{name} was changed just now; the same command gets it as it is.")
        files = info.siblings or ()
        if len(files) > LISTED_FILES:
            raise UserError(f"{name}: the hub lists {len(files)} files; a model has at most {LISTED_FILES}.")
        return commit, {
            file.rfilename: require_size(file.size, str(name), shortened(str(file.rfilename))) for file in files
        }


def _download(
    name: HubName, commit: str, files: list[str], sizes: Mapping[str, int], say: Callable[[str], object]
) -> Path:
    """Download those of a commit's ``files`` that the local cache lacks; return the commit's folder in the cache.

    ``sizes`` are the bytes of each file, and ``say`` receives a message about the download.
    """
    from huggingface_hub import constants, snapshot_download, try_to_load_from_cache

    repository, free = name.repository, _free_bytes()
    with _as_user_errors(name), _bars_in_a_terminal(), checked_responses(str(name), free):
        cached = [isinstance(try_to_load_from_cache(repository, file, revision=commit), str) for file in files]
        if lacking := [file for file, here in zip(files, cached, strict=True) if not here]:
            needed = sum(sizes.get(file, 0) for file in lacking)
            if needed > free:
                raise UserError(
                    f"{name}: {number_of(len(lacking), 'file')} of {needed / 1e9:,.1f} GB do not fit on the disk of "
                    f"the hub's cache ({constants.HF_HUB_CACHE}), where {free / 1e9:,.1f} GB are free. Nothing was "
                    "fetched."
                )
            say(f"Fetching {number_of(len(lacking), 'file')}, {needed / 1e6:,.1f} MB, of {_source(name, commit)}")
        # snapshot_download takes patterns, in which brackets have a meaning.
        exactly = [glob.escape(file) for file in files]
        return Path(snapshot_download(repository, revision=commit, allow_patterns=exactly))


def _free_bytes() -> int:
    """Return the number of free bytes on the disk of the hub's local cache; its folder need not exist yet."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE).absolute()
    return shutil.disk_usage(next(parent for parent in (folder, *folder.parents) if parent.exists())).free


@contextmanager
def _bars_in_a_terminal() -> Iterator[None]:
    """Context manager that hides huggingface_hub's progress bars, unless standard error is a terminal."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if sys.stderr.isatty() or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextmanager
def _as_user_errors(name: HubName) -> Iterator[None]:
    """Context manager that converts exceptions of huggingface_hub or the network to `UserError`.

    Raises:
        UserError: Any exception was raised except that of a full disk, which passes unchanged.
    """
    from huggingface_hub import constants, errors

    hub, log_in = constants.ENDPOINT, "log in on this machine (`hf auth login`, or the environment's HF_TOKEN)"
    try:
        yield
    except UserError:
        raise
    except errors.GatedRepoError as error:
        raise UserError(
            f"{name}: access is restricted. Accept its terms on {hub}/{name.repository} and {log_in}."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(f"{name}: {hub} has no such model, or it is private: then {log_in}.") from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{name}: no such revision; allowed: a branch, a tag or a commit, all 40 digits.") from error
    except errors.OfflineModeIsEnabled as error:
        raise UserError(
            f"{name}: HF_HUB_OFFLINE is set, so the hub is not queried; unset it, or leave --hub out for what its "
            "cache on this machine has."
        ) from error
    # huggingface_hub does not wrap errors of its HTTP client, which differs between its major versions.
    except Exception as error:
        if no_room(error) is not None:
            raise
        cause = f"{type(error).__name__}: {one_line(error)}"
        raise UserError(
            f"{name}: could not be fetched from {hub} ({cause}). What has come is kept, and the same command goes on; "
            "without --hub the cache on this machine is read alone."
        ) from error
