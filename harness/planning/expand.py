"""Expand a suite's grids and queries into cell templates. Weights and documents are not read yet."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from exitbench.errors import UserError
from exitbench.harness.cells.cell import CalibrationSettings, Kind, RecordSettings
from exitbench.harness.cells.job import DataRequest
from exitbench.harness.engine.decoding.kept_depth import why_no_scope
from exitbench.harness.engine.decoding.logit_rules import why_not
from exitbench.harness.planning.entries.task import TaskEntry
from exitbench.harness.planning.suite import CalibrationEntry, ModelEntry, Suite, point_label
from exitbench.methods.base import Method
from exitbench.methods.registry import baseline_method, certifiable

# Order within a task: dependencies first, timing last, so that nothing else runs between timed cells.
_ORDER: tuple[Kind, ...] = ("fit", "probe", "scores", "quality", "replay", "calibration", "timing")


@dataclass(frozen=True)
class CellTemplate:
    """A cell described by names, before it has an id, e.g. ``weighted/squad/calm-softmax:threshold=0.9/quality``.

    Attributes:
        label: ``model/task/method:stated parameters/kind``; unique in a suite.
        location: File, line and key that declare the cell.
        data: Documents of the cell; fits and calibrations use another split than the task's.
        baseline: Label of full depth's quality cell; None for that cell itself and for cells not compared with it.
        inputs: Labels of the cells whose results the cell reads, by the `Cell` field for their ids (``fit_cell_id``).
        calibration: Settings of a calibration, whose chosen threshold is checked on the task's own documents.
        record: Additional data that a probe or timing cell stores; None for the usual results.
    """

    label: str
    location: str
    model: ModelEntry
    task: TaskEntry
    data: DataRequest
    method: Method
    kind: Kind
    baseline: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    calibration: CalibrationSettings | None = None
    record: RecordSettings | None = None

    def check(self, n_blocks: int, exit_blocks: tuple[int, ...]) -> None:
        """Check that the method's parameters suit the model's depth, and that the model has the exit heads it needs.

        Args:
            n_blocks: Number of decoder blocks, L.
            exit_blocks: Blocks with a trained exit head.

        Raises:
            UserError: A parameter does not fit the model, or the method needs exit heads that the model lacks.
        """
        try:
            self.method.check(n_blocks)
            self.method.bound_to(exit_blocks)
        except UserError as error:
            raise UserError(f"{self.location}: {error} The model is {self.model.name!r}.") from None


def expand(suite: Suite, limit: int | None = None) -> list[CellTemplate]:
    """Return the templates of all cells of a suite in running order, dependencies first.

    Full depth's quality cell is added for every model and task, and so are cells whose results another cell reads:
    probe (every block's predictions), fit, and scores (of a gate at every block).

    Args:
        suite: The suite.
        limit: Maximum number of documents per task, in addition to the suite's own limit.
    """
    if limit is not None:
        suite = replace(suite, tasks=tuple(_limited(entry, limit) for entry in suite.tasks))
    drafts: dict[str, CellTemplate] = {}
    for model in suite.models:
        for task in (task for task in suite.tasks if model.runs_task(task.label)):
            cells = list(_cells_of_pair(suite, model, task))
            drafts.update((draft.label, draft) for draft in sorted(cells, key=_rank))
    return list(drafts.values())


def select(drafts: Sequence[CellTemplate], only: str | None, kinds: Sequence[Kind] | None) -> list[CellTemplate]:
    """Return the requested templates, with the templates of all cells that they depend on.

    Args:
        drafts: All templates of a suite.
        only: Glob over labels (MODEL/TASK/METHOD/KIND); None for all labels.
        kinds: Kinds of cell; None or empty for all kinds.

    Raises:
        UserError: No template matches.
    """
    by_label = {draft.label: draft for draft in drafts}
    wanted = [d for d in drafts if (only is None or fnmatchcase(d.label, only)) and (not kinds or d.kind in kinds)]
    if not wanted:
        examples = "".join(f"\n  {label}" for label in list(by_label)[:4])
        raise UserError(
            f"no cell matches --only {only or '*'!r} with kinds {', '.join(kinds or _ORDER)}. Cells are named{examples}"
        )
    kept_labels = {draft.label for draft in wanted}
    for draft in wanted:
        kept_labels |= _dependencies(draft, by_label)
    return [draft for draft in drafts if draft.label in kept_labels]


def _dependencies(draft: CellTemplate, by_label: dict[str, CellTemplate]) -> set[str]:
    """Return the labels of all cells that a cell depends on, directly or not, including its full-depth baseline."""
    needed = {*draft.inputs.values(), *([draft.baseline] if draft.baseline else [])}
    return needed.union(*(_dependencies(by_label[label], by_label) for label in needed))


def _limited(task: TaskEntry, limit: int) -> TaskEntry:
    task_limit = task.data.limit
    return replace(task, data=replace(task.data, limit=limit if task_limit is None else min(task_limit, limit)))


def is_certified(suite: Suite, task: TaskEntry, kind: Kind, method: Method) -> bool:
    """Return whether the gate and the tokens of a cell are decided from bounds of the logits before the exact LM head.

    True if the suite requests certified heads and the cell decodes. The exception is a method whose exits do not depend
    on gate scores and that cannot be certified: on a task that generates nothing, with tokens drawn at random, or with
    another head. It reads the exact head.
    """
    if suite.head_precision != "certified" or kind not in ("quality", "timing", "calibration"):
        return False
    parts = method.parts(n_blocks=2)
    return parts.gate.decides or (task.work.generates and parts.why_not_certified is None)


def _cells_of_pair(suite: Suite, model: ModelEntry, task: TaskEntry) -> Iterator[CellTemplate]:
    pair = _PairExpander(model, task, suite)
    for sweep in suite.sweeps:
        if model.name not in sweep.models or task.label not in sweep.tasks:
            continue
        yield pair.full(sweep.location)
        if "probe" in sweep.kinds:
            yield pair.probe(sweep.location)
        if "probe" in sweep.records:
            yield _recording(pair.probe(sweep.location), sweep.records["probe"])
        for point in sweep.points:
            for kind in sweep.kinds:
                if kind == "timing" and task.label not in sweep.timed_tasks:
                    continue
                for cell in pair.cells(sweep.location, point.method, point.label, kind):
                    yield cell
                    if kind == "timing" == cell.kind and kind in sweep.records:
                        yield _recording(cell, sweep.records[kind])
    for entry in suite.calibrations:
        if model.name in entry.models and task.label in entry.tasks:
            for point in entry.points:
                yield from pair.calibration(entry, point.method, point.label)


def _recording(cell: CellTemplate, record: RecordSettings) -> CellTemplate:
    """Return a copy of a probe or timing cell's template that stores additional data and has its own label.

    `record` says which data. Cells that depend on the original cell still read its results.
    """
    name, _, kind = cell.label.rpartition("/")
    joint = "," if ":" in name.rpartition("/")[2] else ":"
    about = f"record={';'.join(record.what)},documents={record.documents}"
    return replace(cell, label=f"{name}{joint}{about}/{kind}", record=record)


@dataclass(frozen=True)
class _PairExpander:
    """Builder of the cell templates of one model on one task."""

    model: ModelEntry
    task: TaskEntry
    suite: Suite

    def label(self, method: str, kind: Kind) -> str:
        return f"{self.model.name}/{self.task.label}/{method}/{kind}"

    def full(self, location: str) -> CellTemplate:
        baseline = baseline_method()()
        label = self.label(baseline.name, "quality")
        return CellTemplate(label, location, self.model, self.task, self.task.data, baseline, "quality")

    def check_rules(self, location: str, kind: Kind, method: Method) -> None:
        """Reject kinds of cell and methods that need the heads' own choices of tokens, if logit rules change these.

        Logit rules are settings of the task, such as a repetition penalty. `location`, a place in the suite file, is
        for the error message.
        """
        rules = f"{', '.join(self.task.generation.logit_rules)} of [tasks.{self.task.label}]"
        if not self.task.generation.logit_rules:
            return
        if kind in ("probe", "scores", "replay"):
            raise UserError(
                f"{location}: a {kind} records the choices of the heads themselves, which {rules} changes; "
                "allowed kinds: quality, timing, fit, calibration."
            )
        if why := why_not(method.parts(n_blocks=2)):
            raise UserError(f"{location}: {method.name!r} {why}, which {rules} changes.")

    def check_scope(self, location: str, kind: Kind, method: Method) -> None:
        """Reject kinds and methods that decide per token, if all tokens of an answer exit where its first token exits.

        `location`, a place in the suite file, is for the error message.
        """
        if self.task.generation.scope != "answer":
            return
        scope = f'scope = "answer" of [tasks.{self.task.label}]'
        if kind in ("scores", "replay"):
            raise UserError(f"{location}: a {kind} is of single tokens, and {scope} keeps one depth for an answer.")
        if why := why_no_scope(method.parts(n_blocks=2)):
            raise UserError(f"{location}: {method.name!r} {why}; it does not go with {scope}.")

    def check_precision(self, location: str, kind: Kind, method: Method) -> None:
        """Reject a cell that needs the exact LM head, if the suite requests certified heads (logit bounds).

        `location`, a place in the suite file, is for the error message.
        """
        if not is_certified(self.suite, self.task, kind, method):
            return
        option = 'head_precision = "certified"'
        if not self.task.work.generates:
            raise UserError(
                f"{location}: {option}: [tasks.{self.task.label}] generates nothing, and scores of given texts and "
                'labels need the exact head; allowed: tasks that generate, or head_precision = "exact".'
            )
        if why := method.parts(n_blocks=2).why_not_certified:
            raise UserError(
                f"{location}: {option}: {method.name!r} cannot decide from bounds: {why}. "
                f"Allowed: {', '.join(certifiable())} (with their usual head), or "
                'head_precision = "exact".'
            )

    def probe(self, location: str) -> CellTemplate:
        full = self.full(location)
        self.check_rules(location, "probe", full.method)
        return replace(full, label=self.label(full.method.name, "probe"), kind="probe", baseline=full.label)

    def fit(self, location: str, method: Method) -> CellTemplate:
        """Return the template of the cell that fits a method, shared by all its settings with the same fit parameters.

        `location` is the place in the suite file, for messages.
        """
        why = f"method {method.name!r}, which is fitted on the train split,"
        data = self.task.other_split("train", self.suite.fit_documents, why)
        label, bare = self._with_params(method, method.fit_params(), "fit")
        return CellTemplate(label, location, self.model, self.task, data, bare, "fit")

    def scores(self, location: str, method: Method) -> Iterator[CellTemplate]:
        """Yield the template of the cell that evaluates a method's gate at every block, on all tokens of the probe.

        The template of the method's fit comes first if the gate needs one. `location` is the place in the suite file,
        for messages.
        """
        label, bare = self._with_params(method, method.score_params(), "scores")
        inputs = {"probe_cell_id": self.probe(location).label}
        if bare.fit_params():
            yield self.fit(location, bare)
            inputs["fit_cell_id"] = self.fit(location, bare).label
        full = self.full(location)
        yield CellTemplate(label, location, self.model, self.task, self.task.data, bare, "scores", full.label, inputs)

    def cells(self, location: str, method: Method, name: str, kind: Kind) -> Iterator[CellTemplate]:
        """Yield the template of a method's cell of one kind, after the templates of all cells that it depends on.

        Nothing is yielded for a probe or for full depth's quality cell, which `_cells_of_pair` adds.

        Args:
            location: Place in the suite file that declares the cell, for messages.
            method: The method with its parameters.
            name: The method's name with its stated parameters, for the label.
            kind: Kind of the cell.
        """
        full = self.full(location)
        if kind == "probe" or (kind == "quality" and method == full.method):
            return  # `_cells_of_pair` yields full depth's cells
        self.check_rules(location, kind, method)
        self.check_scope(location, kind, method)
        self.check_precision(location, kind, method)
        inputs: dict[str, str] = {}
        if method.fit_params():
            fit = self.fit(location, method)
            yield fit
            inputs["fit_cell_id"] = fit.label
        if kind == "fit":
            return
        if kind in ("scores", "replay"):
            if method.parts(n_blocks=2).kv_policy.verifies:
                raise UserError(
                    f"{location}: {method.name!r} verifies what it drafts, which a {kind} of single tokens cannot "
                    "tell; allowed kinds: quality, timing."
                )
            if method.parts(n_blocks=2).gate.remembers:
                raise UserError(
                    f"{location}: {method.name!r} decides by the earlier tokens of an answer, which a {kind} of single "
                    "tokens cannot tell; allowed kinds: quality, timing."
                )
            yield self.probe(location)
            inputs["probe_cell_id"] = self.probe(location).label
        if kind == "scores" or (
            kind == "replay" and not (self.task.work.probe_has_scores and method.probe_has_score())
        ):
            *needed, scores = self.scores(location, method)
            yield from (*needed, scores)
            inputs["scores_cell_id"] = scores.label
        if kind != "scores":
            label = self.label(name, kind)
            yield CellTemplate(label, location, self.model, self.task, self.task.data, method, kind, full.label, inputs)

    def calibration(self, entry: CalibrationEntry, method: Method, name: str) -> Iterator[CellTemplate]:
        """Yield the template of a calibration cell, preceded by the fit of its method if one is needed.

        `name` is the method's name with its stated parameters, for the label.
        """
        self.check_rules(entry.location, "calibration", method)
        self.check_precision(entry.location, "calibration", method)
        fit = self.fit(entry.location, method) if method.fit_params() else None
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
            label, entry.location, self.model, self.task, data, method, "calibration", None, inputs, settings
        )

    def _with_params(self, method: Method, params: Mapping[str, Any], kind: Kind) -> tuple[str, Method]:
        """Return a cell's label and its method, both with the parameters `params` and defaults for all others."""
        default = type(method)().params()
        stated = [(name, value) for name, value in params.items() if value != default[name]]
        return self.label(point_label(method.name, stated), kind), type(method).from_params(params)


def _rank(draft: CellTemplate) -> tuple[bool, int]:
    is_full_depth = draft.kind == "quality" and draft.baseline is None
    return not is_full_depth, _ORDER.index(draft.kind)
