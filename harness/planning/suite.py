"""Suites: sets of cells declared in a TOML file.

All names in the file (methods and their parameters, tasks, recipes, the suite's own models and tasks) are checked while
reading, so that a typo costs no measuring time.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from exitbench.errors import UserError, suggestion
from exitbench.harness.cells.cell import (
    CONSISTENCIES,
    ENGINES,
    HEAD_PRECISIONS,
    KINDS,
    RECORDS,
    TIMED_RECORDS,
    CalibrationSettings,
    Consistency,
    EngineChoice,
    HeadPrecision,
    Kind,
    Record,
    RecordSettings,
    TimingSettings,
)
from exitbench.harness.engine.checkpoints.device_maps import RequestedMap, read_device_map
from exitbench.harness.engine.checkpoints.files import gguf_note
from exitbench.harness.engine.checkpoints.hub import HubName, read_name
from exitbench.harness.planning.entries.task import MAX_BATCH, TaskEntry, read_task
from exitbench.harness.reading.toml import MAX_COUNT, TomlTable
from exitbench.results.statistics.risk_control import RULES, Rule

if TYPE_CHECKING:
    from exitbench.methods.base import Method

SCHEMA = 1
DTYPES = ("float32", "bfloat16", "float16", "int8", "auto")
DEVICES = ("cpu", "cuda", "auto")
SHIPPED = Path(__file__).parents[1] / "suites"

CELL_TIMEOUT_S = 6 * 3600.0
"""Default time limit, far above typical durations (seconds to minutes with bundled models), so a hang costs hours."""

FIT_DOCUMENTS = 256
CALIBRATION_DOCUMENTS = 100
MAX_SETTINGS = 100_000
"""Maximum number of settings of all sweeps, over all models and tasks; planning 5,000 takes 8 s."""
RECORD_DOCUMENTS = 4
"""Default number of recorded documents.

A probed token takes about 110 bytes per block and read-out: 1 MB per document at 32 blocks and 60 tokens.
"""

Params = Mapping[str, Any]


@dataclass(frozen=True)
class ModelEntry:
    """A parsed ``[models.NAME]`` table: a recipe, trained if missing, or a checkpoint from a folder or the hub.

    Attributes:
        location: File, line and key, for messages after reading.
        random_weights: Whether the weights were never trained; results are labelled and left out of figures.
        engine: Engine that runs the blocks; ``auto`` is the lean engine if it supports the family.
        device_map: Devices of the blocks on the hosted engine; None to use only the suite's device.
        tasks: Labels of the tasks that the model runs in any sweep or calibration; None for all tasks.
    """

    name: str
    location: str
    recipe: str | None
    path: Path | None
    random_weights: bool
    engine: EngineChoice = "auto"
    hub: HubName | None = None
    device_map: RequestedMap | None = None
    tasks: tuple[str, ...] | None = None

    def runs_task(self, label: str) -> bool:
        """Return whether the suite runs the task with this label on the model."""
        return self.tasks is None or label in self.tasks


@dataclass(frozen=True)
class Point:
    """One setting of a sweep: the stated parameters in the order written, and the method built from them."""

    params: tuple[tuple[str, Any], ...]
    method: Method

    @property
    def label(self) -> str:
        """The method's name and the stated parameters: ``method:decay=code,threshold=0.5``."""
        return point_label(self.method.name, self.params)


@dataclass(frozen=True)
class Sweep:
    """A parsed ``[[sweep]]``: one method, with many combinations of parameter values, on several models and tasks.

    Attributes:
        location: File, line and key, for messages.
        points: All combinations of the values in ``grid`` and ``query``, except those that ``exclude`` matches. Values
            in ``query`` vary fastest.
        timed_tasks: Tasks with cells of kind ``timing``.
        records: Additional data that probes and timings store in separate cells, by kind of cell.
    """

    location: str
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    points: tuple[Point, ...]
    kinds: tuple[Kind, ...]
    timed_tasks: tuple[str, ...]
    records: Mapping[Kind, RecordSettings] = field(default_factory=dict)


@dataclass(frozen=True)
class CalibrationEntry:
    """A parsed ``[[calibration]]``: a threshold is chosen for each model, task and combination of parameter values.

    Attributes:
        points: The combinations of parameter values.
        documents: Number of documents on which each threshold is calibrated.
    """

    location: str
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    points: tuple[Point, ...]
    settings: CalibrationSettings
    documents: int


@dataclass(frozen=True)
class Suite:
    """A parsed suite file.

    Attributes:
        dtype: Number format; ``auto`` is the format of a model's stored weights.
        device: ``cpu``, ``cuda`` or ``auto`` (``cuda`` if torch finds a GPU, else ``cpu``).
        batch_size: Documents per batch in timed cells, and by default in most others (`default_batch_rows`).
        batch_rows: Documents per batch in cells that are not timed; None if the suite does not set it.
        head_precision: Whether the exact LM head or bounds decide exits and tokens (`Cell.head_precision`).
        fit_documents: Number of train documents per task on which methods are fitted.
        cell_timeout_s: Time limit of a cell in seconds; not part of its identity.
    """

    path: Path
    name: str
    seed: int
    dtype: str
    device: str
    batch_size: int
    batch_rows: int | None
    head_precision: HeadPrecision
    models: tuple[ModelEntry, ...]
    tasks: tuple[TaskEntry, ...]
    sweeps: tuple[Sweep, ...]
    calibrations: tuple[CalibrationEntry, ...]
    timing: TimingSettings
    fit_documents: int
    cell_timeout_s: float

    def with_sources_resolved(self, data_dir: Path | None, *, hub: bool) -> Suite:
        """Return the suite with every source ``auto`` of a task replaced by local files or the hub.

        Local files are used if one exists below `data_dir`, else the hub if `hub` allows it; otherwise ``auto`` stays.
        """
        return replace(self, tasks=tuple(task.with_source_resolved(data_dir, hub=hub) for task in self.tasks))

    def task(self, label: str) -> TaskEntry:
        """Return the task with this label."""
        return next(entry for entry in self.tasks if entry.label == label)


def suite_names() -> tuple[str, ...]:
    """Return the sorted names of the bundled suites."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def suite_path(name_or_path: str | Path) -> Path:
    """Return the file of a bundled suite, or the given path.

    Raises:
        UserError: The argument is neither the name of a bundled suite nor a file.
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
        UserError: The suite is invalid. The message names file, line and key, and the allowed values.
    """
    top = TomlTable.read(suite_path(name_or_path))
    top.allow("schema", "name", "seed", "defaults", "models", "tasks", "sweep", "calibration", "timing", "fit")
    if (schema := top.get("schema", int)) != SCHEMA:
        raise top.error("schema", f"is {schema}; this version reads schema {SCHEMA}.")
    defaults = top.table("defaults")
    defaults.allow("dtype", "batch_size", "batch_rows", "head_precision", "kinds", "device", "cell_timeout_s")
    tasks = _entries(top, "tasks", read_task)
    task_labels = [task.label for task in tasks]
    models = _entries(top, "models", lambda name, table: _model(name, table, task_labels))
    model_names = [model.name for model in models]
    kinds = _kinds(defaults, ("quality", "timing"))
    suite = Suite(
        path=top.path,
        name=top.name("name", top.get("name", str)),
        seed=top.get("seed", int),
        dtype=defaults.choose("dtype", defaults.get("dtype", str, "float32"), DTYPES, "number format"),
        device=_device(defaults),
        batch_size=defaults.positive("batch_size", 1, MAX_BATCH),
        batch_rows=defaults.positive("batch_rows", 1, MAX_BATCH) if "batch_rows" in defaults.values else None,
        head_precision=_head_precision(defaults),
        models=models,
        tasks=tasks,
        sweeps=tuple(_sweeps(top, model_names, task_labels, kinds)),
        calibrations=tuple(
            _calibration(table, model_names, task_labels)
            for table in (top.tables("calibration") if "calibration" in top.values else ())
        ),
        timing=_timing(top.table("timing")),
        fit_documents=_fit_documents(top.table("fit")),
        cell_timeout_s=_cell_timeout_s(defaults),
    )
    _require_pairs(suite)
    return suite


def _require_pairs(suite: Suite) -> None:
    """Reject a sweep or calibration without cells, in which none of the models runs any of the tasks."""
    entries: tuple[Sweep | CalibrationEntry, ...] = (*suite.sweeps, *suite.calibrations)
    for entry in entries:
        models = [model for model in suite.models if model.name in entry.models]
        if not any(model.runs_task(label) for model in models for label in entry.tasks):
            tasks_by_model = "; ".join(f"{model.name}: {', '.join(model.tasks or ())}" for model in models)
            raise UserError(
                f"{entry.location}: none of its models runs one of its tasks ({', '.join(entry.tasks)}). "
                f"Allowed by 'tasks' of [models.NAME]: {tasks_by_model}."
            )


def _head_precision(defaults: TomlTable) -> HeadPrecision:
    word = defaults.get("head_precision", str, "exact")
    return cast(HeadPrecision, defaults.choose("head_precision", word, HEAD_PRECISIONS, "precision of the LM head"))


def _device(defaults: TomlTable) -> str:
    device = defaults.get("device", str, "cpu")
    if device not in DEVICES:
        raise defaults.error(
            "device",
            f"unknown device {device!r}. Allowed: {', '.join(sorted(DEVICES))}; auto takes a GPU where there is one, "
            "else the CPU.",
        )
    return device


def _sweeps(top: TomlTable, models: list[str], tasks: list[str], kinds: tuple[Kind, ...]) -> Iterator[Sweep]:
    tables = top.tables("sweep") if "sweep" in top.values or "calibration" not in top.values else []
    settings = 0
    for table in tables:
        sweep = _sweep(table, models, tasks, kinds)
        settings += len(sweep.models) * len(sweep.tasks) * len(sweep.points)
        if settings > MAX_SETTINGS:
            raise table.error(None, f"has more than {MAX_SETTINGS} settings, with all sweeps before it.")
        yield sweep


def _cell_timeout_s(table: TomlTable) -> float:
    value = table.get("cell_timeout_s", float, CELL_TIMEOUT_S)
    if value <= 0:
        raise table.error("cell_timeout_s", f"is {value}; it must be a number of seconds above 0.")
    return value


def _fit_documents(table: TomlTable) -> int:
    table.allow("documents")
    return table.positive("documents", FIT_DOCUMENTS)


def _entries(top: TomlTable, key: str, read: Callable[[str, TomlTable], Any]) -> tuple[Any, ...]:
    parent = top.table(key)
    if not parent.values:
        raise top.error(None, f"no [{key}.NAME]: at least one is needed.")
    for name in parent.values:
        parent.name(name, name)
    return tuple(read(name, parent.table(name)) for name in parent.values)


def _model(name: str, table: TomlTable, task_labels: list[str]) -> ModelEntry:
    table.allow("recipe", "path", "random_weights", "engine", "device_map", "tasks")
    recipe, written = table.optional("recipe", str), table.optional("path", str)
    if (recipe is None) == (written is None):
        raise table.error(
            None,
            "needs exactly one of 'recipe' (trained when missing) and 'path' (a checkpoint's folder, or "
            "hub:OWNER/NAME@REVISION).",
        )
    if recipe is not None:
        _check_recipe(table, recipe)
    hub = None if written is None else _hub_name(table, written)
    path = None if written is None or hub is not None else (table.path.parent / written)
    if path is not None and not (path / "config.json").is_file():
        raise table.error("path", f"{path} is not a checkpoint's folder: it has no config.json.{gguf_note(path)}")
    engine = table.choose("engine", table.get("engine", str, "auto"), ENGINES, "engine")
    device_map = read_device_map(table)
    if device_map is not None and engine == "lean":
        raise table.error("device_map", 'the lean engine runs on one device; allowed: engine = "hosted" or "auto".')
    engine = engine if device_map is None else "hosted"
    random_weights = table.get("random_weights", bool, False)
    tasks = _chosen(table, "tasks", task_labels) if "tasks" in table.values else None
    return ModelEntry(
        name, table.location(), recipe, path, random_weights, cast(EngineChoice, engine), hub, device_map, tasks
    )


def _hub_name(table: TomlTable, written: str) -> HubName | None:
    try:
        return read_name(written)
    except UserError as error:
        raise table.error("path", str(error)) from error


def _check_recipe(table: TomlTable, recipe: str) -> None:
    from exitbench.harness.training import load_recipe, recipe_names

    recipe_name, at, _ = recipe.partition("@")
    table.choose("recipe", recipe_name, recipe_names(), "recipe")
    if at:
        try:
            load_recipe(recipe)
        except UserError as error:
            raise table.error("recipe", str(error)) from error


def _kinds(table: TomlTable, default: tuple[Kind, ...]) -> tuple[Kind, ...]:
    words = table.strings("kinds", default)
    if not words:
        raise table.error("kinds", f"is empty.{suggestion('', KINDS)}")
    return tuple(cast(Kind, table.choose("kinds", word, KINDS, "kind")) for word in words)


def _timing(table: TomlTable) -> TimingSettings:
    default = TimingSettings()
    table.allow(*(field.name for field in dataclasses.fields(TimingSettings)))
    half_width = table.get("target_half_width", float, default.target_half_width)
    if not 0 < half_width < 1:
        raise table.error("target_half_width", f"is {half_width}; it must lie between 0 and 1.")
    warm_up = table.get("warm_up", int, default.warm_up)
    if not 0 <= warm_up <= MAX_COUNT:
        raise table.error("warm_up", f"is {warm_up}; it must be 0 or more, and at most {MAX_COUNT}.")
    seconds = table.get("seconds", float, default.seconds)
    if not seconds > 0:
        raise table.error("seconds", f"is {seconds}; it must be above 0: how long to time each arm, about.")
    return TimingSettings(
        documents=table.positive("documents", default.documents),
        seconds=seconds,
        max_rounds=table.positive("max_rounds", default.max_rounds),
        target_half_width=half_width,
        warm_up=warm_up,
    )


def _method(table: TomlTable) -> str:
    from exitbench.methods.registry import method_names, unusable_methods

    name = table.get("method", str)
    if name in (unusable := unusable_methods()):
        raise table.error("method", f"method {name!r} cannot be used: {unusable[name]}")
    return table.choose("method", name, method_names(), "method")


def _sweep(table: TomlTable, models: list[str], tasks: list[str], kinds: tuple[Kind, ...]) -> Sweep:
    keys = ("models", "tasks", "method", "grid", "query", "exclude", "kinds", "timed_tasks", "record")
    table.allow(*keys, "record_documents")
    method = _method(table)
    own_kinds, own_tasks = _kinds(table, kinds), _chosen(table, "tasks", tasks)
    if "timed_tasks" in table.values and "timing" not in own_kinds:
        raise table.error(
            "timed_tasks", f"is for cells that are timed, but 'kinds' has no \"timing\": {', '.join(own_kinds)}."
        )
    return Sweep(
        location=table.location("method"),
        models=_chosen(table, "models", models),
        tasks=own_tasks,
        points=tuple(_points(table, method)),
        kinds=own_kinds,
        timed_tasks=_chosen(table, "timed_tasks", list(own_tasks)),
        records=_records(table, own_kinds),
    )


def _records(table: TomlTable, kinds: tuple[Kind, ...]) -> dict[Kind, RecordSettings]:
    """Read which additional data the probes and timings of a sweep store, by kind of cell; `kinds` are the sweep's."""
    words = table.strings("record", ())
    for word in words:
        table.choose("record", word, RECORDS, "record")
    if not words and "record_documents" in table.values:
        raise table.error("record_documents", "goes with 'record', which is empty.")
    wanted: dict[Kind, list[Record]] = {}
    for word in RECORDS:
        kind: Kind = "timing" if word in TIMED_RECORDS else "probe"
        if word in words:
            if kind not in kinds:
                raise table.error(
                    "record", f"{word!r} is what {kind}s record, but 'kinds' has no \"{kind}\": {', '.join(kinds)}."
                )
            wanted.setdefault(kind, []).append(word)
    documents = table.positive("record_documents", RECORD_DOCUMENTS)
    return {kind: RecordSettings(tuple(what), documents) for kind, what in wanted.items()}


def _calibration(table: TomlTable, models: list[str], tasks: list[str]) -> CalibrationEntry:
    keys = ("models", "tasks", "method", "grid", "levels", "delta", "epsilon", "consistency", "rule", "documents")
    table.allow(*keys)
    method = _method(table)
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
        location=table.location("method"),
        models=_chosen(table, "models", models),
        tasks=_chosen(table, "tasks", tasks),
        points=points,
        settings=settings,
        documents=table.positive("documents", CALIBRATION_DOCUMENTS),
    )


def _levels(table: TomlTable, name: str, points: Sequence[Point]) -> tuple[float, ...]:
    """Return the thresholds to try for the method `name`; check that each is less conservative than the one before."""
    from exitbench.methods.registry import get_method

    method, location = get_method(name), table.location("levels")
    if "threshold" not in {item.name for item in dataclasses.fields(method)}:
        raise table.error("method", f"{name!r} has no threshold to calibrate.")
    values = table.get("levels", list)
    if not values:
        raise table.error("levels", "is empty; it must list thresholds, the most conservative first.")
    methods: list[Any] = [method.from_params({"threshold": value}, location) for value in values]
    bounds = [each.parts(len(methods) + 1).threshold.value(1, 1, 1) for each in methods]
    if any(after >= before for before, after in itertools.pairwise(bounds)):
        raise table.error("levels", f"must go from the most conservative to the least, each once: {values}.")
    for point in points:
        tried = [dataclasses.replace(point.method, threshold=each.threshold) for each in methods]  # type: ignore[call-arg]
        if len({each.parts(len(methods) + 1).threshold for each in tried}) < len(tried):
            raise table.error("levels", f"change nothing for {point.label}, whose threshold is not used.")
    return tuple(float(each.threshold) for each in methods)


def _share(table: TomlTable, key: str) -> float:
    value = table.get(key, float)
    if not 0 < value < 1:
        raise table.error(key, f"is {value}; it must lie between 0 and 1.")
    return value


def _chosen(table: TomlTable, key: str, allowed: list[str]) -> tuple[str, ...]:
    words = table.strings(key, tuple(allowed))
    if not words:
        raise table.error(key, f"is empty.{suggestion('', allowed)}")
    return tuple(table.choose(key, word, allowed, f"name (of [{key.removeprefix('timed_')}.NAME])") for word in words)


def _points(table: TomlTable, method: str) -> Iterable[Point]:
    """Return every combination of the sweep's parameter values that `exclude` does not match, with its method."""
    from exitbench.methods.registry import get_method

    axes = {**_axes(table, "grid", method), **_axes(table, "query", method)}
    if twice := set(table.table("grid").values) & set(table.table("query").values):
        raise table.error(min(twice), "is in both 'grid' and 'query'.")
    if math.prod(map(len, axes.values())) > MAX_SETTINGS:
        raise table.error(None, f"has more than {MAX_SETTINGS} points: fewer values, or several suites.")
    exclusions = _exclusions(table, axes)
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    for rule in exclusions:
        if not any(_matches(point, rule) for point in points):
            raise table.error("exclude", f"{dict(rule)} matches no point of the sweep.")
    remaining_points = (point for point in points if not any(_matches(point, rule) for rule in exclusions))
    return [Point(tuple(point.items()), get_method(method)(**point)) for point in remaining_points]


def _axes(table: TomlTable, key: str, method: str) -> dict[str, list[Any]]:
    """Return the values of every parameter in the table `key`, ``grid`` or ``query``; the method checks each value."""
    from exitbench.methods.registry import get_method

    axes: dict[str, list[Any]] = {}
    for name, values in table.get(key, dict, {}).items():
        if not isinstance(values, list) or not values:
            raise table.error(name, f"is {values!r} in {key!r}; it must be a list of values to sweep over.")
        for value in values:
            table.require_storable(name, value)
        checked = [
            get_method(method).from_params({name: value}, table.location(name)).params()[name] for value in values
        ]
        if len({_format_value(value) for value in checked}) != len(checked):
            raise table.error(name, f"names a value twice in {key!r}: {values}.")
        axes[name] = checked
    return axes


def _exclusions(table: TomlTable, axes: Mapping[str, list[Any]]) -> Sequence[Params]:
    rules = [table.typed("exclude", rule, dict) for rule in table.get("exclude", list, [])]
    for name in {name for rule in rules for name in rule}:
        if name not in axes:
            raise table.error(name, f"is excluded but neither in 'grid' nor in 'query'.{suggestion(name, axes)}")
    return rules


def _matches(point: Params, rule: Params) -> bool:
    return all(point[name] == value for name, value in rule.items())


def point_label(method: str, params: Iterable[tuple[str, Any]]) -> str:
    """Return a method's name with some of its parameters, e.g. ``method:decay=code,threshold=0.5``."""
    stated = ",".join(f"{name}={_format_value(value)}" for name, value in params)
    return f"{method}:{stated}" if stated else method


def _format_value(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ";".join(map(_format_value, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
