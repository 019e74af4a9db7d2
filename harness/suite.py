"""A suite: a declared set of cells, read from TOML.

Everything a name in the file can refer to (methods and their parameters, tasks, recipes, the suite's own
models and tasks) is checked while reading, so that a typing error costs no measuring time.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from exitbench.errors import UserError, suggestion
from exitbench.harness.cell import (
    CONSISTENCIES,
    KINDS,
    RECORDS,
    CalibrationSettings,
    Consistency,
    Kind,
    RecordSettings,
    TimingSettings,
)
from exitbench.harness.spec import DataRequest, SourceKind
from exitbench.harness.toml import Table
from exitbench.results.risk_control import RULES, Rule

SCHEMA = 1
DTYPES = ("float32", "bfloat16", "float16")
DEVICES = ("cpu", "auto")
SOURCES = ("builtin", "local", "hub")
SHIPPED = Path(__file__).parent / "suites"

CELL_TIMEOUT_S = 6 * 3600.0
"""Far beyond what cells take (seconds to minutes with the models that come along), and a cell that hangs costs no more
than a night."""

FIT_DOCUMENTS = 256
CALIBRATION_DOCUMENTS = 100
RECORD_DOCUMENTS = 4
"""A probed token leaves about 110 bytes for each block and read-out: at 32 blocks and 60 tokens, 1 MB a document."""

Params = Mapping[str, Any]
Files = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ModelEntry:
    """``[models.NAME]``: a recipe that is trained when missing, or the folder of a Hugging Face checkpoint.

    Attributes:
        where: File, line and key, for messages that come later than reading.
        random_weights: The weights were never trained; results are labelled and kept out of figures.
    """

    name: str
    where: str
    recipe: str | None
    path: Path | None
    random_weights: bool


@dataclass(frozen=True)
class TaskEntry:
    """``[tasks.LABEL]``: documents, and when generation ends; no budget means the task's own.

    Attributes:
        train_files: Local source only: what methods are fitted on, where any is.
        calibration_files: Local source only: what thresholds are calibrated on.
    """

    label: str
    where: str
    data: DataRequest
    max_new_tokens: int
    stop: tuple[str, ...]
    train_files: Files = ()
    calibration_files: Files = ()

    def other_split(self, split: Literal["train", "calibration"], limit: int, why: str) -> DataRequest:
        """Return documents of another split of the same data.

        Raises:
            UserError: The source is local and the suite names no files for that split.
        """
        files = self.train_files if split == "train" else self.calibration_files
        if self.data.source == "local" and not files:
            raise UserError(f"{self.where}: {why} needs {split}_files, in the form of 'files'.")
        return replace(self.data, split=split, files=files, limit=limit)


@dataclass(frozen=True)
class Point:
    """One setting of a sweep: every parameter of the method as given, in the order written."""

    params: tuple[tuple[str, Any], ...]

    def label(self, method: str) -> str:
        """Name the method and its stated parameters, e.g. ``method:decay=code,threshold=0.5``."""
        return point_label(method, self.params)


@dataclass(frozen=True)
class Sweep:
    """``[[sweep]]``: models x tasks x grid x query, query innermost, without what ``exclude`` matches.

    ``record``: what probes record of the inside of blocks besides, in a cell of its own.
    """

    where: str
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    method: str
    points: tuple[Point, ...]
    kinds: tuple[Kind, ...]
    record: RecordSettings | None = None


@dataclass(frozen=True)
class CalibrationEntry:
    """``[[calibration]]``: models x tasks x grid, a threshold chosen for each."""

    where: str
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    method: str
    points: tuple[Point, ...]
    settings: CalibrationSettings
    documents: int


@dataclass(frozen=True)
class Suite:
    """A whole suite file.

    Attributes:
        fit_documents: Documents of the train split that methods are fitted on, a task.
        cell_timeout_s: How long a cell may take; no part of its identity.
    """

    path: Path
    name: str
    seed: int
    dtype: str
    device: str
    batch_size: int
    models: tuple[ModelEntry, ...]
    tasks: tuple[TaskEntry, ...]
    sweeps: tuple[Sweep, ...]
    calibrations: tuple[CalibrationEntry, ...]
    timing: TimingSettings
    fit_documents: int
    cell_timeout_s: float

    def task(self, label: str) -> TaskEntry:
        """Return the task of that label."""
        return next(entry for entry in self.tasks if entry.label == label)


def suite_names() -> tuple[str, ...]:
    """Names of the shipped suites, sorted."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def suite_path(name_or_path: str | Path) -> Path:
    """Return the file of a shipped suite, or the path given.

    Raises:
        UserError: Neither a shipped name nor a file.
    """
    if name_or_path in suite_names():
        return SHIPPED / f"{name_or_path}.toml"
    path = Path(name_or_path)
    if path.is_file():
        return path
    raise UserError(
        f"no suite {str(name_or_path)!r}: neither a shipped suite nor a file.{suggestion(path.stem, suite_names())}"
    )


def load_suite(name_or_path: str | Path) -> Suite:
    """Read a suite and check every name and value in it.

    Raises:
        UserError: Names file, line and key, and what is allowed.
    """
    top = Table.read(suite_path(name_or_path))
    top.allow("schema", "name", "seed", "defaults", "models", "tasks", "sweep", "calibration", "timing", "fit")
    if (schema := top.get("schema", int)) != SCHEMA:
        raise top.error("schema", f"is {schema}; this version reads schema {SCHEMA}.")
    defaults = top.table("defaults")
    defaults.allow("dtype", "batch_size", "kinds", "device", "cell_timeout_s")
    models = _entries(top, "models", _model)
    tasks = _entries(top, "tasks", _task)
    kinds = _kinds(defaults, ("quality", "timing"))
    model_names, task_labels = [m.name for m in models], [t.label for t in tasks]
    return Suite(
        path=top.path,
        name=top.get("name", str),
        seed=top.get("seed", int),
        dtype=defaults.choose("dtype", defaults.get("dtype", str, "float32"), DTYPES, "number format"),
        device=defaults.choose("device", defaults.get("device", str, "cpu"), DEVICES, "device"),
        batch_size=defaults.positive("batch_size", 1),
        models=models,
        tasks=tasks,
        sweeps=tuple(
            _sweep(table, model_names, task_labels, kinds)
            for table in (top.tables("sweep") if "sweep" in top.values or "calibration" not in top.values else ())
        ),
        calibrations=tuple(
            _calibration(table, model_names, task_labels)
            for table in (top.tables("calibration") if "calibration" in top.values else ())
        ),
        timing=_timing(top.table("timing")),
        fit_documents=_fit_documents(top.table("fit")),
        cell_timeout_s=_cell_timeout_s(defaults),
    )


def _cell_timeout_s(table: Table) -> float:
    value = table.get("cell_timeout_s", float, CELL_TIMEOUT_S)
    if not 0 < value < math.inf:
        raise table.error("cell_timeout_s", f"is {value}; it must be a number of seconds above 0.")
    return value


def _fit_documents(table: Table) -> int:
    table.allow("documents")
    return table.positive("documents", FIT_DOCUMENTS)


def _entries(top: Table, key: str, read: Callable[[str, Table], Any]) -> tuple[Any, ...]:
    parent = top.table(key)
    if not parent.values:
        raise top.error(None, f"no [{key}.NAME]: at least one is needed.")
    for name in parent.values:
        if not name or set(name) & set("/*?[],=: "):
            raise parent.error(name, f"{name!r} cannot be a name: letters, digits, '-', '_' and '.' only.")
    return tuple(read(name, parent.table(name)) for name in parent.values)


def _model(name: str, table: Table) -> ModelEntry:
    table.allow("recipe", "path", "random_weights")
    recipe, folder = table.optional("recipe", str), table.optional("path", str)
    if (recipe is None) == (folder is None):
        raise table.error(
            None, "needs exactly one of 'recipe' (trained when missing) and 'path' (a checkpoint's folder)."
        )
    if recipe is not None:
        _check_recipe(table, recipe)
    path = None if folder is None else (table.path.parent / folder)
    if path is not None and not (path / "config.json").is_file():
        raise table.error("path", f"{path} is not a checkpoint's folder: it has no config.json.")
    return ModelEntry(name, table.where(), recipe, path, table.get("random_weights", bool, False))


def _check_recipe(table: Table, recipe: str) -> None:
    from exitbench.harness.training import recipe_names

    table.choose("recipe", recipe, recipe_names(), "recipe")


def _task(label: str, table: Table) -> TaskEntry:
    from exitbench.tasks.registry import get_task, task_names

    other_files = ("train_files", "calibration_files")
    table.allow("task", "source", "split", "limit", "max_new_tokens", "seed", "files", "stop", *other_files)
    name = table.choose("task", table.get("task", str, label), task_names(), "task")
    source = table.choose("source", table.get("source", str, "builtin"), SOURCES, "source")
    files = table.table("files")
    for key in other_files:
        if source != "local" and key in table.values:
            raise table.error(key, 'goes with source = "local" only; other sources have their own splits.')
    if (source == "local") != bool(files.values):
        raise table.error("files", 'goes with source = "local", which needs it: { role = "path below --data-dir" }.')
    data = DataRequest(
        task=name,
        source=cast(SourceKind, source),
        split=table.get("split", str, "test"),
        files=_files(files),
        limit=table.positive("limit") if "limit" in table.values else None,
        seed=table.get("seed", int, 0),
    )
    max_new_tokens = table.positive("max_new_tokens", get_task(name).default_max_new_tokens)
    other = (_files(table.table(key)) for key in other_files)
    return TaskEntry(label, table.where(), data, max_new_tokens, table.strings("stop", ()), *other)


def _files(table: Table) -> Files:
    return tuple((role, table.get(role, str)) for role in table.values)


def _kinds(table: Table, default: tuple[Kind, ...]) -> tuple[Kind, ...]:
    words = table.strings("kinds", default)
    return tuple(cast(Kind, table.choose("kinds", word, KINDS, "kind")) for word in words)


def _timing(table: Table) -> TimingSettings:
    default = TimingSettings()
    table.allow(*(field.name for field in dataclasses.fields(TimingSettings)))
    half_width = table.get("target_half_width", float, default.target_half_width)
    if not 0 < half_width < 1:
        raise table.error("target_half_width", f"is {half_width}; it must lie between 0 and 1.")
    warm_up = table.get("warm_up", int, default.warm_up)
    if warm_up < 0:
        raise table.error("warm_up", f"is {warm_up}; it must be 0 or more.")
    return TimingSettings(
        documents=table.positive("documents", default.documents),
        max_rounds=table.positive("max_rounds", default.max_rounds),
        target_half_width=half_width,
        warm_up=warm_up,
    )


def _sweep(table: Table, models: list[str], tasks: list[str], kinds: tuple[Kind, ...]) -> Sweep:
    from exitbench.methods.registry import method_names

    table.allow("models", "tasks", "method", "grid", "query", "exclude", "kinds", "record", "record_documents")
    method = table.choose("method", table.get("method", str), method_names(), "method")
    own_kinds = _kinds(table, kinds)
    return Sweep(
        where=table.where("method"),
        models=_chosen(table, "models", models),
        tasks=_chosen(table, "tasks", tasks),
        method=method,
        points=tuple(_points(table, method)),
        kinds=own_kinds,
        record=_record(table, own_kinds),
    )


def _record(table: Table, kinds: tuple[Kind, ...]) -> RecordSettings | None:
    words = table.strings("record", ())
    for word in words:
        table.choose("record", word, RECORDS, "record")
    if words and "probe" not in kinds:
        raise table.error("record", f"is what probes record, but 'kinds' has no \"probe\": {', '.join(kinds)}.")
    if not words:
        if "record_documents" in table.values:
            raise table.error("record_documents", "goes with 'record', which is empty.")
        return None
    what = tuple(record for record in RECORDS if record in words)
    return RecordSettings(what, table.positive("record_documents", RECORD_DOCUMENTS))


def _calibration(table: Table, models: list[str], tasks: list[str]) -> CalibrationEntry:
    from exitbench.methods.registry import method_names

    keys = ("models", "tasks", "method", "grid", "levels", "delta", "epsilon", "consistency", "rule", "documents")
    table.allow(*keys)
    method = table.choose("method", table.get("method", str), method_names(), "method")
    consistency = table.choose("consistency", table.get("consistency", str, "textual"), CONSISTENCIES, "consistency")
    rule = table.choose("rule", table.get("rule", str, "hoeffding-bentkus"), RULES, "rule")
    points = tuple(_points(table, method))
    settings = CalibrationSettings(
        levels=_levels(table, method, points),
        delta=_share(table, "delta"),
        epsilon=_share(table, "epsilon"),
        consistency=cast(Consistency, consistency),
        rule=cast(Rule, rule),
    )
    return CalibrationEntry(
        where=table.where("method"),
        models=_chosen(table, "models", models),
        tasks=_chosen(table, "tasks", tasks),
        method=method,
        points=points,
        settings=settings,
        documents=table.positive("documents", CALIBRATION_DOCUMENTS),
    )


def _levels(table: Table, name: str, points: Sequence[Point]) -> tuple[float, ...]:
    """Read thresholds to try, each stricter than the next on the scale of the method's score."""
    from exitbench.methods.registry import get_method

    method, where = get_method(name), table.where("levels")
    if "threshold" not in {item.name for item in dataclasses.fields(method)}:
        raise table.error("method", f"{name!r} has no threshold to calibrate.")
    values = table.get("levels", list)
    if not values:
        raise table.error("levels", "is empty; it must list thresholds, the most conservative first.")
    made = [method.from_params({"threshold": value}, where) for value in values]
    bounds = [each.parts(len(made) + 1).threshold.value(1, 1, 1) for each in made]
    if any(after >= before for before, after in itertools.pairwise(bounds)):
        raise table.error("levels", f"must go from the most conservative to the least, each once: {values}.")
    for point in points:
        tried = [method.from_params({**dict(point.params), "threshold": value}, where) for value in values]
        if len({each.parts(len(made) + 1).threshold for each in tried}) < len(tried):
            raise table.error("levels", f"change nothing for {point.label(name)}, whose threshold is not used.")
    return tuple(float(each.params()["threshold"]) for each in made)


def _share(table: Table, key: str) -> float:
    value = table.get(key, float)
    if not 0 < value < 1:
        raise table.error(key, f"is {value}; it must lie between 0 and 1.")
    return value


def _chosen(table: Table, key: str, known: list[str]) -> tuple[str, ...]:
    words = table.strings(key, tuple(known))
    if not words:
        raise table.error(key, f"is empty.{suggestion('', known)}")
    return tuple(table.choose(key, word, known, f"name (of [{key}.NAME])") for word in words)


def _points(table: Table, method: str) -> Iterable[Point]:
    axes = {**_axes(table, "grid", method), **_axes(table, "query", method)}
    if twice := set(table.table("grid").values) & set(table.table("query").values):
        raise table.error(min(twice), "is in both 'grid' and 'query'.")
    exclusions = _exclusions(table, axes)
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    for rule in exclusions:
        if not any(_matches(point, rule) for point in points):
            raise table.error("exclude", f"{dict(rule)} matches no point of the sweep.")
    return [Point(tuple(p.items())) for p in points if not any(_matches(p, rule) for rule in exclusions)]


def _axes(table: Table, key: str, method: str) -> dict[str, list[Any]]:
    """Read the values of every parameter in ``grid`` or ``query``, checked one by one by the method."""
    from exitbench.methods.registry import get_method

    axes: dict[str, list[Any]] = {}
    for name, values in table.get(key, dict, {}).items():
        if not isinstance(values, list) or not values:
            raise table.error(name, f"is {values!r} in {key!r}; it must be a list of values to sweep over.")
        checked = [get_method(method).from_params({name: value}, table.where(name)).params()[name] for value in values]
        if len({_spelled(value) for value in checked}) != len(checked):
            raise table.error(name, f"names a value twice in {key!r}: {values}.")
        axes[name] = checked
    return axes


def _exclusions(table: Table, axes: Mapping[str, list[Any]]) -> Sequence[Params]:
    rules = [table.typed("exclude", rule, dict) for rule in table.get("exclude", list, [])]
    for name in {name for rule in rules for name in rule}:
        if name not in axes:
            raise table.error(name, f"is excluded but neither in 'grid' nor in 'query'.{suggestion(name, axes)}")
    return rules


def _matches(point: Params, rule: Params) -> bool:
    return all(point[name] == value for name, value in rule.items())


def point_label(method: str, params: Iterable[tuple[str, Any]]) -> str:
    """Name a method and some of its parameters."""
    stated = ",".join(f"{name}={_spelled(value)}" for name, value in params)
    return f"{method}:{stated}" if stated else method


def _spelled(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ";".join(map(_spelled, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
