"""Checks of a plan's data: fits, calibrations and measurements must not share documents.

In addition, a model is measured only at the difficulty levels of built-in data on which it was trained.

Two documents count as the same if they have the same prompt. Ids would not do: a repeated record may have different ids
in different files. References would not do either: greedy decoding gives one answer per prompt, and a loss relative to
full depth's answer depends on nothing else.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from exitbench.errors import UserError
from exitbench.harness.cells.corpus import Corpus
from exitbench.harness.cells.job import DataRequest
from exitbench.harness.planning.entries.task import TaskEntry
from exitbench.harness.planning.expand import CellTemplate
from exitbench.harness.planning.suite import ModelEntry
from exitbench.harness.training import Recipe
from exitbench.terminal import visible, without_middle

_MAX_SHOWN_DOCUMENTS: Final = 3
_PROMPT_WIDTH: Final = 80
_FITTED, _CALIBRATED, _MEASURED = (f"on which methods are {verb}" for verb in ("fitted", "calibrated", "measured"))
_KEYS: Final = {
    "builtin": {"fit": "split", "calibration": "split"},
    "local": {"fit": "train_files", "calibration": "calibration_files"},
    "hub": {"fit": "train_split", "calibration": "calibration_split"},
}
"""Suite key that selects the documents, by source of the data and kind of cell."""


def require_apart(
    drafts: Sequence[CellTemplate], corpora: Mapping[tuple[str, DataRequest], Corpus], data_dir: Path | None
) -> None:
    """Check that documents for fitting, calibration and measurement do not overlap.

    Args:
        drafts: Templates of all requested cells.
        corpora: Descriptions of their documents, by task label and data request.
        data_dir: Root folder of local files.

    Raises:
        UserError: Documents overlap. The message names the task, the files or splits, and some of the shared documents.
    """
    by_label = {draft.label: draft for draft in drafts}
    pairs = {
        (draft.task.label, draft.data, other): (draft, use)
        for draft in drafts
        for use, other in _disjoint_from(draft, by_label)
    }
    for (label, data, other), (draft, use) in pairs.items():
        shared = set(corpora[label, data].prompts).intersection(corpora[label, other].prompts)
        if shared:
            raise _refusal(draft, other, use, data_dir)


def _disjoint_from(draft: CellTemplate, by_label: Mapping[str, CellTemplate]) -> Iterator[tuple[str, DataRequest]]:
    """Yield (use, request) of every document set that must not overlap with a cell's documents.

    `use` is a phrase for messages: what the document set is for. `by_label` has all templates.
    """
    if draft.kind in ("fit", "calibration"):
        yield _MEASURED, draft.task.data
    if draft.kind == "calibration" and "fit_cell_id" in draft.inputs:
        yield _FITTED, by_label[draft.inputs["fit_cell_id"]].data


def _refusal(draft: CellTemplate, other: DataRequest, use: str, data_dir: Path | None) -> UserError:
    prompt, data = draft.data.task_object.likeness, draft.data
    documents = data.load(data_dir)
    used = {prompt(document) for document in other.load(data_dir)}
    shared = [document for document in documents if prompt(document) in used]
    lines = [
        f"{draft.task.location}: {len(shared)} of the {len(documents)} documents of {data.origin}, "
        f"{_FITTED if draft.kind == 'fit' else _CALIBRATED}, have prompts of documents of "
        f"{other.origin}, {use}:",
        *(
            f"  {document.key}  {without_middle(visible(prompt(document)), _PROMPT_WIDTH)}"
            for document in shared[:_MAX_SHOWN_DOCUMENTS]
        ),
        *([f"  … and {len(shared) - _MAX_SHOWN_DOCUMENTS} more"] if len(shared) > _MAX_SHOWN_DOCUMENTS else []),
        f"Choose another {_KEYS[data.source][draft.kind]}, or say drop_shared = true, which leaves such documents out "
        "of what is fitted or calibrated on, and counts them.",
    ]
    return UserError("\n".join(lines))


def require_learned(model: ModelEntry, recipe: Recipe, tasks: Iterable[TaskEntry]) -> None:
    """Check that a model was trained on the difficulty levels of `tasks`, at which it is measured.

    Raises:
        UserError: The model was trained on other levels of the same built-in task.
    """
    for task in tasks:
        learned = _levels(recipe, task.data.task)
        if task.data.source == "builtin" and learned and task.data.level not in learned:
            allowed = " or ".join(f"level = {level}" for level in sorted(learned))
            raise UserError(
                f"{task.location}: level is {task.data.level}, but model {model.name!r} (recipe {recipe.name!r}) "
                f"learned {task.data.task} at another. Allowed: {allowed}; or a model whose recipe has "
                f"`level = {task.data.level}` where it trains on {task.data.task}."
            )


def _levels(recipe: Recipe, task: str) -> set[int]:
    """Return the difficulty levels of a task in the training data of a recipe and of recipes that it starts from."""
    levels = {source.level for source in recipe.train if (source.task, source.source) == (task, "builtin")}
    return levels | (_levels(recipe.first, task) if recipe.first is not None else set())
