"""GLUE's nine data sets: what a record has, its names in the original files and on the hub, how it is judged."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

HUB: Final = "nyu-mll/glue"


@dataclass(frozen=True)
class DataSet:
    """One data set.

    Attributes:
        texts: The hub's names of its one or two texts.
        columns: What the original files call these.
        label_column: Column of the label there.
        labels: Names of the classes by the hub's numbers; None where pairs are rated.
        written: What the original files have in place of these names.
        metrics: Headline first.
        hub: Name of its part on the hub.
        validation: What the hub's `validation` and `test` have behind their names.
        header: The columns of an original file that does not name them itself; None: its first line does.
        cut_rows: Some rows of its original file are cut by line breaks within a text. The hub's copy leaves these out.
    """

    texts: tuple[str, ...]
    columns: tuple[str, ...]
    label_column: str
    labels: tuple[str, ...] | None
    written: tuple[str, ...]
    metrics: tuple[str, ...]
    hub: str
    validation: str = ""
    header: tuple[str, ...] | None = None
    cut_rows: bool = False


_NUMBERS: Final = ("0", "1")
_ENTAILED: Final = ("entailment", "not_entailment")
_SENTENCES: Final = ("sentence1", "sentence2")
_RATING: Final = ("pearson", "spearman")


def _mnli(validation: str) -> DataSet:
    labels = ("entailment", "neutral", "contradiction")
    return DataSet(("premise", "hypothesis"), _SENTENCES, "gold_label", labels, labels, ("acc",), "mnli", validation)


DATA_SETS: Final[Mapping[str, DataSet]] = {
    "cola": DataSet(
        ("sentence",),
        ("sentence",),
        "label",
        ("unacceptable", "acceptable"),
        _NUMBERS,
        ("mcc",),
        "cola",
        header=("source", "label", "mark", "sentence"),
    ),
    "sst2": DataSet(("sentence",), ("sentence",), "label", ("negative", "positive"), _NUMBERS, ("acc",), "sst2"),
    "mrpc": DataSet(
        _SENTENCES,
        ("#1 String", "#2 String"),
        "Quality",
        ("not_equivalent", "equivalent"),
        _NUMBERS,
        ("f1", "acc"),
        "mrpc",
    ),
    "stsb": DataSet(_SENTENCES, _SENTENCES, "score", None, (), _RATING, "stsb"),
    "qqp": DataSet(
        ("question1", "question2"),
        ("question1", "question2"),
        "is_duplicate",
        ("not_duplicate", "duplicate"),
        _NUMBERS,
        ("f1", "acc"),
        "qqp",
        cut_rows=True,
    ),
    "mnli": _mnli("_matched"),
    "mnli-mismatched": _mnli("_mismatched"),
    "qnli": DataSet(
        ("question", "sentence"), ("question", "sentence"), "label", _ENTAILED, _ENTAILED, ("acc",), "qnli"
    ),
    "rte": DataSet(_SENTENCES, _SENTENCES, "label", _ENTAILED, _ENTAILED, ("acc",), "rte"),
    "wnli": DataSet(_SENTENCES, _SENTENCES, "label", ("not_entailment", "entailment"), _NUMBERS, ("acc",), "wnli"),
}
"""By the names of tasks."""
