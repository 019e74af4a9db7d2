"""From a suite to the cells it asks for, before anything is known of weights and documents."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from exitbench.errors import UserError
from exitbench.harness.cell import Kind
from exitbench.harness.suite import ModelEntry, Suite, TaskEntry
from exitbench.methods.base import Method
from exitbench.methods.registry import baseline_method, get_method

# Within a task: what others depend on first, timing last, so that nothing else runs between timed cells.
_ORDER: tuple[Kind, ...] = ("probe", "quality", "replay", "timing")


@dataclass(frozen=True)
class Draft:
    """A cell by its names.

    Attributes:
        label: ``model/task/method:stated parameters/kind``; unique in a suite.
        where: File, line and key that ask for it.
        baseline: Label of full depth's quality cell; None for itself.
        depends_on: Labels of the cells that must have ended ``ok`` before.
    """

    label: str
    where: str
    model: ModelEntry
    task: TaskEntry
    method: Method
    kind: Kind
    baseline: str | None
    depends_on: tuple[str, ...]

    def check(self, n_blocks: int) -> None:
        """Check what depends on the model's depth.

        Raises:
            UserError: A parameter does not fit, or the method cannot be replayed from a probe.
        """
        try:
            self.method.check(n_blocks)
        except UserError as error:
            raise UserError(f"{self.where}: {error} The model is {self.model.name!r}.") from None
        if self.kind == "replay":
            rule = self.method.parts(n_blocks).exit_layer_sql(n_blocks, self.task.max_new_tokens)
            if rule is None:
                raise UserError(
                    f"{self.where}: method {self.method.name!r} cannot be replayed from a probe; "
                    "take 'replay' out of its kinds."
                )


def expand(suite: Suite, limit: int | None = None) -> list[Draft]:
    """Return every cell that a suite asks for, in the order in which they run, dependencies first.

    Full depth's quality cell is added for every model and task, and its probe where a sweep asks for
    ``probe`` or ``replay``.

    Args:
        suite: The suite.
        limit: Upper bound of documents a task, below the suite's own.
    """
    if limit is not None:
        suite = replace(suite, tasks=tuple(_limited(entry, limit) for entry in suite.tasks))
    drafts: dict[str, Draft] = {}
    for model in suite.models:
        for task in suite.tasks:
            cells = list(_of_pair(suite, model, task))
            drafts.update((draft.label, draft) for draft in sorted(cells, key=_rank))
    return list(drafts.values())


def select(drafts: Sequence[Draft], only: str | None, kinds: Sequence[Kind] | None) -> list[Draft]:
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


def _dependencies(draft: Draft, by_label: dict[str, Draft]) -> set[str]:
    """Labels of what a cell needs before it runs, and of the full depth that it is compared with."""
    needed = {*draft.depends_on, *([draft.baseline] if draft.baseline else [])}
    return needed.union(*(_dependencies(by_label[label], by_label) for label in needed))


def _limited(task: TaskEntry, limit: int) -> TaskEntry:
    own = task.data.limit
    return replace(task, data=replace(task.data, limit=limit if own is None else min(own, limit)))


def _of_pair(suite: Suite, model: ModelEntry, task: TaskEntry) -> Iterable[Draft]:
    baseline = baseline_method().from_params({})
    full, probe = (_label(model, task, baseline.name, kind) for kind in ("quality", "probe"))
    for sweep in suite.sweeps:
        if model.name not in sweep.models or task.label not in sweep.tasks:
            continue
        yield Draft(full, sweep.where, model, task, baseline, "quality", None, ())
        if {"probe", "replay"} & set(sweep.kinds):
            yield Draft(probe, sweep.where, model, task, baseline, "probe", full, ())
        for point in sweep.points:
            method = get_method(sweep.method).from_params(dict(point.params), sweep.where)
            for kind in sweep.kinds:
                label = _label(model, task, point.label(sweep.method), kind)
                if kind != "probe" and label != full:
                    depends_on = {"quality": (full,), "replay": (probe,)}.get(kind, ())
                    yield Draft(label, sweep.where, model, task, method, kind, full, depends_on)


def _label(model: ModelEntry, task: TaskEntry, method: str, kind: Kind) -> str:
    return f"{model.name}/{task.label}/{method}/{kind}"


def _rank(draft: Draft) -> tuple[bool, int]:
    return draft.baseline is not None, _ORDER.index(draft.kind)
