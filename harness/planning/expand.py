"""Expand a suite into cells: grids and queries to cell templates, before weights and documents are known."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from exitbench.errors import UserError
from exitbench.harness.cells.cell import CalibrationSettings, Kind, RecordSettings
from exitbench.harness.cells.job import DataRequest
from exitbench.harness.engine.decoding.logit_rules import why_not
from exitbench.harness.planning.entries.task import TaskEntry
from exitbench.harness.planning.suite import CalibrationEntry, ModelEntry, Suite, point_label
from exitbench.methods.base import Method
from exitbench.methods.registry import baseline_method, certifiable

# Within a task: what others depend on first, timing last, so that nothing else runs between timed cells.
_ORDER: tuple[Kind, ...] = ("fit", "probe", "scores", "quality", "replay", "calibration", "timing")


@dataclass(frozen=True)
class CellTemplate:
    """A cell by its names.

    Attributes:
        label: ``model/task/method:stated parameters/kind``; unique in a suite.
        where: File, line and key that ask for it.
        data: Its documents; of another split than the task's for what is fitted or calibrated.
        baseline: Label of full depth's quality cell; None for itself, and for what is not compared with it.
        inputs: Labels of the cells that it computes from, by the name of the `Cell` field that holds their ids.
        calibration: Settings of a calibration; its choice is checked on the task's own documents.
        record: What a probe records of the inside of blocks.
    """

    label: str
    where: str
    model: ModelEntry
    task: TaskEntry
    data: DataRequest
    method: Method
    kind: Kind
    baseline: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    calibration: CalibrationSettings | None = None
    record: RecordSettings | None = None

    def check(self, n_blocks: int, exit_blocks: tuple[int, ...] | None = None) -> None:
        """Check what depends on the model.

        Args:
            n_blocks: Decoder blocks, L.
            exit_blocks: Blocks with a trained exit head; None while the model is not trained.

        Raises:
            UserError: A parameter does not fit, or the method needs heads that the model does not have.
        """
        try:
            self.method.check(n_blocks)
            if exit_blocks is not None:
                self.method.bound_to(exit_blocks)
        except UserError as error:
            raise UserError(f"{self.where}: {error} The model is {self.model.name!r}.") from None


def expand(suite: Suite, limit: int | None = None) -> list[CellTemplate]:
    """Return every cell that a suite asks for, in the order in which they run, dependencies first.

    Full depth's quality cell is added for every model and task; its probe, fits and scores where a cell needs them.

    Args:
        suite: The suite.
        limit: Upper bound of documents a task, below the suite's own.
    """
    if limit is not None:
        suite = replace(suite, tasks=tuple(_limited(entry, limit) for entry in suite.tasks))
    drafts: dict[str, CellTemplate] = {}
    for model in suite.models:
        for task in (task for task in suite.tasks if model.is_asked(task.label)):
            cells = list(_of_pair(suite, model, task))
            drafts.update((draft.label, draft) for draft in sorted(cells, key=_rank))
    return list(drafts.values())


def select(drafts: Sequence[CellTemplate], only: str | None, kinds: Sequence[Kind] | None) -> list[CellTemplate]:
    """Keep the cells whose label matches a glob and whose kind is listed, and what they depend on.

    Raises:
        UserError: Nothing is left.
    """
    by_label = {draft.label: draft for draft in drafts}
    wanted = [d for d in drafts if (only is None or fnmatchcase(d.label, only)) and (not kinds or d.kind in kinds)]
    if not wanted:
        examples = "".join(f"\n  {label}" for label in list(by_label)[:4])
        raise UserError(
            f"no cell matches --only {only or '*'!r} with kinds {', '.join(kinds or _ORDER)}. Cells are named{examples}"
        )
    kept = {draft.label for draft in wanted}
    for draft in wanted:
        kept |= _dependencies(draft, by_label)
    return [draft for draft in drafts if draft.label in kept]


def _dependencies(draft: CellTemplate, by_label: dict[str, CellTemplate]) -> set[str]:
    """Labels of what a cell needs before it runs, and of the full depth that it is compared with."""
    needed = {*draft.inputs.values(), *([draft.baseline] if draft.baseline else [])}
    return needed.union(*(_dependencies(by_label[label], by_label) for label in needed))


def _limited(task: TaskEntry, limit: int) -> TaskEntry:
    task_limit = task.data.limit
    return replace(task, data=replace(task.data, limit=limit if task_limit is None else min(task_limit, limit)))


def is_certified(suite: Suite, kind: Kind, method: Method) -> bool:
    """Whether a cell decides from bounds of the logits: what decodes with a gate that decides, where that is asked."""
    decodes = kind in ("quality", "timing", "calibration")
    return suite.head_precision == "certified" and decodes and method.parts(n_blocks=2).gate.decides


def _of_pair(suite: Suite, model: ModelEntry, task: TaskEntry) -> Iterator[CellTemplate]:
    pair = _Pair(model, task, suite)
    for sweep in suite.sweeps:
        if model.name not in sweep.models or task.label not in sweep.tasks:
            continue
        yield pair.full(sweep.where)
        if "probe" in sweep.kinds:
            yield pair.probe(sweep.where)
        if "probe" in sweep.records:
            yield _recording(pair.probe(sweep.where), sweep.records["probe"])
        for point in sweep.points:
            for kind in sweep.kinds:
                if kind == "timing" and task.label not in sweep.timed_tasks:
                    continue
                for cell in pair.cells(sweep.where, point.method, point.label(sweep.method), kind):
                    yield cell
                    if kind == "timing" == cell.kind and kind in sweep.records:
                        yield _recording(cell, sweep.records[kind])
    for entry in suite.calibrations:
        if model.name in entry.models and task.label in entry.tasks:
            for point in entry.points:
                yield from pair.calibration(entry, point.method, point.label(entry.method))


def _recording(cell: CellTemplate, record: RecordSettings) -> CellTemplate:
    """A probe or timing that records what others do not; the plain one stays, and is what others compute from."""
    name, _, kind = cell.label.rpartition("/")
    joint = "," if ":" in name.rpartition("/")[2] else ":"
    about = f"record={';'.join(record.what)},documents={record.documents}"
    return replace(cell, label=f"{name}{joint}{about}/{kind}", record=record)


@dataclass(frozen=True)
class _Pair:
    """A model and a task, and the cells on them."""

    model: ModelEntry
    task: TaskEntry
    suite: Suite

    def label(self, method: str, kind: Kind) -> str:
        return f"{self.model.name}/{self.task.label}/{method}/{kind}"

    def full(self, where: str) -> CellTemplate:
        baseline = baseline_method()()
        label = self.label(baseline.name, "quality")
        return CellTemplate(label, where, self.model, self.task, self.task.data, baseline, "quality")

    def check_rules(self, where: str, kind: Kind, method: Method) -> None:
        """Refuse what says of the head's own choices, where the task has tokens chosen otherwise."""
        rules = f"{', '.join(self.task.generation.logit_rules)} of [tasks.{self.task.label}]"
        if not self.task.generation.logit_rules:
            return
        if kind in ("probe", "scores", "replay"):
            raise UserError(
                f"{where}: a {kind} records the choices of the heads themselves, which {rules} changes; "
                "allowed kinds: quality, timing, fit, calibration."
            )
        if why := why_not(method.parts(n_blocks=2)):
            raise UserError(f"{where}: {method.name!r} {why}, which {rules} changes.")

    def check_precision(self, where: str, kind: Kind, method: Method) -> None:
        """Refuse what cannot be decided from bounds of the logits, where the suite asks for that."""
        if not is_certified(self.suite, kind, method):
            return
        asked = 'head_precision = "certified"'
        if not self.task.work.generates:
            raise UserError(
                f"{where}: {asked}: [tasks.{self.task.label}] generates nothing, and scores of given texts and labels "
                'need the exact head; allowed: tasks that generate, or head_precision = "exact".'
            )
        if why := method.parts(n_blocks=2).why_not_certified:
            raise UserError(
                f"{where}: {asked}: {method.name!r} cannot decide from bounds: {why}. "
                f"Allowed: {', '.join(certifiable())} (with their usual head), methods whose gate decides nothing, or "
                'head_precision = "exact".'
            )

    def probe(self, where: str) -> CellTemplate:
        full = self.full(where)
        self.check_rules(where, "probe", full.method)
        return replace(full, label=self.label(full.method.name, "probe"), kind="probe", baseline=full.label)

    def fit(self, where: str, method: Method) -> CellTemplate:
        """What the method is fitted to: the same for all settings that do not change it."""
        why = f"method {method.name!r}, which is fitted on the train split,"
        data = self.task.other_split("train", self.suite.fit_documents, why)
        label, bare = self._reduced(method, method.fit_params(), "fit")
        return CellTemplate(label, where, self.model, self.task, data, bare, "fit")

    def scores(self, where: str, method: Method) -> Iterator[CellTemplate]:
        """What the method's gate says of every probed token, and what that needs."""
        label, bare = self._reduced(method, method.score_params(), "scores")
        inputs = {"probe_cell_id": self.probe(where).label}
        if bare.fit_params():
            yield self.fit(where, bare)
            inputs["fit_cell_id"] = self.fit(where, bare).label
        full = self.full(where)
        yield CellTemplate(label, where, self.model, self.task, self.task.data, bare, "scores", full.label, inputs)

    def cells(self, where: str, method: Method, name: str, kind: Kind) -> Iterator[CellTemplate]:
        """One kind of cell of a method, and all that it needs."""
        full = self.full(where)
        if kind == "probe" or (kind == "quality" and method == full.method):
            return  # those of full depth are asked for above
        self.check_rules(where, kind, method)
        self.check_precision(where, kind, method)
        inputs: dict[str, str] = {}
        if method.fit_params():
            fit = self.fit(where, method)
            yield fit
            inputs["fit_cell_id"] = fit.label
        if kind == "fit":
            return
        if kind in ("scores", "replay"):
            if method.parts(n_blocks=2).kv_policy.verifies:
                raise UserError(
                    f"{where}: {method.name!r} verifies what it drafts, which a {kind} of single tokens cannot tell; "
                    "allowed kinds: quality, timing."
                )
            yield self.probe(where)
            inputs["probe_cell_id"] = self.probe(where).label
        if kind == "scores" or (
            kind == "replay" and not (self.task.work.probe_tells_scores and method.probe_tells_score())
        ):
            *needed, scores = self.scores(where, method)
            yield from (*needed, scores)
            inputs["scores_cell_id"] = scores.label
        if kind != "scores":
            label = self.label(name, kind)
            yield CellTemplate(label, where, self.model, self.task, self.task.data, method, kind, full.label, inputs)

    def calibration(self, entry: CalibrationEntry, method: Method, name: str) -> Iterator[CellTemplate]:
        """A calibration, and what its method needs."""
        self.check_rules(entry.where, "calibration", method)
        self.check_precision(entry.where, "calibration", method)
        fit = self.fit(entry.where, method) if method.fit_params() else None
        fitted_on = fit.data if fit else None
        data = self.task.other_split("calibration", entry.documents, "a calibration", fitted_on)
        inputs = {}
        if fit is not None:
            yield fit
            inputs["fit_cell_id"] = fit.label
        settings = entry.settings
        about = (
            f"{name}:{settings.consistency},delta={settings.delta},epsilon={settings.epsilon},{settings.rule},"
            f"levels={';'.join(map(str, settings.levels))},documents={entry.documents}"
        )
        label = self.label(about, "calibration")
        yield CellTemplate(
            label, entry.where, self.model, self.task, data, method, "calibration", None, inputs, settings
        )

    def _reduced(self, method: Method, params: Mapping[str, Any], kind: Kind) -> tuple[str, Method]:
        """The method with these parameters and the default of all others, and the label of its cell."""
        default = type(method)().params()
        stated = [(name, value) for name, value in params.items() if value != default[name]]
        return self.label(point_label(method.name, stated), kind), type(method).from_params(params)


def _rank(draft: CellTemplate) -> tuple[bool, int]:
    is_full_depth = draft.kind == "quality" and draft.baseline is None
    return not is_full_depth, _ORDER.index(draft.kind)
