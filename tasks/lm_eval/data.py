"""Data of lm-eval tasks: from the hub, from files that the task's YAML names, or from files that a suite names."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exitbench.errors import UserError, one_line, suggestion
from exitbench.tasks.lm_eval.configs import LeafConfig
from exitbench.tasks.lm_eval.readers import read_records
from exitbench.tasks.lm_eval.user_yaml import is_hub_name
from exitbench.tasks.lm_eval_bridge import NamedPartial
from exitbench.tasks.sources import path_inside

if TYPE_CHECKING:
    from datasets import Dataset

    from exitbench.tasks.base import Source

SPLIT_KEYS = ("test_split", "validation_split", "training_split", "fewshot_split")

FILE_FORMATS = {
    "json": frozenset({"data_files", "field"}),
    "csv": frozenset({"data_files", "sep", "delimiter", "quotechar", "header", "names", "column_names", "encoding"}),
    "text": frozenset({"data_files", "encoding", "keep_linebreaks", "sample_by"}),
    "parquet": frozenset({"data_files", "columns"}),
    "arrow": frozenset({"data_files"}),
}
"""Loaders of `datasets` that read files and run no code, and their allowed settings."""
_HUB_SETTINGS = frozenset({"revision", "data_files"})
_MAX_MATCHES = 10_000


def names_its_files(leaf: LeafConfig) -> bool:
    """Return whether a task's YAML names files with its data, instead of a data set of the hub."""
    return leaf.config.get("dataset_path") in FILE_FORMATS


def changes_for(leaf: LeafConfig, source: "Source") -> dict[str, Any] | None:
    """Return the values to replace in a task's configuration, so that lm-eval reads its data from a source.

    None if the source has no data for the task.

    Raises:
        UserError: The source does not fit the task, or a file is missing, damaged or in another format.
    """
    name = leaf.task_name
    if source.kind == "builtin":
        raise UserError(f'{name}: lm-eval has no generated data. Allowed: source = "local" or source = "hub".')
    if source.kind == "hub":
        return _from_hub(leaf)
    if source.files:
        return _from_files(leaf, source)
    if not names_its_files(leaf):
        path = leaf.config.get("dataset_path")
        raise UserError(
            f"{name}: its data set {path!r} is one of the hub, and the local source names no files. Allowed: files = "
            f'{{ {" = ..., ".join(splits(leaf.config))} = ... }}, or source = "hub", which downloads it from the hub.'
        )
    return {"dataset_kwargs": _with_files(leaf, source.data_dir)}


def unreadable(leaf: LeafConfig, source: "Source", error: Exception) -> UserError:
    """Return the error to raise if a task's data could not be read because of `error`."""
    name, path = leaf.config.get("dataset_name"), leaf.config.get("dataset_path")
    label = f"{path} ({name})" if name else f"{path}"
    if source.kind != "hub":
        return UserError(f"lm-eval: task {leaf.task_name!r}: {type(error).__name__}: {one_line(error)}")
    cause = f"{type(error).__name__}: {one_line(error, 150)}"
    return UserError(
        f"lm-eval: task {leaf.task_name!r}: data set {label} is not in the hub's cache and could not be "
        f"downloaded ({cause}). Without a network: copy a cache and name it with "
        'HF_HOME or HF_DATASETS_CACHE; or use source = "local" with '
        f"files = {{ {' = ..., '.join(splits(leaf.config))} = ... }}; "
        "HF_HUB_OFFLINE=1 keeps `datasets` from trying."
    )


def splits(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the data set's splits that a task uses, the evaluated split first."""
    fewshot = config.get("fewshot_config") or {}
    named = [*(config.get(key) for key in SPLIT_KEYS), fewshot.get("split") if isinstance(fewshot, dict) else None]
    return list(dict.fromkeys(str(split) for split in named if split))


def _from_hub(leaf: LeafConfig) -> dict[str, Any]:
    if not leaf.is_users:
        return {}
    path, dataset_kwargs = leaf.config.get("dataset_path"), leaf.config.get("dataset_kwargs") or {}
    if names_its_files(leaf):
        raise UserError(f'{leaf.task_name}: its YAML names files. Allowed: source = "local", with --data-dir.')
    if not is_hub_name(path):
        raise UserError(f"{leaf.task_name}: dataset_path is {path!r}. Needed: a name of the hub, such as 'owner/name'.")
    _allow(leaf, dataset_kwargs, _HUB_SETTINGS)
    for file in _file_names(leaf, dataset_kwargs.get("data_files")):
        if "://" in file or "::" in file or file.startswith(("/", "~")):
            raise UserError(f"{leaf.task_name}: data_files: {file!r} is no file of the data set.")
    return {}


def _with_files(leaf: LeafConfig, data_dir: Path | None) -> dict[str, Any]:
    """Return a task's `dataset_kwargs` with absolute paths of its files, which must be below the data folder."""
    dataset_kwargs = deepcopy(dict(leaf.config.get("dataset_kwargs") or {}))
    if leaf.is_users:
        _allow(leaf, dataset_kwargs, FILE_FORMATS[str(leaf.config["dataset_path"])])
    if data_dir is None:
        raise UserError(f"{leaf.task_name}: its YAML names files; --data-dir says which folder they are in.")
    files = dataset_kwargs.get("data_files")
    if isinstance(files, Mapping):
        dataset_kwargs["data_files"] = {str(split): _paths(leaf, data_dir, names) for split, names in files.items()}
    elif files:
        dataset_kwargs["data_files"] = _paths(leaf, data_dir, files)
    else:
        raise UserError(f"{leaf.task_name}: dataset_kwargs has no data_files.")
    return dataset_kwargs


def _paths(leaf: LeafConfig, data_dir: Path, value: object) -> list[str]:
    paths: list[str] = []
    for name in _file_names(leaf, value):
        if "://" in name or "::" in name:
            raise UserError(f"{leaf.task_name}: data_files: {name!r} is an address. Allowed: files below --data-dir.")
        pattern = path_inside(data_dir, name)
        matches = [pattern] if not set("*?[") & set(name) else sorted(data_dir.glob(name))[:_MAX_MATCHES]
        files = [path_inside(data_dir, str(path.relative_to(data_dir))) for path in matches]
        if not files or not all(path.is_file() for path in files):
            raise UserError(f"{leaf.task_name}: data_files: {name!r}: no such file below --data-dir {data_dir}.")
        paths += [str(path.resolve()) for path in files]
    return paths


def _file_names(leaf: LeafConfig, value: object) -> list[str]:
    """Return all file names in a `data_files` value: a name, a list of names, or either of them per split."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [name for entry in value.values() for name in _file_names(leaf, entry)]
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) for name in names):
        raise UserError(f"{leaf.task_name}: data_files: needed: names of files, in lists or not, by split or not.")
    return list(names)


def _allow(leaf: LeafConfig, settings: Mapping[str, Any], allowed: frozenset[str]) -> None:
    for key in settings:
        if key not in allowed:
            raise UserError(f"{leaf.task_name}: dataset_kwargs: {key!r} is not read.{suggestion(str(key), allowed)}")


def _from_files(leaf: LeafConfig, source: "Source") -> dict[str, Any] | None:
    """Return the configuration changes that replace a task's data set with a suite's files, one per split.

    None if the files have no records of the test or validation split.
    """
    if leaf.task_class is not None:
        raise UserError(f'{leaf.task_name} is written in Python and reads its data itself. Allowed: source = "hub".')
    if source.data_dir is None:
        raise UserError(f"{leaf.task_name}: a local source needs --data-dir, the folder that files are relative to.")
    known_splits, paths = splits(leaf.config), dict[str, Path]()
    for role, path in source.files:
        if role not in known_splits:
            raise UserError(f"{leaf.task_name}: files: unknown split {role!r}.{suggestion(role, known_splits)}")
        paths[role] = path_inside(source.data_dir, path)
    records = _records(leaf, paths)
    if not any(leaf.config.get(key) in records for key in ("test_split", "validation_split")):
        return None
    needed = _fewshot_split(leaf.config)
    if leaf.num_fewshot and needed is not None and needed not in records:
        raise UserError(
            f"{leaf.task_name}: its {leaf.num_fewshot} examples are from split {needed!r}, of which files has nothing. "
            f"Allowed: {needed} = a file, or num_fewshot = 0."
        )
    changes: dict[str, Any] = {key: None for key in SPLIT_KEYS if leaf.config.get(key) not in records}
    fewshot = leaf.config.get("fewshot_config")
    if isinstance(fewshot, dict) and fewshot.get("split") not in (None, *records):
        changes["fewshot_config"] = {**fewshot, "split": None}
    dataset_files = tuple((role, str(path)) for role, path in paths.items())
    return {
        **changes,
        "custom_dataset": NamedPartial(_datasets, *_dataset_names(leaf), dataset_files),
        "dataset_kwargs": None,
    }


def _dataset_names(leaf: LeafConfig) -> tuple[str, str | None]:
    return str(leaf.config.get("dataset_path")), leaf.config.get("dataset_name")


def _records(leaf: LeafConfig, paths: Mapping[str, Path]) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Return the records of a task's files, by split; splits without records are left out."""
    read = {split: read_records(*_dataset_names(leaf), split, path) for split, path in paths.items()}
    return {split: rows for split, rows in read.items() if rows}


def _fewshot_split(config: Mapping[str, Any]) -> str | None:
    """Return the split that lm-eval draws few-shot examples from; None if the configuration lists the examples."""
    fewshot = config.get("fewshot_config") or {}
    if isinstance(fewshot, dict) and fewshot.get("samples") is not None:
        return None
    explicit = fewshot.get("split") if isinstance(fewshot, dict) else None
    order = ("fewshot_split", "training_split", "validation_split", "test_split")
    return explicit or next((str(config[key]) for key in order if config.get(key)), None)


def _datasets(
    path: str, name: str | None, files: Sequence[tuple[str, str]], /, **_settings: Any
) -> "dict[str, Dataset]":
    from datasets import Dataset

    read = {split: read_records(path, name, split, Path(file)) for split, file in files}
    return {split: Dataset.from_list([dict(row) for row in rows]) for split, rows in read.items() if rows}
