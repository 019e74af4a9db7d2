"""Columns that packs of tokens and of whole texts share."""

import json
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from exitbench.reports.answers.packing import none_of

_HUNDREDTHS: Final = 100


def ranks(column: pa.ChunkedArray, values: Sequence[str]) -> NDArray[np.int64]:
    """Return the place of each entry among `values`."""
    return np.asarray(pc.index_in(column, pa.array(values, pa.string())), dtype=np.int64)


def document_scores(
    said: pa.Table, attempts: Sequence[str], keys: Sequence[str]
) -> tuple[str | None, NDArray[np.uint32]]:
    """Return the task's first metric, and its value in hundredths for each run and document."""
    scores = np.full((len(attempts), len(keys)), none_of(2), dtype=np.uint32)
    metric = None
    rows = zip(
        ranks(said["attempt_id"], attempts), ranks(said["doc_key"], keys), said["scores"].to_pylist(), strict=True
    )
    for run, document, text in rows:
        values = json.loads(text)
        metric = metric or next(iter(values), None)
        if metric is not None and isinstance(values.get(metric), int | float):
            scores[run, document] = min(max(round(values[metric] * _HUNDREDTHS), 0), none_of(2) - 1)
    return metric, scores
