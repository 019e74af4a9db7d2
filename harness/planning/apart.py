"""Train/test separation: what a method is fitted or calibrated on is not what it is measured on.

Two documents are the same where their prompts are: ids of a repeated record differ between files, and greedy decoding
makes one answer of one prompt, so that a loss against full depth's text is the same whatever the references say.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from exitbench.errors import UserError
from exitbench.harness.cells.corpus import Corpus
from exitbench.harness.cells.job import DataRequest
from exitbench.harness.planning.expand import CellTemplate
from exitbench.terminal import visible, without_middle

_SHOWN: Final = 3
_PROMPT_WIDTH: Final = 80
_FITTED, _CALIBRATED, _MEASURED = (f"on which methods are {done}" for done in ("fitted", "calibrated", "measured"))
_KEYS: Final = {
    "builtin": {"fit": "split", "calibration": "split"},
    "local": {"fit": "train_files", "calibration": "calibration_files"},
    "hub": {"fit": "train_split", "calibration": "calibration_split"},
}
"""What a suite names documents by, for each source and kind of cell."""


def require_apart(
    drafts: Sequence[CellTemplate], corpora: Mapping[tuple[str, DataRequest], Corpus], data_dir: Path | None
) -> None:
    """Refuse to measure on documents that something was fitted or calibrated on, or to calibrate on what was fitted on.

    Args:
        drafts: Every cell that is asked for.
        corpora: Descriptions of their documents, by the task's label and the request.
        data_dir: Root of local files.

    Raises:
        UserError: Names task, files or splits, how many documents are shared, and some of them.
    """
    by_label = {draft.label: draft for draft in drafts}
    pairs = {
        (draft.task.label, draft.data, other): (draft, use)
        for draft in drafts
        for use, other in _others(draft, by_label)
    }
    for (label, own, other), (draft, use) in pairs.items():
        shared = set(corpora[label, own].prompts).intersection(corpora[label, other].prompts)
        if shared:
            raise _refusal(draft, other, use, data_dir)


def _others(draft: CellTemplate, by_label: Mapping[str, CellTemplate]) -> Iterator[tuple[str, DataRequest]]:
    """Documents that a cell's own must not be among, and for what they are used."""
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
        f"{draft.task.where}: {len(shared)} of the {len(documents)} documents of {data.place}, "
        f"{_FITTED if draft.kind == 'fit' else _CALIBRATED}, have prompts of documents of "
        f"{other.place}, {use}:",
        *(
            f"  {document.key}  {without_middle(visible(prompt(document)), _PROMPT_WIDTH)}"
            for document in shared[:_SHOWN]
        ),
        *([f"  … and {len(shared) - _SHOWN} more"] if len(shared) > _SHOWN else []),
        f"Choose another {_KEYS[data.source][draft.kind]}, or say drop_shared = true, which leaves such documents out "
        "of what is fitted or calibrated on, and counts them.",
    ]
    return UserError("\n".join(lines))
