"""Answers of encoders, packed for the page's document browser: what every block said of a text, and where it left.

All methods read a block with the same off-ramp, so label and probability of a block stand once for all runs, from
whichever asked it. Scores, and which blocks were asked, are each run's own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from exitbench.reports.answers.document_choice import Group
from exitbench.reports.answers.packing import none_of, pack, planes_for, quantised
from exitbench.reports.answers.scores import document_scores, ranks
from exitbench.results.analysis.traces import answers, classified, tokens
from exitbench.results.database.connection import Database

_PLANES: Final = 2
_ASKED: Final = 1
_LEFT: Final = 2
"""What the column ``asked`` says of a run, a text and a block; 0 where it was not asked."""


def packed_texts(database: Database, group: Group) -> bytes:
    """Return the pack of a group of an encoder's runs."""
    attempts, keys, blocks = [run.attempt_id for run in group.runs], group.shown_keys, group.runs[0].blocks
    own, said = (_in_order(rows(database, attempts, keys), attempts, keys) for rows in (tokens, answers))
    asked = classified(database, attempts, keys)
    is_number = bool(asked.num_rows) and asked["label_id"].null_count == asked.num_rows
    spelled, inputs, golds = said["output_text"].to_pylist(), _by_key(said, "input_text"), _by_key(said, "gold_text")
    names = sorted(set(spelled)) if is_number else _labels(said, asked, golds)
    places = [names.index(text) for text in spelled] if is_number else own["token_id"].to_numpy()
    n, at = len(keys) * blocks, _places(asked, keys, blocks)
    run_at = ranks(asked["attempt_id"], attempts) * n + at
    value, value_range = quantised(_at(n, at, asked["prediction" if is_number else "probability"]), _PLANES)
    scores = _at(len(attempts) * n, run_at, asked["score"]).reshape(len(attempts), n)
    by_run = [quantised(row, _PLANES) for row in scores]
    was_asked = np.zeros(len(attempts) * n, dtype=np.uint8)
    was_asked[run_at] = np.where(asked["exited"].to_numpy(), _LEFT, _ASKED)
    reasons = sorted(pc.unique(own["reason"]).to_pylist())
    metric, of_documents = document_scores(said, attempts, keys)
    header: dict[str, Any] = {
        "texts": [_short(name) for name in names] if is_number else names,
        "inputs": [inputs.get(key) for key in keys],
        "golds": [_short(golds[key]) if is_number and key in golds else golds.get(key) for key in keys],
        "is_number": is_number,
        "reasons": reasons,
        "metric": metric,
        "value_range": value_range,
        "score_range": [ends for _, ends in by_run],
    }
    label_planes = planes_for(len(names))
    labels = np.full(n, none_of(label_planes), dtype=np.int64)
    if not is_number:
        labels[at] = asked["label_id"].to_numpy()
    answered = np.zeros(len(attempts) * len(keys), dtype=np.uint8)
    answered[ranks(own["attempt_id"], attempts) * len(keys) + ranks(own["doc_key"], keys)] = 1
    columns = {
        "length": (answered, 1),
        "token": (places, label_planes),
        "exit": (own["exit_layer"].to_numpy(), 1),
        "reason": (ranks(own["reason"], reasons), 1),
        "document_score": (of_documents, 2),
        "label": (labels, label_planes),
        "value": (value, _PLANES),
        "asked": (was_asked, 1),
        "score": (np.concatenate([steps for steps, _ in by_run]), _PLANES),
        "probed": (np.zeros(len(keys), dtype=np.uint8), 1),
    }
    return pack(header, columns)


def _in_order(rows: pa.Table, attempts: Sequence[str], keys: Sequence[str]) -> pa.Table:
    """Rows by run and document, as the page walks through them."""
    return rows.take(np.lexsort((ranks(rows["doc_key"], keys), ranks(rows["attempt_id"], attempts))))


def _labels(said: pa.Table, asked: pa.Table, golds: Mapping[str, str]) -> list[str]:
    """Names of labels by their place among the task's; of one that nobody gave, or that was left out, its number."""
    known = {
        ids[0]: text
        for ids, text in zip(said["output_ids"].to_pylist(), said["output_text"].to_pylist(), strict=True)
        if ids
    }
    for key, gold in zip(asked["doc_key"].to_pylist(), asked["gold"].to_pylist(), strict=True):
        if key in golds:
            known[int(gold)] = golds[key]
    most = max((*known, pc.max(asked["label_id"]).as_py() or 0), default=0)
    return [known.get(place) or f"label {place}" for place in range(most + 1)]


def _by_key(said: pa.Table, name: str) -> dict[str, str]:
    """What full depth's answers have of each document."""
    pairs = zip(said["doc_key"].to_pylist(), said[name].to_pylist(), strict=True)
    return {key: text for key, text in pairs if text is not None}


def _places(asked: pa.Table, keys: Sequence[str], blocks: int) -> NDArray[np.int64]:
    """Where a document's block stands, [rows]."""
    block_N: NDArray[np.int64] = asked["block"].to_numpy().astype(np.int64)
    return ranks(asked["doc_key"], keys) * blocks + block_N - 1


def _at(n: int, at: NDArray[np.int64], column: pa.ChunkedArray) -> NDArray[np.float64]:
    """The column's values at their places, NaN elsewhere."""
    values = np.full(n, np.nan)
    values[at] = column.to_numpy()
    return values


def _short(number: str) -> str:
    """A number that a regression answered, as people read it."""
    return f"{float(number):.4g}" if number else "left out"
