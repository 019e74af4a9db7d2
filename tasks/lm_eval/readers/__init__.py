"""Readers of local files for tasks of lm-eval: any form of a data set, in the fields that the hub has.

A data set of the hub has a reader here if its original files have another form; JSON, JSON lines, CSV and Parquet with
the hub's fields are read of any.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from exitbench.tasks.declared.choices import DATASET, read_choices
from exitbench.tasks.lm_eval.readers.hellaswag import read_hellaswag
from exitbench.tasks.lm_eval.readers.mbpp import read_mbpp
from exitbench.tasks.lm_eval.readers.mmlu import read_mmlu
from exitbench.tasks.lm_eval.readers.narrativeqa import read_narrativeqa
from exitbench.tasks.lm_eval.readers.strategyqa import read_strategyqa
from exitbench.tasks.tables import read_table

Records = Sequence[Mapping[str, Any]]
Reader = Callable[[Path, str | None, str], Records]
"""Of a file, the name of the part of the data set, and the split."""

READERS: Final[dict[str, Reader]] = {
    "cais/mmlu": read_mmlu,
    "Rowan/hellaswag": read_hellaswag,
    "google-research-datasets/mbpp": read_mbpp,
    "ChilleD/StrategyQA": read_strategyqa,
    "deepmind/narrativeqa": read_narrativeqa,
    DATASET: read_choices,
}
"""By the data set's name on the hub."""


@lru_cache(maxsize=256)
def read_records(dataset: str, name: str | None, split: str, path: Path) -> Records:
    """Return the records of a file, in the hub's fields.

    Args:
        dataset: Name of the data set on the hub, which decides the form of the file.
        name: Part of the data set: a subject, a language pair; None where there is one.
        split: Split of the data set, for files that hold several.
        path: Plain, or `.gz`.

    Raises:
        UserError: The file is missing, damaged or of another form, with the record and the key.
    """
    reader = READERS.get(dataset)
    return read_table(path) if reader is None else reader(path, name, split)
