"""The answers of runs token by token, packed for the page's document browser.

The payload is: length of the index (4 bytes, little-endian), the index, a pack for each group of runs over the same
documents (`reports.answers.packing`). The index is JSON, compressed, and says where each pack lies, so that a browser
unpacks only what is looked at.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from exitbench.reports.answers.document_choice import BUDGET_BYTES, Group, choose
from exitbench.reports.answers.kept import kept_packs, shown_by
from exitbench.reports.answers.packing import none_of, pack, planes_for, probabilities, quantised
from exitbench.reports.answers.scores import document_scores, ranks
from exitbench.reports.answers.whole_texts import packed_texts
from exitbench.reports.labels import describe, labels, setting
from exitbench.reports.plotting.exit_colours import shades
from exitbench.results.analysis.traces import TracedRun, answers, probed, read_once, scored, spelled, tokens
from exitbench.results.database.connection import Database

Ints = NDArray[np.int64]

_RANK_PLANES: Final = 2
_SCORE_PLANES: Final = 2
_ID_LISTS: Final = ("top1_id", "top2_id", "top3_id")
_PROBABILITIES: Final = ("p1", "p2", "p3", "p_final")
_SETTINGS: Final = ("seed", "batch_size", "dtype", "device")


def documents_payload(
    database: Database, budget_bytes: int = BUDGET_BYTES, kept_in: Path | None = None
) -> bytes | None:
    """Return what the page's document browser shows; one database always gives the same bytes.

    Args:
        database: An open database.
        budget_bytes: How much may be taken along before compression.
        kept_in: Folder of packs of the page before, which is left with those of this one; None to make all of them.

    Returns:
        The payload; None where no run has answered anything.
    """
    groups = choose(database, budget_bytes)
    if not groups:
        return None
    make = partial(_packed, database)
    with read_once(database, *shown_by(groups)):
        packs = [make(group) for group in groups] if kept_in is None else kept_packs(kept_in, database, groups, make)
    entries, offset = [], 0
    for group, packed in zip(groups, packs, strict=True):
        entries.append({**_entry(group, groups), "offset": offset, "length": len(packed)})
        offset += len(packed)
    blocks = sorted({group.runs[0].blocks for group in groups})
    index = {"groups": entries, "shades": {str(n): _shades(n) for n in blocks}}
    packed_index = gzip.compress(json.dumps(index, separators=(",", ":")).encode("ascii"), 9, mtime=0)
    return len(packed_index).to_bytes(4, "little") + packed_index + b"".join(packs)


def _shades(blocks: int) -> list[list[str]]:
    """Paper and ink of each exit layer, light and dark."""
    pairs = zip(shades(blocks), shades(blocks, dark=True), strict=True)
    return [[light.paper, light.ink, dark.paper, dark.ink] for light, dark in pairs]


def _entry(group: Group, groups: Sequence[Group]) -> dict[str, Any]:
    """What the index says of a group: what can be chosen, before anything is unpacked."""
    first = group.runs[0]
    twins = [other.runs[0] for other in groups if _name(other.runs[0]) == _name(first)]
    differing = [name for name in _SETTINGS if len({getattr(run, name) for run in twins}) > 1]
    return {
        "model": first.model,
        "task": first.task_label,
        "setting": describe({name: getattr(first, name) for name in differing}),
        "random": first.random_weights,
        "classifies": first.classifies,
        "blocks": first.blocks,
        "runs": _named_runs(group),
        "recommended": group.runs.index(group.recommended) if group.recommended else -1,
        "of_runs": group.of_runs,
        "documents": [[index + 1, group.keys[index]] for index in group.shown],
        "of_documents": len(group.keys),
    }


def _name(run: TracedRun) -> tuple[str, str]:
    return run.model, run.task_label


def _named_runs(group: Group) -> list[dict[str, Any]]:
    rows = [
        {"method": run.method, "params": json.dumps(dict(run.params), sort_keys=True), "kv_policy": run.kv_policy}
        for run in group.runs
    ]
    names = labels(rows)
    return [
        {
            "cell": run.cell_id,
            "method": run.method,
            "label": names[setting(row)],
            "params": describe(dict(run.params)),
            "threshold": _threshold(run),
            "full": run.is_full_depth,
        }
        for run, row in zip(group.runs, rows, strict=True)
    ]


def _threshold(run: TracedRun) -> list[Any] | None:
    """What the method's scores are compared with: a number where it is one for all tokens, and words; None without."""
    level, rule = run.params.get("threshold"), run.params.get("rule", "constant")
    if rule != "constant":
        return [None, f"threshold by rule {rule}"]
    if level is None:
        return None
    if run.params.get("decay", "none") != "none":
        return [None, f"threshold {level}, which falls with the position"]
    return [level, f"threshold {level}"]


def _packed(database: Database, group: Group) -> bytes:
    if group.runs[0].classifies:
        return packed_texts(database, group)
    attempts, keys = [run.attempt_id for run in group.runs], group.shown_keys
    probe = probed(database, group.runs[0].probe_attempt_id, keys)
    own = tokens(database, attempts, keys)
    own = own.take(_order(own, attempts, keys))
    said = answers(database, attempts, keys)
    asked = list(dict.fromkeys(run.scores_attempt_id for run in group.runs if run.scores_attempt_id is not None))
    ids = _ids(own["token_id"], *(probe[name] for name in ("token_id", "full_token_id", "gold_token_id", *_ID_LISTS)))
    texts = spelled(database, group.runs[0].tokenizer_sha256, ids)
    places = _Places(ids)
    # The gates were asked at the places of the probe; documents that one of them lacks have no scores at all.
    by_block = [_scores(scored(database, attempt_id, keys), probe, group.runs[0].blocks) for attempt_id in asked]
    exits = [quantised(own["score"].to_numpy()[rows], _SCORE_PLANES) for rows in _rows_by_run(own, attempts)]
    reasons = sorted(pc.unique(own["reason"]).to_pylist())
    metric, scores = document_scores(said, attempts, keys)
    header = {
        "texts": [texts[token_id] for token_id in ids],
        "reasons": reasons,
        "metric": metric,
        "score_range": [ends for _, ends in exits],
        "gate": [None if run.scores_attempt_id is None else asked.index(run.scores_attempt_id) for run in group.runs],
        "gate_range": [ends for _, ends in by_block],
    }
    columns = {
        "length": (_lengths(own, attempts, keys), 2),
        "token": (places.of(own["token_id"]), places.planes),
        "exit": (own["exit_layer"].to_numpy(), 1),
        "reason": (ranks(own["reason"], reasons), 1),
        "score": (np.concatenate([steps for steps, _ in exits]), _SCORE_PLANES),
        "document_score": (scores, 2),
        **_probe_columns(probe, keys, places),
        **{f"gate{n}": (steps, 1) for n, (steps, _) in enumerate(by_block)},
    }
    return pack(header, columns)


class _Places:
    """Where each token id stands in the group's own list of texts."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.planes = planes_for(len(ids))
        order = np.argsort(np.array(ids, dtype=np.int64))
        self._sorted, self._order = np.array(ids, dtype=np.int64)[order], order

    def of(self, column: pa.ChunkedArray) -> Ints:
        """Return the places of a column of ids or lists of ids; nothing for -1 and NULL."""
        ids = _flat(column)
        found = np.searchsorted(self._sorted, ids).clip(0, max(0, len(self._sorted) - 1))
        none = none_of(self.planes)
        return np.where(ids < 0, none, self._order[found]) if len(ids) else ids


def _flat(column: pa.ChunkedArray) -> Ints:
    """A column of ids or lists of ids, one after another; -1 for NULL."""
    values = column.combine_chunks()
    values = values.flatten() if pa.types.is_list(values.type) else values
    return np.asarray(values.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _ids(*columns: pa.ChunkedArray) -> list[int]:
    """Every id of the columns, the most frequent first, so that most places are small numbers."""
    counted: Counter[int] = Counter()
    for column in columns:
        counted.update(
            dict(zip(*(part.tolist() for part in np.unique(_flat(column), return_counts=True)), strict=True))
        )
    return sorted((token_id for token_id in counted if token_id >= 0), key=lambda one: (-counted[one], one))


def _order(own: pa.Table, attempts: Sequence[str], keys: Sequence[str]) -> Ints:
    """Rows by run, document and position, as the page walks through them."""
    by = (own["position"].to_numpy(), ranks(own["doc_key"], keys), ranks(own["attempt_id"], attempts))
    return np.lexsort(by)


def _lengths(own: pa.Table, attempts: Sequence[str], keys: Sequence[str]) -> Ints:
    """Tokens of each run's answers, [runs, documents]."""
    places = ranks(own["attempt_id"], attempts) * len(keys) + ranks(own["doc_key"], keys)
    return np.bincount(places, minlength=len(attempts) * len(keys))


def _rows_by_run(own: pa.Table, attempts: Sequence[str]) -> Iterable[slice]:
    ends = np.cumsum(np.bincount(ranks(own["attempt_id"], attempts), minlength=len(attempts)))
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _probe_columns(probe: pa.Table, keys: Sequence[str], places: _Places) -> dict[str, tuple[Any, int]]:
    return {
        "probed": (np.bincount(ranks(probe["doc_key"], keys), minlength=len(keys)), 2),
        **{name: (places.of(probe[name]), places.planes) for name in ("full_token_id", "gold_token_id", *_ID_LISTS)},
        "first_match": (probe["first_match"].to_numpy(), 1),
        "rank_final": (_flat(probe["rank_final"]).clip(0, none_of(_RANK_PLANES) - 1), _RANK_PLANES),
        **{name: (probabilities(probe[name].combine_chunks().flatten().to_numpy()), 1) for name in _PROBABILITIES},
    }


def _scores(rows: pa.Table, probe: pa.Table, blocks: int) -> tuple[NDArray[np.uint32], list[float]]:
    """The gate's scores at the probe's places, [tokens * blocks]."""
    if rows.select(["doc_key", "position"]) != probe.select(["doc_key", "position"]):
        return quantised(np.full(probe.num_rows * blocks, np.nan), 1)
    return quantised(rows["score"].combine_chunks().flatten().to_numpy(), 1)
