"""Read the user's YAML files of lm-eval tasks, which may be from third parties, as data without code.

lm-eval imports and calls what a `!function` names, opens any path that an `include` leads to, and loads metrics as code
from the hub. Files below an `include` folder may do none of this: they may have only plain values and known keys, and
include only files of that folder.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import yaml

from exitbench.errors import UserError, one_line, suggestion
from exitbench.terminal import without_middle

MAX_FILE_BYTES = 1 << 20
MAX_FILES = 10_000
_MAX_DEPTH = 50
_MAX_COUNT = 10_000
_MAX_BITS = 1_000
_MAX_SHOWN_CHARS = 80
_MAX_NODES = 100_000
"""Maximum number of values per file with aliases expanded: a few lines of aliases can stand for billions of values."""

_CODE = ("class", "custom_dataset", "process_docs", "process_results", "doc_to_image", "doc_to_audio", "unsafe_code")
_STRUCTURE = ("task", "group", "tag", "include", "group_alias", "aggregate_metric_list", "task_list")
_MERGE = "tag:yaml.org,2002:merge"
_MERGE_SAID = "its merged tables (`<<`) stand for"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """PyYAML's safe loader, whose tags create plain values only, with a limit on the size of merged tables."""

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self._merged_pairs = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge the tables of `<<` keys into one, after counting their values, which each nested `<<` can multiply."""
        for key, value in node.value:
            if key.tag != _MERGE:
                continue
            for part in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(part, yaml.MappingNode):
                    self.flatten_mapping(part)
                    self._merged_pairs += len(part.value)
                if self._merged_pairs > _MAX_NODES:
                    raise UserError(f"{_MERGE_SAID} more than {_MAX_NODES} values.")
        super().flatten_mapping(node)


def read_folder(folder: Path) -> list[dict[str, Any]]:
    """Return the configuration of every task and group below a folder, in the order of their paths.

    A file without the name of a task or group, whatever its ending, is read when another file includes it.

    Raises:
        UserError: The folder or a file is invalid; the message names file and key, and what is allowed.
    """
    folder = Path(os.path.normpath(folder))
    if not folder.is_dir():
        raise UserError(
            f"include: {folder} is not a folder. Needed: a folder with YAML files that describe tasks for lm-eval."
        )
    configs: list[dict[str, Any]] = []
    names: dict[str, Path] = {}
    for path in _yaml_files(folder):
        config = _merged(path, folder, ())
        name = config.get("group", config.get("task"))
        if name is None:
            continue  # read when it is included
        if not isinstance(name, str) or not name:
            raise UserError(f"{path}: its name is {name!r}. Needed: text.")
        if name in names:
            raise UserError(f"{path}: {name!r} is also in {names[name]}. Each name may be given once.")
        names[name] = path
        check_config(config, str(path), is_group="group" in config)
        configs.append(config)
    if not configs:
        raise UserError(f"include: {folder} holds no .yaml file with a `task` or a `group`.")
    return configs


def check_config(config: Mapping[str, Any], location: str, *, is_group: bool = False) -> None:
    """Check that the configuration of a task or group is pure data, from which lm-eval loads no code.

    Args:
        config: The configuration, as read from YAML.
        location: File (and member of a group), for messages.
        is_group: Whether it is a group, whose members are checked too.

    Raises:
        UserError: The configuration is invalid; the message names the key and what is allowed.
    """
    from lm_eval.config.task import TaskConfig

    known_keys = {field.name for field in fields(TaskConfig)} - set(_CODE) | set(_STRUCTURE)
    for key, value in config.items():
        if key in _CODE:
            if value in (None, False):
                continue
            raise UserError(
                f"{location}: {key} needs code, which YAML of an `include` folder may not bring. Allowed: templates, "
                "filters and metrics of lm-eval; code of your own goes into a plug-in (docs/tasks.md)."
            )
        if key not in known_keys:
            raise UserError(f"{location}: unknown key {key!r}.{suggestion(str(key), known_keys)}")
    _check_kinds(config, location)
    _check_prompt(config, location)
    _check_metrics(config.get("metric_list"), location)
    _check_filters(config.get("filter_list"), location)
    _check_fewshot(config.get("fewshot_config"), location)
    if is_group:
        _check_members(config.get("task"), location)


def _yaml_files(folder: Path) -> Iterator[Path]:
    """Yield the `.yaml` files below a folder, sorted; symbolic links to files or folders are not followed."""
    n_files = 0
    for path in sorted(_walk(folder), key=lambda path: path.as_posix()):
        if path.suffix == ".yaml":
            n_files += 1
            if n_files > MAX_FILES:
                raise UserError(f"include: {folder} holds more than {MAX_FILES} YAML files.")
            yield path


def _walk(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.is_symlink():
            continue
        if entry.is_dir():
            yield from _walk(entry)
        elif entry.is_file():
            yield entry


def _merged(path: Path, folder: Path, parents: tuple[Path, ...]) -> dict[str, Any]:
    """Return a file's configuration, completed by values of the files that it includes, as lm-eval merges them."""
    if path in parents:
        raise UserError(f"{path}: includes itself, by way of {', '.join(map(str, parents[1:])) or 'nothing else'}.")
    config = _read(path)
    included = config.pop("include", [])
    merged: dict[str, Any] = {}
    for name in included if isinstance(included, list) else [included]:
        inner = _merged(_inside(name, path, folder), folder, (*parents, path))
        inner.pop("task_list", None)
        merged.update(inner)
    return {**merged, **config}


def _inside(name: object, path: Path, folder: Path) -> Path:
    """Return the path of an included file, after checking that it exists inside the folder.

    The path is normalised, so that loops of includes are detected.
    """
    inside = Path(os.path.normpath(path.parent / str(name)))
    steps = [inside, *inside.parents]
    steps_below = steps[: steps.index(folder)] if folder in steps else []
    if not isinstance(name, str) or not steps_below or any(step.is_symlink() for step in steps_below):
        raise UserError(f"{path}: include {name!r} leads out of {folder} or over a link.")
    if not inside.is_file():
        raise UserError(f"{path}: include {name!r}: there is no such file.")
    return inside


def _read(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise UserError(f"{path}: has more than {MAX_FILE_BYTES} bytes, the most that is read of a YAML file.")
    data = path.read_bytes()
    try:
        _check_shape(data, path)
        value = yaml.load(data, Loader=_Loader)
    except yaml.constructor.ConstructorError as error:
        raise UserError(f"{path}{_place(error)}: {_tag_message(error)}") from None
    except RecursionError:
        raise UserError(f"{path}: a table refers to itself, or is nested too deeply.") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, UserError):
            raise UserError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None
        raise UserError(f"{path}{_place(error)}: not YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UserError(f"{path}: is not a table of names and values.")
    _count(value, path)
    return value


def _check_shape(data: bytes, path: Path) -> None:
    depth = 0
    for event in yaml.parse(data, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise UserError(f"{path}: its lists and tables are nested more than {_MAX_DEPTH} deep.")


def _count(value: object, path: Path) -> None:
    """Reject a file with too many values after aliases are expanded, or with too large an integer."""
    remaining, stack = _MAX_NODES, [value]
    while stack:
        item = stack.pop()
        remaining -= 1
        if isinstance(item, int) and item.bit_length() > _MAX_BITS:
            raise UserError(f"{path}: a whole number has more than {_MAX_BITS} bits.")
        if remaining < 0:
            raise UserError(f"{path}: stands for more than {_MAX_NODES} values.")
        if isinstance(item, dict):
            stack += item.keys()
            stack += item.values()
        elif isinstance(item, list | set | tuple):
            stack += item


def _tag_message(error: yaml.constructor.ConstructorError) -> str:
    problem = str(error.problem)
    if "!function" in problem:
        return (
            "!function names code, which YAML of an `include` folder may not bring. Allowed: templates, filters and "
            "metrics of lm-eval; code of your own goes into a plug-in (docs/tasks.md)."
        )
    return f"{problem}. Allowed: text, numbers, true, false, null, lists and tables."


def _place(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else f", line {mark.line + 1}"


def _check_kinds(config: Mapping[str, Any], location: str) -> None:
    """Check the types of those values that lm-eval, or this project, later uses without checking them."""
    for key, (fits, needed) in _KINDS.items():
        if config.get(key) is not None and not fits(config[key]):
            raise UserError(f"{location}: {key} is {_abbreviated(config[key])}. Needed: {needed}.")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_tag(value: object) -> bool:
    return _is_text(value) or (isinstance(value, list) and all(map(_is_text, value)))


_KINDS: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "dataset_path": (_is_text, "text"),
    "dataset_kwargs": (_is_table, "a table"),
    "generation_kwargs": (_is_table, "a table"),
    "num_fewshot": (_is_count, f"a whole number from 0 to {_MAX_COUNT}"),
    "repeats": (lambda value: _is_count(value) and value != 0, f"a whole number from 1 to {_MAX_COUNT}"),
    "tag": (_is_tag, "text, or a list of texts"),
}


def _check_prompt(config: Mapping[str, Any], location: str) -> None:
    prompt = config.get("use_prompt")
    if prompt is None:
        return
    from lm_eval.prompts import PROMPT_REGISTRY

    allowed = [f"{category}:{name}" for category, prompts in PROMPT_REGISTRY.items() for name in prompts]
    if prompt not in allowed:
        raise UserError(f"{location}: use_prompt is {prompt!r}.{suggestion(str(prompt), allowed)}")


def _check_metrics(metrics: object, location: str) -> None:
    from lm_eval.api import metrics as _  # noqa: F401 - fills the registries
    from lm_eval.api.registry import AGGREGATION_REGISTRY, METRIC_REGISTRY, get_aggregation, get_metric_aggregation

    for metric in _tables(metrics, f"{location}: metric_list"):
        name, aggregation = metric.get("metric"), metric.get("aggregation", "mean")
        if metric.get("hf_evaluate"):
            raise UserError(
                f"{location}: metric {name!r}: hf_evaluate loads code from the hub. Allowed: lm-eval's own."
            )
        if not isinstance(name, str) or name not in METRIC_REGISTRY:
            allowed = suggestion(str(name), METRIC_REGISTRY.keys())
            raise UserError(f"{location}: metric_list: unknown metric {_abbreviated(name)}.{allowed}")
        if not isinstance(aggregation, str) or aggregation not in AGGREGATION_REGISTRY:
            allowed = suggestion(str(aggregation), AGGREGATION_REGISTRY.keys())
            raise UserError(f"{location}: metric {name!r}: unknown aggregation {_abbreviated(aggregation)}.{allowed}")
        # The metric must be computable from its name alone, as results store nothing else.
        fitting = (get_aggregation("mean"), get_metric_aggregation(name))
        if get_aggregation(aggregation) not in fitting:
            allowed = ", ".join(key for key in AGGREGATION_REGISTRY if get_aggregation(key) in fitting)
            raise UserError(f"{location}: metric {name!r}: aggregation is {aggregation!r}. Allowed: {allowed}.")


def _check_filters(filters: object, location: str) -> None:
    from lm_eval import filters as _  # noqa: F401 - fills the registry
    from lm_eval.api.registry import FILTER_REGISTRY, get_filter

    allowed = sorted(set(FILTER_REGISTRY.keys()) - {"custom"})
    for pipeline in _tables(filters, f"{location}: filter_list"):
        if not isinstance(pipeline.get("name"), str):
            raise UserError(f"{location}: filter_list: each needs a name and a list of filters.")
        for step in _tables(pipeline.get("filter"), f"{location}: filter_list: filter"):
            if (name := step.get("function")) not in allowed:
                raise UserError(f"{location}: unknown filter {name!r}.{suggestion(str(name), allowed)}")
            kwargs = {str(key): value for key, value in step.items() if key != "function"}
            try:
                get_filter(name)(**kwargs)
            except Exception as error:  # any error about its arguments, such as an invalid regular expression
                raise UserError(f"{location}: filter_list: {name}: {one_line(error)}") from error


def _check_fewshot(fewshot: object, location: str) -> None:
    if fewshot is None:
        return
    from lm_eval.api.samplers import SAMPLER_REGISTRY
    from lm_eval.config.task import FewshotConfig

    if not isinstance(fewshot, dict):
        raise UserError(f"{location}: fewshot_config is no table.")
    known_keys = {field.name for field in fields(FewshotConfig)} - {"process_docs"}
    for key in fewshot:
        if key not in known_keys:
            raise UserError(f"{location}: fewshot_config: unknown key {key!r}.{suggestion(str(key), known_keys)}")
    sampler = fewshot.get("sampler", "default")
    if not isinstance(sampler, str) or sampler not in SAMPLER_REGISTRY:
        allowed = suggestion(str(sampler), SAMPLER_REGISTRY)
        raise UserError(f"{location}: fewshot_config: unknown sampler {_abbreviated(sampler)}.{allowed}")


def _check_members(members: object, location: str) -> None:
    if not isinstance(members, list):
        raise UserError(f"{location}: a group needs `task`, the list of its tasks.")
    for member in members:
        if isinstance(member, dict):
            check_config(
                member, f"{location}: task {member.get('task', member.get('group'))!r}", is_group="group" in member
            )
        elif not isinstance(member, str):
            raise UserError(f"{location}: task {member!r} is no name.")


def _abbreviated(value: object) -> str:
    return without_middle(repr(value), _MAX_SHOWN_CHARS)


def _tables(value: object, location: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UserError(f"{location} is no list of tables.")
    return value


def is_hub_name(name: object) -> bool:
    """Return whether a value can be the name of a data set on the hub, and not a path or a URL."""
    return isinstance(name, str) and _HUB_NAME.fullmatch(name) is not None and ".." not in name
