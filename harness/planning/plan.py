"""A plan: every cell of a suite with its state: new, done, stale (and the reason) or failed.

Planning reads the spool, the documents and the digests of the weights. It loads and downloads no model, and writes only
the digest caches next to the weights and next to the spool.
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
    default_batch_rows,
)
from exitbench.harness.cells.corpus import Corpora, Corpus
from exitbench.harness.cells.job import CellJob, DataRequest
from exitbench.harness.cells.number_formats import check_format
from exitbench.harness.engine import ENGINE_VERSION
from exitbench.harness.engine.checkpoints.device_maps import describe_map, resolve_device_map
from exitbench.harness.engine.checkpoints.digest import Description, inspect_checkpoint
from exitbench.harness.engine.checkpoints.exit_head_files import read_exit_blocks
from exitbench.harness.engine.checkpoints.hub import HubName, Located, find
from exitbench.harness.planning.data_checks import require_apart, require_learned
from exitbench.harness.planning.entries.task import TaskEntry
from exitbench.harness.planning.expand import CellTemplate, expand, is_certified, select
from exitbench.harness.planning.generation_checks import check_answers, remarks, resolve
from exitbench.harness.planning.prompt_styles import styled
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
    """A cell and its state in the spool; ``why`` is the reason for a stale, failed or unfinished cell, else empty."""

    item: CellJob
    state: State
    why: str


@dataclass(frozen=True)
class ModelGroup:
    """Cells that share a loaded model.

    Attributes:
        recipe: Recipe to train; None for a checkpoint given by path.
        folder: Folder of the checkpoint; None until the recipe is trained or the hub's files are downloaded. Until then
            ``cells`` is empty, since a cell has no id without weights.
        labels: Labels of all cells, whether the model is trained or not.
        remarks: Notes (not errors) about the checkpoint, one sentence each.
    """

    model: ModelEntry
    recipe: Recipe | None
    folder: Path | None
    labels: tuple[str, ...]
    cells: tuple[PlannedCell, ...]
    remarks: tuple[str, ...] = ()

    def to_run(self, retry: Retry) -> tuple[CellJob, ...]:
        """Return the cells that a ``--retry`` value selects by their states, in order."""
        return tuple(planned.item for planned in self.cells if planned.state in RETRIED[retry])


@dataclass(frozen=True)
class Plan:
    """All cells of a suite, grouped by model, in the suite's order of models.

    Attributes:
        device: Resolved device.
        task_remarks: Notes (not errors) about the tasks' documents, one sentence each.
        corpora: Description of the documents that each `DataRequest` of the suite selects.
    """

    suite: Suite
    device: str
    groups: tuple[ModelGroup, ...]
    task_remarks: tuple[str, ...]
    corpora: Mapping[DataRequest, Corpus]

    @property
    def untrained(self) -> tuple[Recipe, ...]:
        """Recipes of models that must be trained before their cells can run."""
        return tuple(group.recipe for group in self.groups if group.recipe and group.folder is None)

    @property
    def unfetched(self) -> tuple[HubName, ...]:
        """Hub models that are missing or incomplete in the local cache."""
        return tuple(group.model.hub for group in self.groups if group.model.hub and group.folder is None)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes (not errors) about the whole suite, one sentence each."""
        cells = [planned.item.cell for group in self.groups for planned in group.cells]
        timed = [min(cell.timing.documents, cell.task.documents) for cell in cells if cell.timing is not None]
        fewest, enough = min(timed, default=0), TimingSettings().documents
        if not timed or fewest >= enough:
            return self.task_remarks
        return (
            *self.task_remarks,
            f"Speed is timed on as few as {number_of(fewest, 'document')}: intervals are over documents, and those of "
            f"fewer than {enough} are wide ([timing] documents; limit of a task).",
        )

    @property
    def cell_ids(self) -> frozenset[str]:
        """Ids of all cells in the plan."""
        return frozenset(planned.item.cell.cell_id for group in self.groups for planned in group.cells)

    def states(self) -> Counter[State]:
        """Return the number of cells per state; cells of untrained models count as new."""
        states = Counter(planned.state for group in self.groups for planned in group.cells)
        states["new"] += sum(len(group.labels) for group in self.groups if group.folder is None)
        return states

    def to_run_count(self, retry: Retry) -> int:
        """Return the number of cells that a ``--retry`` value selects."""
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
    hub: bool = False,
) -> Plan:
    """Expand a suite into cells, and find the state of each cell (new, done, stale or failed) in the spool.

    Args:
        suite: The suite.
        spool: Root of the spool; may not exist yet.
        models_dir: Folder of trained recipes; may not exist yet.
        data_dir: Root folder of local files; None if no task needs one.
        only: Glob over labels (MODEL/TASK/METHOD/KIND); dependencies of selected cells are included.
        limit: Maximum number of documents per task.
        kinds: Kinds of cells to include; None for all kinds.
        hub: Whether data with source ``auto`` may come from the hub.

    Raises:
        UserError: Documents or weights cannot be read, documents have conflicting uses, or a parameter does not fit
            a model's depth. Or a model was trained on another difficulty level, or no cell is selected.
    """
    suite = suite.with_sources_resolved(data_dir, hub=hub)
    drafts = select(expand(suite, limit), only, kinds)
    for draft in drafts:
        draft.task.require_source_resolved(data_dir)
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
    wanted = _requests(drafts)
    corpora = Corpora(spool.parent)
    described = {(label, data): _corpus(task, data, data_dir, corpora) for (label, data), task in wanted.items()}
    require_apart(drafts, described, data_dir)
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
            if located.source is not None:
                description = replace(description, model=replace(description.model, source=located.source))
            _check_model(templates, description.model.blocks, read_exit_blocks(folder))
            check_answers(templates, description)
            _check_budget(templates, description)
            _check_precision(suite, templates, description)
            tasks = {draft.task.label: styled(draft.task, folder, description.model, data_dir) for draft in templates}
            templates = [_restyled(draft, tasks[draft.task.label]) for draft in templates]
            described |= {
                (label, data): _corpus(task, data, data_dir, corpora)
                for (label, data), task in _requests(templates).items()
                if (label, data) not in described
            }
            builder = _Builder(suite, device, described)
            settings_by_label = {label: resolve(task, folder, description) for label, task in tasks.items()}
            dtype = resolve_dtype(suite.dtype, folder)
            check_format(entry.location, dtype, description.engine)
            device_map = entry.device_map and resolve_device_map(
                entry.location, entry.device_map, device, folder, dtype, description.model.blocks
            )
            items = builder.build(templates, description, settings_by_label, dtype, device_map)
            remarked = (*located.remarks, *description.remarks)
            if description.labels is None:
                remarked = (*remarked, *remarks(list(tasks.values()), folder, settings_by_label))
            if dtype != suite.dtype:
                remarked = (*remarked, f'dtype = "auto" is {dtype}: what its weights are stored in')
            if device_map is not None:
                remarked = (*remarked, describe_map(device_map))
        cells = tuple(_planned(item, statuses, predecessors) for item in items)
        groups.append(ModelGroup(entry, recipe, folder, tuple(draft.label for draft in templates), cells, remarked))
    task_remarks = {
        f"Task {label!r}: {remark}."
        for (label, data), task in wanted.items()
        if data == task.data
        for remark in described[label, data].remarks
    }
    corpus_by_request = {data: corpus for (_, data), corpus in described.items()}
    return Plan(suite, device, tuple(groups), tuple(sorted(task_remarks)), corpus_by_request)


def _locate(entry: ModelEntry, recipe: Recipe | None, models_dir: Path) -> Located | None:
    """Return a model's location; None for an untrained recipe or a model missing in the hub's cache."""
    if entry.hub is not None:
        return find(entry.hub)
    folder = find_trained(recipe, models_dir, SHIPPED) if recipe else entry.path
    return None if folder is None else Located(folder)


def resolve_device(device: str) -> str:
    """Resolve ``auto`` to ``cuda`` if torch finds a GPU, else to ``cpu``; return any other device unchanged."""
    if device != "auto":
        return device
    return "cuda" if gpu_names() else "cpu"


def gpu_names() -> tuple[str, ...]:
    """Return torch's names of the GPUs that it can use here: ``cuda``, ``cuda:0`` and so on; none without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return ()
    return ("cuda", *(f"cuda:{index}" for index in range(torch.cuda.device_count())))


def resolve_dtype(dtype: str, folder: Path) -> str:
    """Resolve ``auto`` to the dtype of a checkpoint's stored weights; return any other dtype unchanged.

    Raises:
        UserError: The weights cannot be read.
    """
    if dtype != "auto":
        return dtype
    from exitbench.harness.engine.checkpoints.sizes import stored_dtype

    return stored_dtype(folder)


def _restyled(draft: CellTemplate, task: TaskEntry) -> CellTemplate:
    """Return a cell's template with its task replaced by `task`, the same task with prompts in the model's style."""
    if task.data.prompting is None:
        return replace(draft, task=task)
    return replace(draft, task=task, data=replace(draft.data, prompting=task.data.prompting))


def _check_model(drafts: Sequence[CellTemplate], n_blocks: int, exit_blocks: tuple[int, ...]) -> None:
    for draft in drafts:
        draft.check(n_blocks, exit_blocks)


def _check_budget(drafts: Sequence[CellTemplate], description: Description) -> None:
    for draft in drafts:
        task, positions = draft.task, description.max_positions
        if positions is not None and task.generation.max_new_tokens >= positions:
            raise UserError(
                f"{task.location}: max_new_tokens is {task.generation.max_new_tokens}, but model "
                f"{description.model.name!r} has {positions} positions for prompt and answer together; "
                f"allowed: at most {positions - 1}."
            )


def _check_precision(suite: Suite, drafts: Sequence[CellTemplate], description: Description) -> None:
    """Reject certified heads for models without valid logit bounds.

    On the hosted engine, transformers computes the logits and may do more than multiply. With dtype int8, the LM head
    itself is the int8 copy, so there is no exact head.
    """
    cells = [draft for draft in drafts if is_certified(suite, draft.task, draft.kind, draft.method)]
    if cells and description.engine == "hosted":
        raise UserError(
            f'{cells[0].location}: head_precision = "certified": model {description.model.name!r} runs on the hosted '
            'engine, whose logits are not bounded; allowed: models of the lean engine, or head_precision = "exact".'
        )
    if cells and suite.dtype == "int8":
        raise UserError(
            f'{cells[0].location}: head_precision = "certified" bounds an LM head by an int8 copy, and dtype = "int8" '
            'has no other; allowed: another dtype, or head_precision = "exact".'
        )


def _requests(drafts: Sequence[CellTemplate]) -> dict[tuple[str, DataRequest], TaskEntry]:
    """Return the task of each request, by the task's label and the request: for a cell's documents or its task's.

    The two requests differ for fits and calibrations.
    """
    return {(draft.task.label, data): draft.task for draft in drafts for data in (draft.data, draft.task.data)}


def _corpus(entry: TaskEntry, data: DataRequest, data_dir: Path | None, corpora: Corpora) -> Corpus:
    try:
        return corpora.describe(data, data_dir)
    except UserError as error:
        raise UserError(f"{entry.location}: {error}") from None


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
        settings=None if data.settings is None else _settings_identity(data.settings),
    )


def _settings_identity(settings: LmEvalSettings) -> dict[str, Any]:
    """Return the settings of an lm-eval task as JSON data for a cell's identity.

    The location of a YAML file is left out; its content is part of the metric version.
    """
    values = {name: value for name, value in asdict(settings).items() if name not in ("include", "declaration")}
    return {**values, "gen_kwargs": dict(settings.gen_kwargs)}


@dataclass(frozen=True)
class _Builder:
    """Builder that turns cell templates into cells with an id."""

    suite: Suite
    device: str
    corpora: Mapping[tuple[str, DataRequest], Corpus]

    def build(
        self,
        drafts: Sequence[CellTemplate],
        described: Description,
        settings_by_label: Mapping[str, GenerationSettings],
        dtype: str,
        device_map: DeviceMap | None,
    ) -> list[CellJob]:
        """Return the cells of one model; templates with the same identity give one cell.

        Args:
            drafts: The templates.
            described: Description of the model.
            settings_by_label: Generation settings by task label.
            dtype: Resolved number format.
            device_map: Devices of the blocks; None if all blocks are on one device.
        """
        ids: dict[str, str] = {}
        items: dict[str, CellJob] = {}
        for draft in drafts:
            cell = self._cell(draft, described, settings_by_label[draft.task.label], dtype, device_map, ids)
            ids[draft.label] = cell.cell_id
            held_out = None if draft.calibration is None else draft.task.data
            item = CellJob(cell, draft.label, draft.data, held_out, timeout_s=self.suite.cell_timeout_s)
            items.setdefault(cell.cell_id, item)
        return list(items.values())

    def _cell(
        self,
        draft: CellTemplate,
        described: Description,
        generation: GenerationSettings,
        dtype: str,
        device_map: DeviceMap | None,
        ids: Mapping[str, str],
    ) -> Cell:
        model = described.model
        method, suite, calibration = draft.method, self.suite, draft.calibration
        params = {"fit": method.fit_params, "scores": method.score_params}.get(draft.kind, method.params)()
        replaced = {"threshold"} if calibration is not None else set()  # each tried threshold replaces the parameter
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
            generation=generation,
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
            head_precision="certified" if is_certified(suite, draft.task, draft.kind, method) else "exact",
            **{name: ids[label] for name, label in draft.inputs.items()},
        )

    def _batch_rows(self, draft: CellTemplate) -> int | None:
        """Return the requested documents per batch; None if not requested, not applicable or equal to the default."""
        requested_rows = draft.task.batch_rows or self.suite.batch_rows
        decodes = draft.kind in ("quality", "probe", "scores", "calibration") and draft.record is None
        return (
            requested_rows
            if decodes and requested_rows != default_batch_rows(draft.kind, self.suite.batch_size)
            else None
        )


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
