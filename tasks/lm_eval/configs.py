"""Configurations of the lm-eval tasks that a name (task, group or tag) stands for, before any data set is read."""

import contextlib
import hashlib
import inspect
import json
import os
import sys
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exitbench.errors import UserError, one_line, suggestion
from exitbench.tasks.declared_choices import choice_config
from exitbench.tasks.document import canonical_json
from exitbench.tasks.lm_eval.settings import LmEvalSettings
from exitbench.tasks.lm_eval.user_yaml import read_folder
from exitbench.user_cache import user_cache

if TYPE_CHECKING:
    from lm_eval.tasks._index import Entry

_SHOWN_LEAVES = 12
# The task's name and location do not affect any result.
_NOT_HASHED = frozenset({"task", "task_alias", "tag", "group", "metadata", "num_fewshot"})


@dataclass(frozen=True)
class LeafConfig:
    """Single task of lm-eval: its name, and its configuration with all includes and settings applied.

    Attributes:
        is_users: True if the task is from the user's YAML files, in which no value may be code.
    """

    task_name: str
    config: Mapping[str, Any]
    is_users: bool = False

    @property
    def task_class(self) -> type[Any] | None:
        """Class of a task written in Python; None for a task defined by YAML alone."""
        task_class: type[Any] | None = self.config.get("class")
        return task_class

    @property
    def output_type(self) -> str:
        """lm-eval's type of the task's requests, such as "generate_until"."""
        output_type = self.config.get("output_type") or getattr(self.task_class, "OUTPUT_TYPE", None)
        return str(output_type or "generate_until")

    @property
    def num_fewshot(self) -> int:
        """Number of few-shot examples before each question."""
        return int(self.config.get("num_fewshot") or 0)

    @property
    def task_version(self) -> str:
        """Version that the task's metadata or class declares; "Yaml" if none is declared."""
        metadata = self.config.get("metadata")
        declared = metadata.get("version") if isinstance(metadata, dict) else None
        return str(declared if declared is not None else getattr(self.task_class, "VERSION", "Yaml"))

    @property
    def sha256(self) -> str:
        """SHA-256 of the configuration without names, metadata and the number of few-shot examples.

        Functions are represented by their names, since lm-eval's version covers their code.
        """
        hashed = {key: _plain(value) for key, value in self.config.items() if key not in _NOT_HASHED}
        return hashlib.sha256(canonical_json(hashed).encode()).hexdigest()

    def build(self, **changes: Any) -> Any:
        """Return lm-eval's own task object, with its data set read.

        Args:
            changes: Values that replace those of the configuration.
        """
        from lm_eval.api.task import ConfigurableTask

        config = {
            key: value for key, value in deepcopy({**self.config, **changes}).items() if key not in ("tag", "group")
        }
        if self.task_class is None:
            return ConfigurableTask(config=config)
        takes_config = "config" in inspect.signature(self.task_class).parameters
        task = self.task_class(config=config) if takes_config else self.task_class()
        if hasattr(task, "config") and hasattr(task.config, "task"):
            task.config.task = self.task_name
        return task


@cache
def leaf_configs(name: str, settings: LmEvalSettings) -> tuple[LeafConfig, ...]:
    """Return the configurations of the single tasks that a name stands for: a task, or members of a group or tag.

    The suite's `settings`, such as the number of few-shot examples, are applied.

    Raises:
        UserError: The name does not exist; or its tasks differ in requests or scoring, so that their scores cannot be
            combined.
    """
    if settings.declaration is not None:
        declared = LeafConfig(settings.declaration.name, choice_config(settings.declaration), is_users=True)
        return (_apply_settings(settings, declared),)
    built = _build(name, settings)
    if isinstance(built, LeafConfig):
        return (_apply_settings(settings, built),)
    leaves = built if isinstance(built, list) else _leaves_of(name, built)
    if not leaves:
        raise UserError(f"lm-eval: {name!r} has no tasks.")
    leaves = [_apply_settings(settings, leaf) for leaf in leaves]
    if len({leaf.task_name for leaf in leaves}) < len(leaves):
        raise UserError(f"lm-eval: {name!r} has a task twice.")
    _require_equal_configs(name, leaves)
    return tuple(leaves)


def _build(name: str, settings: LmEvalSettings) -> Any:
    from lm_eval.tasks._factory import TaskFactory

    entries = catalogue(settings.include)

    class Configs(TaskFactory):  # type: ignore[misc]
        """lm-eval's task factory, which stops before it reads data and returns configurations."""

        def _build_task(self, entry: Any, overrides: Mapping[str, Any] | None) -> LeafConfig:
            _require_isolated_scoring(entry)
            config = self._load_full_config(entry, overrides)
            return LeafConfig(str(config["task"]), config, entry.yaml_path is None)

    _without_downloads()
    try:
        return Configs().build(find(name, settings.include), registry=dict(entries))
    except ImportError as error:
        raise UserError(f"lm-eval: {name!r} needs a package that is not installed: {error}.") from None
    except SystemExit as error:  # the task needs something that is not installed, and its code exits
        raise UserError(f"lm-eval: {name!r} is not available here: its own code failed while it was loaded.") from error
    except UserError:
        raise
    except Exception as error:  # any error of the task's code at import
        why = f"{type(error).__name__}: {one_line(error, 200)}"
        raise UserError(
            f"lm-eval: {name!r} cannot be read: {why}. Code of metrics is not downloaded; one that lm-eval's own run "
            "has put into the cache of `evaluate` is used."
        ) from error


def _require_isolated_scoring(entry: Any) -> None:
    """Reject a task whose scoring runs model-written code in this process, before the task's own code is imported."""
    from lm_eval.tasks._yaml_loader import load_yaml

    if entry.yaml_path is None or entry.yaml_path.is_relative_to(SHIPPED):
        return
    if load_yaml(entry.yaml_path, resolve_func=False).get("unsafe_code"):
        raise UserError(
            f"lm-eval: task {entry.name!r} runs what the model wrote, in the harness itself. Allowed: mbpp, whose code "
            "runs in a process with limits and without a network (docs/tasks.md)."
        )


def _without_downloads() -> None:
    """Set the library `evaluate`, which some tasks import, to offline mode, so that it downloads no code of metrics."""
    os.environ["HF_EVALUATE_OFFLINE"] = "1"
    if "evaluate" in sys.modules:
        sys.modules["evaluate"].config.HF_EVALUATE_OFFLINE = True


def _leaves_of(name: str, group: Any) -> list[LeafConfig]:
    weighted = [metric.weight_by_size for metric in group.aggregate_metric_list or ()]
    leaves: list[LeafConfig] = []
    for child in group:
        if isinstance(child, LeafConfig):
            leaves.append(child)
        elif hasattr(child, "aggregate_metric_list"):
            leaves += _leaves_of(name, child)
        else:
            raise UserError(f"lm-eval: group {name!r} describes a task within itself; allowed: one per file.")
    if not all(weighted):
        raise _mixed_group_error(name, leaves, "its tasks count the same whatever their size")
    return leaves


def _apply_settings(settings: LmEvalSettings, leaf: LeafConfig) -> LeafConfig:
    """Return a task's configuration with the suite's settings applied, by the rules of lm-eval's command line."""
    config = dict(leaf.config)
    task_shots = config.get("num_fewshot")
    requested = settings.num_fewshot
    config["num_fewshot"] = (task_shots if requested is None or task_shots == 0 else requested) or 0
    if settings.gen_kwargs:
        if leaf.output_type != "generate_until":
            raise UserError(f"lm-eval: {leaf.task_name!r} generates no text, so gen_kwargs have no meaning for it.")
        overrides = {name: list(value) if isinstance(value, tuple) else value for name, value in settings.gen_kwargs}
        config["generation_kwargs"] = {**generation_of(config), **overrides}
    return LeafConfig(leaf.task_name, config, leaf.is_users)


def generation_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the generation arguments of a generation task, such as `until`; lm-eval's defaults if it has none."""
    from lm_eval.defaults import default_gen_kwargs

    delimiter = config.get("fewshot_delimiter", "\n\n")
    own_kwargs = config.get("generation_kwargs")
    return {"until": [delimiter], **own_kwargs} if own_kwargs is not None else dict(default_gen_kwargs(delimiter))


def _require_equal_configs(name: str, leaves: list[LeafConfig]) -> None:
    for what, kinds in (
        ("what they request from a model", {leaf.output_type for leaf in leaves}),
        ("their metrics", {canonical_json(_plain(_scoring(leaf))) for leaf in leaves}),
    ):
        if len(kinds) > 1:
            raise _mixed_group_error(name, leaves, f"its tasks differ in {what}")


def _scoring(leaf: LeafConfig) -> dict[str, Any]:
    filters = [entry.get("name") for entry in leaf.config.get("filter_list") or ()]
    return {"metrics": leaf.config.get("metric_list"), "filters": filters, "class": leaf.task_class}


def _mixed_group_error(name: str, leaves: list[LeafConfig], why: str) -> UserError:
    names = [leaf.task_name for leaf in leaves]
    more = len(names) - _SHOWN_LEAVES
    listing = ", ".join(names[:_SHOWN_LEAVES]) + (f" and {more} more" if more > 0 else "")
    return UserError(f"lm-eval: {name!r} is no single task: {why}. Name its tasks singly: {listing}.")


def lm_eval_version() -> str:
    """Return the version of the installed lm-eval."""
    return version("lm-eval")


def _plain(value: Any) -> Any:
    """Convert a configuration to JSON data; functions become their names, since lm-eval's version covers their code."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(item) for item in value]
    if callable(value):
        return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    if value is None or isinstance(value, str | int | bool | float):
        return value
    return str(value)


SHIPPED = Path(__file__).parent / "yaml"


@cache
def catalogue(include: str | None) -> "dict[str, Entry]":
    """Return lm-eval's index entries (kind, YAML file, tags) of all known tasks, groups and tags, by name.

    As in lm-eval, the user's names override lm-eval's.

    Args:
        include: Folder of the user's YAML files; None for none.

    Raises:
        UserError: The folder does not exist, or a file in it is invalid (see `user_yaml`).
    """
    entries = {**_installed(), **_shipped()}
    if include is not None:
        user_entries = _indexed(read_folder(Path(include)))
        for tag, entry in user_entries.items():
            if not entry.cfg and tag in entries:  # a tag that both define has the tasks of both
                entry.tags.update(entries[tag].tags)
        entries.update(user_entries)
    return entries


def find(name: str, include: str | None) -> "Entry":
    """Return lm-eval's index entry (kind, YAML file, tags) of a task, group or tag.

    Args:
        name: Name of the task, group or tag.
        include: Folder of the user's YAML files; None for none.

    Raises:
        UserError: The name does not exist; the message lists similar names.
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
    """Return the sorted names of the tasks, groups and tags in the YAML files bundled with this package."""
    return tuple(sorted(_shipped()))


def _shipped() -> "dict[str, Entry]":
    from lm_eval.tasks._index import TaskIndex

    entries: dict[str, Entry] = TaskIndex.build([SHIPPED])
    return entries


def _indexed(configs: list[dict[str, Any]]) -> "dict[str, Entry]":
    """Return lm-eval's index entries for configurations that are already read.

    The entries have no path, so that lm-eval opens no file.
    """
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
    cache_file = user_cache() / f"lm-eval-tasks-{_stamp(root)}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        rows = json.loads(cache_file.read_text(encoding="utf-8"))
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
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        partial = cache_file.with_name(f"{cache_file.name}.{os.getpid()}")
        partial.write_text(json.dumps(rows), encoding="utf-8")
        partial.replace(cache_file)
    return built


def _stamp(root: Path) -> str:
    """Return a digest of paths, sizes and modification times of lm-eval's YAML files, to detect an outdated index."""
    digest = hashlib.sha256(str(root).encode())
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            if name.endswith("yaml"):
                status = os.stat(os.path.join(folder, name))
                digest.update(f"{folder}/{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
