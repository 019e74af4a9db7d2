"""Binary format of numbers in the page: columns of non-negative integers as compressed byte planes.

A pack is gzip of: length of the header (4 bytes, little-endian), the header as JSON, the columns. The header's
`columns` has [offset after the header, count, planes] per column; value n of a column is the sum of
plane[k][n] << 8k. Planes are stored one after another because the upper ones hardly vary, which compresses well.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

_LEVEL: Final = 6


def pack(header: Mapping[str, Any], columns: Mapping[str, tuple[ArrayLike, int]]) -> bytes:
    """Return `header` and `columns` as bytes in the format of this module; equal input gives equal bytes.

    Args:
        header: Any JSON object.
        columns: Non-negative integers of any shape, and their bytes per value, by column name.
    """
    directory, parts, offset = {}, [], 0
    for name, (values, planes) in columns.items():
        flat = np.asarray(values, dtype=np.uint32).ravel()
        directory[name] = [offset, len(flat), planes]
        parts += [(flat >> (8 * plane)).astype(np.uint8).tobytes() for plane in range(planes)]
        offset += planes * len(flat)
    text = json.dumps({**header, "columns": directory}, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return gzip.compress(len(text).to_bytes(4, "little") + text + b"".join(parts), _LEVEL, mtime=0)


def planes_for(largest: int) -> int:
    """Return the bytes per value of a column with values 0..`largest` and one more number, which means "none"."""
    return max(1, ((largest + 1).bit_length() + 7) // 8)


def none_of(planes: int) -> int:
    """Return the value that means "none" in a column with `planes` bytes per value: the largest one."""
    return (1 << (8 * planes)) - 1


def quantised(values: ArrayLike, planes: int) -> tuple[NDArray[np.uint32], list[float]]:
    """Quantise numbers to `planes` bytes in equal steps; return also the smallest and the largest finite number.

    Non-finite values become `none_of`. The error is at most half a step, (high - low) / (none - 1) / 2.
    """
    numbers = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(numbers)
    low, high = (float(numbers[finite].min()), float(numbers[finite].max())) if finite.any() else (0.0, 0.0)
    none = none_of(planes)
    steps = np.rint(np.where(finite, numbers - low, 0) / ((high - low) or 1.0) * (none - 1))
    return np.where(finite, steps, none).astype(np.uint32), [low, high]


def probabilities(values: ArrayLike) -> NDArray[np.uint32]:
    """Return probabilities as integers 0..255, in steps of 1/255 (an error of at most 1/510); NaN becomes 0."""
    return np.rint(np.clip(np.nan_to_num(np.asarray(values, dtype=np.float64)), 0, 1) * 255).astype(np.uint32)


_HUNDREDTHS: Final = 100


def ranks(column: pa.ChunkedArray, values: Sequence[str]) -> NDArray[np.int64]:
    """Return the index in `values` of each entry of a column."""
    return np.asarray(pc.index_in(column, pa.array(values, pa.string())), dtype=np.int64)


def document_scores(
    answer_rows: pa.Table, attempts: Sequence[str], keys: Sequence[str]
) -> tuple[str | None, NDArray[np.uint32]]:
    """Return the name of the task's first metric and its scores in hundredths, [runs, documents].

    Scores are in the order of `attempts` and `keys`. The name is None without scores; a missing score is `none_of(2)`.
    """
    scores = np.full((len(attempts), len(keys)), none_of(2), dtype=np.uint32)
    metric = None
    rows = zip(
        ranks(answer_rows["attempt_id"], attempts),
        ranks(answer_rows["doc_key"], keys),
        answer_rows["scores"].to_pylist(),
        strict=True,
    )
    for run, document, text in rows:
        values = json.loads(text)
        metric = metric or next(iter(values), None)
        if metric is not None and isinstance(values.get(metric), int | float):
            scores[run, document] = min(max(round(values[metric] * _HUNDREDTHS), 0), none_of(2) - 1)
    return metric, scores
