"""A plan: every cell of a suite, and whether it is new, done, stale (and why) or failed.

Planning reads the spool, the documents and the digests of the weights; it loads and fetches no model and writes
nothing but the caches of digests, beside the weights and beside the spool.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from exitbench.errors import UserError
from exitbench.harness.cells.cell import (
    Cell,
    DeviceMap,
    GenerationSettings,
    Kind,
    MethodRef,
    TaskRef,
    TimingSettings,
    unasked_rows,
)
from exitbench.harness.cells.corpus import Corpora, Corpus
from exitbench.harness.cells.job import CellJob, DataRequest
from exitbench.harness.cells.number_formats import check_format
from exitbench.harness.engine import ENGINE_VERSION
from exitbench.harness.engine.checkpoints.device_maps import resolve_device_map, spelled
from exitbench.harness.engine.checkpoints.digest import Description, inspect_checkpoint
from exitbench.harness.engine.checkpoints.exit_head_files import read_exit_blocks
from exitbench.harness.engine.checkpoints.hub import HubName, Located, find
from exitbench.harness.planning.answer_checks import check_answers
from exitbench.harness.planning.apart import require_apart
from exitbench.harness.planning.entries.task import TaskEntry
from exitbench.harness.planning.expand import CellTemplate, expand, is_certified, select
from exitbench.harness.planning.generation_checks import remarks, resolve
from exitbench.harness.planning.levels import require_learned
from exitbench.harness.planning.retry import RETRIED, Retry, State
from exitbench.harness.planning.stale import Predecessors
from exitbench.harness.planning.suite import ModelEntry, Suite
from exitbench.harness.training import Recipe, find_trained, load_recipe
from exitbench.harness.training.store import SHIPPED
from exitbench.methods.registry import distribution, revision
from exitbench.results.spool.attempts import TO_BE_RUN, UNFINISHED, AttemptStatus, latest_status
from exitbench.tasks.base import ModelKind
from exitbench.tasks.lm_eval.settings import LmEvalSettings
from exitbench.terminal import number_of


@dataclass(frozen=True)
class PlannedCell:
    """A cell and what the spool knows of it; ``why`` explains stale and failed, and what was cut short."""

    item: CellJob
    state: State
    why: str


@dataclass(frozen=True)
class Group:
    """The cells that share a loaded model.

    Attributes:
        recipe: What to train; None for a checkpoint given by path.
        folder: The checkpoint; None until the recipe is trained or the hub's files are here, and then ``cells`` is
            empty, since a cell has no identity without weights.
        labels: Labels of all cells, trained or not.
        remarks: What is not wrong but should be known of the checkpoint, a sentence each.
    """

    model: ModelEntry
    recipe: Recipe | None
    folder: Path | None
    labels: tuple[str, ...]
    cells: tuple[PlannedCell, ...]
    remarks: tuple[str, ...] = ()

    def to_run(self, retry: Retry) -> tuple[CellJob, ...]:
        """Return the cells to run, in order."""
        return tuple(planned.item for planned in self.cells if planned.state in RETRIED[retry])


@dataclass(frozen=True)
class Plan:
    """Every group of a suite, in the suite's order of models; ``device`` is resolved.

    Attributes:
        of_tasks: What is not wrong but should be known of the documents of tasks, a sentence each.
    """

    suite: Suite
    device: str
    groups: tuple[Group, ...]
    of_tasks: tuple[str, ...] = ()

    @property
    def untrained(self) -> tuple[Recipe, ...]:
        """Recipes that must be trained before their cells can run."""
        return tuple(group.recipe for group in self.groups if group.recipe and group.folder is None)

    @property
    def unfetched(self) -> tuple[HubName, ...]:
        """Models of the hub that are not, or not whole, on this machine."""
        return tuple(group.model.hub for group in self.groups if group.model.hub and group.folder is None)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is not wrong but should be known of the whole suite, a sentence each."""
        cells = [planned.item.cell for group in self.groups for planned in group.cells]
        timed = [min(cell.timing.documents, cell.task.documents) for cell in cells if cell.timing is not None]
        fewest, enough = min(timed, default=0), TimingSettings().documents
        if not timed or fewest >= enough:
            return self.of_tasks
        return (
            *self.of_tasks,
            f"Speed is timed on as few as {number_of(fewest, 'document')}: intervals are over documents, and those of "
            f"fewer than {enough} are wide ([timing] documents; limit of a task).",
        )

    @property
    def cell_ids(self) -> frozenset[str]:
        """Ids of all its cells."""
        return frozenset(planned.item.cell.cell_id for group in self.groups for planned in group.cells)

    def states(self) -> Counter[State]:
        """Return how many cells have each state; those of untrained models are new."""
        states = Counter(planned.state for group in self.groups for planned in group.cells)
        states["new"] += sum(len(group.labels) for group in self.groups if group.folder is None)
        return states

    def to_run_count(self, retry: Retry) -> int:
        """Return how many cells a run would run."""
        return sum(count for state, count in self.states().items() if state in RETRIED[retry])


def make_plan(
    suite: Suite,
    spool: Path,
    models_dir: Path,
    data_dir: Path | None,
    *,
    only: str | None = None,
    limit: int | None = None,
    kinds: Sequence[Kind] | None = None,
) -> Plan:
    """Expand a suite and compare it with the spool.

    Args:
        suite: The suite.
        spool: Root of the spool; need not exist.
        models_dir: Where trained recipes lie; need not exist.
        data_dir: Root of local files; None where no task needs one.
        only: Glob over labels; what a chosen cell depends on is kept too.
        limit: Upper bound of documents a task.
        kinds: Kinds of cells to keep.

    Raises:
        UserError: Documents or weights cannot be read, documents are used twice, a parameter does not fit a model's
            depth, a model learned another level, or nothing is left.
    """
    drafts = select(expand(suite, limit), only, kinds)
    models = [(entry, list(templates)) for entry, templates in groupby(drafts, key=lambda draft: draft.model)]
    recipes = {entry.name: load_recipe(entry.recipe) if entry.recipe else None for entry, _ in models}
    for entry, templates in models:
        recipe = recipes[entry.name]
        if recipe is not None:
            require_learned(entry, recipe, {draft.task.label: draft.task for draft in templates}.values())
        if recipe is not None and recipe.n_blocks is not None:
            heads = recipe.exit_heads
            _check_model(templates, recipe.n_blocks, heads.blocks(recipe.n_blocks) if heads is not None else ())
    device = resolve_device(suite.device)
    wanted = {(draft.task.label, data): (draft.task, data) for draft in drafts for data in _requests(draft)}
    corpora = Corpora(spool.parent)
    described = {key: _corpus(task, data, data_dir, corpora) for key, (task, data) in wanted.items()}
    require_apart(drafts, described, data_dir)
    builder = _Builder(suite, device, described)
    statuses, predecessors = latest_status(spool), Predecessors(spool)
    groups = []
    for entry, templates in models:
        recipe = recipes[entry.name]
        located = _locate(entry, recipe, models_dir)
        folder = None if located is None else located.folder
        items: list[CellJob] = []
        remarked: tuple[str, ...] = ()
        if located is not None and folder is not None:
            description = inspect_checkpoint(entry.name, folder, entry.engine)
            description = replace(description, model=replace(description.model, source=located.source))
            _check_model(templates, description.model.blocks, read_exit_blocks(folder))
            check_answers(templates, description)
            _check_budget(templates, description)
            _check_precision(suite, templates, description)
            tasks = {draft.task.label: draft.task for draft in templates}
            asked = {label: resolve(task, folder, description) for label, task in tasks.items()}
            dtype = resolve_dtype(suite.dtype, folder)
            check_format(entry.where, dtype, description.engine)
            device_map = entry.device_map and resolve_device_map(
                entry.where, entry.device_map, device, folder, dtype, description.model.blocks
            )
            items = builder.build(templates, description, asked, dtype, device_map)
            remarked = (*located.remarks, *description.remarks)
            if description.labels is None:
                remarked = (*remarked, *remarks(list(tasks.values()), folder, asked))
            if dtype != suite.dtype:
                remarked = (*remarked, f'dtype = "auto" is {dtype}: what its weights are stored in')
            if device_map is not None:
                remarked = (*remarked, spelled(device_map))
        cells = tuple(_planned(item, statuses, predecessors) for item in items)
        groups.append(Group(entry, recipe, folder, tuple(draft.label for draft in templates), cells, remarked))
    of_tasks = {
        f"Task {label!r}: {remark}."
        for (label, data), (task, _) in wanted.items()
        if data == task.data
        for remark in described[label, data].remarks
    }
    return Plan(suite, device, tuple(groups), tuple(sorted(of_tasks)))


def _locate(entry: ModelEntry, recipe: Recipe | None, models_dir: Path) -> Located | None:
    """Where a model lies; None for a recipe that is not trained and for what the hub's cache does not have."""
    if entry.hub is not None:
        return find(entry.hub)
    folder = find_trained(recipe, models_dir, SHIPPED) if recipe else entry.path
    return None if folder is None else Located(folder)


def resolve_device(device: str) -> str:
    """Return ``cuda`` for ``auto`` where torch sees a GPU, else ``cpu``; anything else unchanged."""
    if device != "auto":
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def resolve_dtype(dtype: str, folder: Path) -> str:
    """Return the number format in which a checkpoint's weights are stored for ``auto``; anything else unchanged.

    Raises:
        UserError: Its weights cannot be read.
    """
    if dtype != "auto":
        return dtype
    from exitbench.harness.engine.checkpoints.sizes import stored_dtype

    return stored_dtype(folder)


def _check_model(drafts: Sequence[CellTemplate], n_blocks: int, exit_blocks: tuple[int, ...] | None = None) -> None:
    for draft in drafts:
        draft.check(n_blocks, exit_blocks)


def _check_budget(drafts: Sequence[CellTemplate], description: Description) -> None:
    for draft in drafts:
        task, positions = draft.task, description.max_positions
        if positions is not None and task.generation.max_new_tokens >= positions:
            raise UserError(
                f"{task.where}: max_new_tokens is {task.generation.max_new_tokens}, but model "
                f"{description.model.name!r} has {positions} positions for prompt and answer together; "
                f"allowed: at most {positions - 1}."
            )


def _check_precision(suite: Suite, drafts: Sequence[CellTemplate], description: Description) -> None:
    """Refuse bounds of logits that transformers' own code makes, which may do more to them than multiply."""
    asked = [draft for draft in drafts if is_certified(suite, draft.kind, draft.method)]
    if asked and description.engine == "hosted":
        raise UserError(
            f'{asked[0].where}: head_precision = "certified": model {description.model.name!r} runs on the hosted '
            'engine, whose logits are not bounded; allowed: models of the lean engine, or head_precision = "exact".'
        )
    if asked and suite.dtype == "int8":
        raise UserError(
            f'{asked[0].where}: head_precision = "certified" bounds an LM head by an int8 copy, and dtype = "int8" has '
            'no other; allowed: another dtype, or head_precision = "exact".'
        )


def _requests(draft: CellTemplate) -> list[DataRequest]:
    """Every set of documents of a cell: what is fitted or calibrated is measured on the task's own."""
    return [draft.data, draft.task.data]


def _corpus(entry: TaskEntry, data: DataRequest, data_dir: Path | None, corpora: Corpora) -> Corpus:
    try:
        return corpora.describe(data, data_dir)
    except UserError as error:
        raise UserError(f"{entry.where}: {error}") from None


def _task_ref(label: str, data: DataRequest, corpus: Corpus, kind: ModelKind) -> TaskRef:
    task = data.task_object
    return TaskRef(
        name=task.name,
        label=label,
        split=data.split,
        source=data.source,
        documents=corpus.documents,
        data_sha256=corpus.data_sha256,
        prompts_sha256=corpus.prompts_sha256[kind],
        metric_version=task.metric_version,
        settings=None if data.settings is None else _asked(data.settings),
    )


def _asked(settings: LmEvalSettings) -> dict[str, Any]:
    """Settings as an identity has them: where a YAML lies does not count, what it says is in the metrics' version."""
    asked = {name: value for name, value in asdict(settings).items() if name not in ("include", "declaration")}
    return {**asked, "gen_kwargs": dict(settings.gen_kwargs)}


@dataclass(frozen=True)
class _Builder:
    """Gives drafts their identity."""

    suite: Suite
    device: str
    corpora: Mapping[tuple[str, DataRequest], Corpus]

    def build(
        self,
        drafts: Sequence[CellTemplate],
        described: Description,
        asked: Mapping[str, GenerationSettings],
        dtype: str,
        device_map: DeviceMap | None,
    ) -> list[CellJob]:
        """Return the cells of one model, of which tasks ask this; two drafts that ask the same give one."""
        ids: dict[str, str] = {}
        items: dict[str, CellJob] = {}
        for draft in drafts:
            cell = self._cell(draft, described, asked[draft.task.label], dtype, device_map, ids)
            ids[draft.label] = cell.cell_id
            held_out = None if draft.calibration is None else draft.task.data
            item = CellJob(cell, draft.label, draft.data, held_out, timeout_s=self.suite.cell_timeout_s)
            items.setdefault(cell.cell_id, item)
        return list(items.values())

    def _cell(
        self,
        draft: CellTemplate,
        described: Description,
        asked: GenerationSettings,
        dtype: str,
        device_map: DeviceMap | None,
        ids: Mapping[str, str],
    ) -> Cell:
        model = described.model
        method, suite, calibration = draft.method, self.suite, draft.calibration
        params = {"fit": method.fit_params, "scores": method.score_params}.get(draft.kind, method.params)()
        replaced = {"threshold"} if calibration is not None else set()  # by each level tried
        unused = tuple(sorted((method.unused_params() | replaced) & params.keys()))
        if calibration is not None:
            held_out = self.corpora[draft.task.label, draft.task.data].data_sha256
            calibration = replace(calibration, held_out_sha256=held_out)
        return Cell(
            suite=suite.name,
            kind=draft.kind,
            method=MethodRef(method.name, params, revision(type(method)), *distribution(type(method)), unused),
            engine_version=ENGINE_VERSION,
            kv_policy=method.parts(model.blocks).kv_policy.name,
            model=model,
            task=_task_ref(draft.task.label, draft.data, self.corpora[draft.task.label, draft.data], model.kind),
            generation=asked,
            dtype=dtype,
            device=self.device,
            batch_size=suite.batch_size,
            seed=suite.seed,
            random_weights=draft.model.random_weights,
            limited=draft.kind != "fit" and draft.task.data.limit != suite.task(draft.task.label).data.limit,
            timing=suite.timing if draft.kind == "timing" else None,
            calibration=calibration,
            record=draft.record,
            full_depth_cell_id=ids[draft.baseline] if draft.baseline else None,
            batch_rows=self._batch_rows(draft),
            engine=described.engine,
            device_map=device_map,
            head_precision="certified" if is_certified(suite, draft.kind, method) else "exact",
            **{name: ids[label] for name, label in draft.inputs.items()},
        )

    def _batch_rows(self, draft: CellTemplate) -> int | None:
        """Rows decoded together where that is asked; asking for what is done anyway is asking for nothing."""
        asked = draft.task.batch_rows or self.suite.batch_rows
        decodes = draft.kind in ("quality", "probe", "scores", "calibration") and draft.record is None
        return asked if decodes and asked != unasked_rows(draft.kind, self.suite.batch_size) else None


def _planned(item: CellJob, statuses: Mapping[str, AttemptStatus], predecessors: Predecessors) -> PlannedCell:
    latest = statuses.get(item.cell.cell_id)
    if latest is None:
        why = predecessors.difference(item.cell)
        return PlannedCell(item, "stale" if why else "new", why)
    if latest.status != UNFINISHED:
        item = replace(item, seen=latest.attempt_id)
    if latest.status == "ok":
        return PlannedCell(item, "done", "")
    state: State = "new" if latest.status in TO_BE_RUN else "failed"
    return PlannedCell(item, state, f"{latest.status}: {latest.reason}" if latest.reason else latest.status)
