"""The answers of runs token by token, packed for the page's document browser.

The payload is: length of the index (4 bytes, little-endian), the index, one pack per group of runs over the same
documents (`reports.answers.packing`). The index is compressed JSON with the offset of each pack, so that a browser
unpacks only the groups it shows.
"""

import contextlib
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from exitbench import reports
from exitbench.reports.answers.document_choice import BUDGET_BYTES, RunGroup, choose
from exitbench.reports.answers.packing import (
    document_scores,
    none_of,
    pack,
    planes_for,
    probabilities,
    quantised,
    ranks,
)
from exitbench.reports.labels import describe, labels, setting
from exitbench.reports.plotting.exit_colours import shades
from exitbench.results import analysis
from exitbench.results.analysis.traces import (
    TracedRun,
    answers,
    classified,
    content_digests,
    gate_scores,
    probe_rows,
    read_once,
    token_texts,
    tokens,
)
from exitbench.results.database.connection import Database
from exitbench.results.files.atomic import write_whole_file
from exitbench.results.files.formats import content_id, sources_sha256

Ints = NDArray[np.int64]

_RANK_PLANES: Final = 2
_SCORE_PLANES: Final = 2
_ID_LISTS: Final = ("top1_id", "top2_id", "top3_id")
_PROBABILITIES: Final = ("p1", "p2", "p3", "p_final")
_SETTINGS: Final = ("seed", "batch_size", "dtype", "device")


def documents_payload(
    database: Database, budget_bytes: int = BUDGET_BYTES, kept_in: Path | None = None
) -> bytes | None:
    """Return the binary data of the page's document browser; one database always gives the same bytes.

    Args:
        database: An open database.
        budget_bytes: Limit on the bundled answers, before compression.
        kept_in: Cache folder of packs (one per group of runs), in which only this page's packs stay; None to build all
            of them.

    Returns:
        The data; None if no run has answered anything.
    """
    groups = choose(database, budget_bytes)
    if not groups:
        return None
    make = partial(_packed, database)
    with read_once(database, *bundle_contents(groups)):
        packs = [make(group) for group in groups] if kept_in is None else kept_packs(kept_in, database, groups, make)
    entries, offset = [], 0
    for group, packed in zip(groups, packs, strict=True):
        entries.append({**_index_entry(group, groups), "offset": offset, "length": len(packed)})
        offset += len(packed)
    blocks = sorted({group.runs[0].blocks for group in groups})
    index = {"groups": entries, "shades": {str(n): _shades(n) for n in blocks}}
    packed_index = gzip.compress(json.dumps(index, separators=(",", ":")).encode("ascii"), 9, mtime=0)
    return len(packed_index).to_bytes(4, "little") + packed_index + b"".join(packs)


def _shades(blocks: int) -> list[list[str]]:
    """Return background and text colours of each exit layer, for the light and the dark theme."""
    pairs = zip(shades(blocks), shades(blocks, dark=True), strict=True)
    return [[light.background, light.text_colour, dark.background, dark.text_colour] for light, dark in pairs]


def _index_entry(group: RunGroup, groups: Sequence[RunGroup]) -> dict[str, Any]:
    """Return a group's entry in the index: model, task, runs and documents, which the page lists before unpacking.

    It also names the settings that distinguish the group from those of `groups` with the same model and task.
    """
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
        "of_runs": group.n_runs_total,
        "documents": [[index + 1, group.keys[index]] for index in group.bundled],
        "of_documents": len(group.keys),
    }


def _name(run: TracedRun) -> tuple[str, str]:
    return run.model, run.task_label


def _named_runs(group: RunGroup) -> list[dict[str, Any]]:
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
    """Return [threshold, description] of a run; None if it has no threshold.

    The number in the list is None if a rule varies the threshold by token.
    """
    level, rule = run.params.get("threshold"), run.params.get("rule", "constant")
    if rule != "constant":
        return [None, f"threshold by rule {rule}"]
    if level is None:
        return None
    if run.params.get("decay", "none") != "none":
        return [None, f"threshold {level}, which falls with the position"]
    return [level, f"threshold {level}"]


def _packed(database: Database, group: RunGroup) -> bytes:
    if group.runs[0].classifies:
        return packed_texts(database, group)
    attempts, keys = [run.attempt_id for run in group.runs], group.bundled_keys
    probe = probe_rows(database, group.runs[0].probe_attempt_id, keys)
    token_rows = _in_order(tokens(database, attempts, keys), attempts, keys)
    answer_rows = answers(database, attempts, keys)
    score_attempts = list(
        dict.fromkeys(run.scores_attempt_id for run in group.runs if run.scores_attempt_id is not None)
    )
    ids = _ids(
        token_rows["token_id"], *(probe[name] for name in ("token_id", "full_token_id", "gold_token_id", *_ID_LISTS))
    )
    texts = token_texts(database, group.runs[0].tokenizer_sha256, ids)
    token_index = _TokenIndex(ids)
    # Gate scores were recorded at the probe's tokens; a document that one of the two lacks has no scores.
    by_block = [
        _scores(gate_scores(database, attempt_id, keys), probe, group.runs[0].blocks) for attempt_id in score_attempts
    ]
    exits = [
        quantised(token_rows["score"].to_numpy()[rows], _SCORE_PLANES) for rows in _rows_by_run(token_rows, attempts)
    ]
    reasons = sorted(pc.unique(token_rows["reason"]).to_pylist())
    metric, scores = document_scores(answer_rows, attempts, keys)
    header = {
        "texts": [texts[token_id] for token_id in ids],
        "reasons": reasons,
        "metric": metric,
        "score_range": [ends for _, ends in exits],
        "gate": [
            None if run.scores_attempt_id is None else score_attempts.index(run.scores_attempt_id) for run in group.runs
        ],
        "gate_range": [ends for _, ends in by_block],
    }
    columns = {
        "length": (_lengths(token_rows, attempts, keys), 2),
        "token": (token_index.lookup(token_rows["token_id"]), token_index.planes),
        "exit": (token_rows["exit_layer"].to_numpy(), 1),
        "reason": (ranks(token_rows["reason"], reasons), 1),
        "score": (np.concatenate([steps for steps, _ in exits]), _SCORE_PLANES),
        "document_score": (scores, 2),
        **_probe_columns(probe, keys, token_index),
        **{f"gate{n}": (steps, 1) for n, (steps, _) in enumerate(by_block)},
    }
    return pack(header, columns)


class _TokenIndex:
    """Lookup from a token id to its index in the pack's list of token texts."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.planes = planes_for(len(ids))
        order = np.argsort(np.array(ids, dtype=np.int64))
        self._sorted, self._order = np.array(ids, dtype=np.int64)[order], order

    def lookup(self, column: pa.ChunkedArray) -> Ints:
        """Return the index in the list of texts for every token id of a column of ids, or of lists of ids (flattened).

        Id -1 and NULL become `none_of(planes)`, the value that means "none".
        """
        ids = _flat(column)
        index = np.searchsorted(self._sorted, ids).clip(0, max(0, len(self._sorted) - 1))
        none = none_of(self.planes)
        return np.where(ids < 0, none, self._order[index]) if len(ids) else ids


def _flat(column: pa.ChunkedArray) -> Ints:
    """Return a column of ids or lists of ids as one flat array; -1 for NULL."""
    values = column.combine_chunks()
    values = values.flatten() if pa.types.is_list(values.type) else values
    return np.asarray(values.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _ids(*columns: pa.ChunkedArray) -> list[int]:
    """Return all distinct token ids of the columns, the most frequent first, so that most indices are small numbers."""
    ids, counts = np.unique(np.concatenate([_flat(column) for column in columns]), return_counts=True)
    by_frequency: list[int] = ids[np.argsort(-counts, kind="stable")].tolist()
    return [token_id for token_id in by_frequency if token_id >= 0]


def _lengths(token_rows: pa.Table, attempts: Sequence[str], keys: Sequence[str]) -> Ints:
    """Return the number of tokens of each answer, [runs * documents], in the order of `attempts` and `keys`."""
    places = ranks(token_rows["attempt_id"], attempts) * len(keys) + ranks(token_rows["doc_key"], keys)
    return np.bincount(places, minlength=len(attempts) * len(keys))


def _rows_by_run(token_rows: pa.Table, attempts: Sequence[str]) -> Iterable[slice]:
    ends = np.cumsum(np.bincount(ranks(token_rows["attempt_id"], attempts), minlength=len(attempts)))
    return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _probe_columns(probe: pa.Table, keys: Sequence[str], token_index: _TokenIndex) -> dict[str, tuple[Any, int]]:
    return {
        "probed": (np.bincount(ranks(probe["doc_key"], keys), minlength=len(keys)), 2),
        **{
            name: (token_index.lookup(probe[name]), token_index.planes)
            for name in ("full_token_id", "gold_token_id", *_ID_LISTS)
        },
        "first_match": (probe["first_match"].to_numpy(), 1),
        "rank_final": (_flat(probe["rank_final"]).clip(0, none_of(_RANK_PLANES) - 1), _RANK_PLANES),
        **{name: (probabilities(probe[name].combine_chunks().flatten().to_numpy()), 1) for name in _PROBABILITIES},
    }


def _scores(rows: pa.Table, probe: pa.Table, blocks: int) -> tuple[NDArray[np.uint32], list[float]]:
    """Return the gate's scores at the probe's tokens, quantised, [tokens * blocks], and their minimum and maximum.

    `probe` has the tokens of full depth's answers. If `rows` has the scores of other tokens, all scores are "none".
    """
    if rows.select(["doc_key", "position"]) != probe.select(["doc_key", "position"]):
        return quantised(np.full(probe.num_rows * blocks, np.nan), 1)
    return quantised(rows["score"].combine_chunks().flatten().to_numpy(), 1)


_PLANES: Final = 2
_EVALUATED: Final = 1
_LEFT: Final = 2
"""Values of the column ``asked`` per run, text and block; 0 if the gate was not evaluated there."""


def packed_texts(database: Database, group: RunGroup) -> bytes:
    """Return the pack of a group of encoder runs: texts, labels, exit layers, and the gate's scores at every block."""
    attempts, keys, blocks = [run.attempt_id for run in group.runs], group.bundled_keys, group.runs[0].blocks
    token_rows, answer_rows = (_in_order(rows(database, attempts, keys), attempts, keys) for rows in (tokens, answers))
    gate_rows = classified(database, attempts, keys)
    is_number = bool(gate_rows.num_rows) and gate_rows["label_id"].null_count == gate_rows.num_rows
    label_texts, inputs, golds = (
        answer_rows["output_text"].to_pylist(),
        _by_key(answer_rows, "input_text"),
        _by_key(answer_rows, "gold_text"),
    )
    names = sorted(set(label_texts)) if is_number else _labels(answer_rows, gate_rows, golds)
    places = [names.index(text) for text in label_texts] if is_number else token_rows["token_id"].to_numpy()
    n, at = len(keys) * blocks, _flat_indices(gate_rows, keys, blocks)
    run_at = ranks(gate_rows["attempt_id"], attempts) * n + at
    value, value_range = quantised(_scatter(n, at, gate_rows["prediction" if is_number else "probability"]), _PLANES)
    scores = _scatter(len(attempts) * n, run_at, gate_rows["score"]).reshape(len(attempts), n)
    by_run = [quantised(row, _PLANES) for row in scores]
    gate_states = np.zeros(len(attempts) * n, dtype=np.uint8)
    gate_states[run_at] = np.where(gate_rows["exited"].to_numpy(), _LEFT, _EVALUATED)
    reasons = sorted(pc.unique(token_rows["reason"]).to_pylist())
    metric, of_documents = document_scores(answer_rows, attempts, keys)
    header: dict[str, Any] = {
        "texts": [_format_number(name) for name in names] if is_number else names,
        "inputs": [inputs.get(key) for key in keys],
        "golds": [_format_number(golds[key]) if is_number and key in golds else golds.get(key) for key in keys],
        "is_number": is_number,
        "reasons": reasons,
        "metric": metric,
        "value_range": value_range,
        "score_range": [ends for _, ends in by_run],
    }
    label_planes = planes_for(len(names))
    labels = np.full(n, none_of(label_planes), dtype=np.int64)
    if not is_number:
        labels[at] = gate_rows["label_id"].to_numpy()
    columns = {
        "length": (_lengths(token_rows, attempts, keys), 1),
        "token": (places, label_planes),
        "exit": (token_rows["exit_layer"].to_numpy(), 1),
        "reason": (ranks(token_rows["reason"], reasons), 1),
        "document_score": (of_documents, 2),
        "label": (labels, label_planes),
        "value": (value, _PLANES),
        "asked": (gate_states, 1),
        "score": (np.concatenate([steps for steps, _ in by_run]), _PLANES),
        "probed": (np.zeros(len(keys), dtype=np.uint8), 1),
    }
    return pack(header, columns)


def _in_order(rows: pa.Table, attempts: Sequence[str], keys: Sequence[str]) -> pa.Table:
    """Return rows of answers or tokens, sorted by run (as in `attempts`) and document (as in `keys`).

    Rows of one document stay in order: tokens by position.
    """
    return rows.take(np.lexsort((ranks(rows["doc_key"], keys), ranks(rows["attempt_id"], attempts))))


def _labels(answer_rows: pa.Table, gate_rows: pa.Table, golds: Mapping[str, str]) -> list[str]:
    """Return the names of labels by label id; ``'label 3'`` if no answer and no reference names label 3."""
    names = {
        ids[0]: text
        for ids, text in zip(answer_rows["output_ids"].to_pylist(), answer_rows["output_text"].to_pylist(), strict=True)
        if ids
    }
    for key, gold in zip(gate_rows["doc_key"].to_pylist(), gate_rows["gold"].to_pylist(), strict=True):
        if key in golds:
            names[int(gold)] = golds[key]
    most = max((*names, pc.max(gate_rows["label_id"]).as_py() or 0), default=0)
    return [names.get(place) or f"label {place}" for place in range(most + 1)]


def _by_key(answer_rows: pa.Table, name: str) -> dict[str, str]:
    """Return the values of the answers' column `name` by document key, without NULLs."""
    pairs = zip(answer_rows["doc_key"].to_pylist(), answer_rows[name].to_pylist(), strict=True)
    return {key: text for key, text in pairs if text is not None}


def _flat_indices(gate_rows: pa.Table, keys: Sequence[str], blocks: int) -> NDArray[np.int64]:
    """Return, for each row of gate scores (one document and block), its index in a flat [documents * blocks] array."""
    block_N: NDArray[np.int64] = gate_rows["block"].to_numpy().astype(np.int64)
    return ranks(gate_rows["doc_key"], keys) * blocks + block_N - 1


def _scatter(n: int, at: NDArray[np.int64], column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return an array of length n with the column's values at indices `at`, NaN elsewhere."""
    values = np.full(n, np.nan)
    values[at] = column.to_numpy()
    return values


def _format_number(number: str) -> str:
    """Return a number of a regression with four significant digits, or ``'omitted'`` for an empty text."""
    return f"{float(number):.4g}" if number else "omitted"


_MAKES: Final = ("duckdb", "numpy", "pyarrow")
_NAME: Final = re.compile("[0-9a-f]{64}")
_DIGEST_BYTES: Final = hashlib.sha256().digest_size


def kept_packs(
    folder: Path, database: Database, groups: Sequence[RunGroup], make: Callable[[RunGroup], bytes]
) -> list[bytes]:
    """Return the pack of each group (its compressed answers), from the cache if it is there; delete all other packs.

    A pack is named by a digest of everything it is built from. A damaged pack is built again.

    Args:
        folder: The cache, created if it does not exist. Files in it that are not packs are left alone.
        database: An open database.
        groups: All groups of a page.
        make: Function that reads a group's answers and packs them.
    """
    names = _names(database, groups)
    packs = [
        _read(folder / name) or _write(folder / name, make(group)) for name, group in zip(names, groups, strict=True)
    ]
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if _NAME.fullmatch(path.name) and path.name not in names:
                path.unlink(missing_ok=True)
    return packs


def _write(path: Path, pack: bytes) -> bytes:
    with contextlib.suppress(OSError):  # then it is built again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole_file(path, hashlib.sha256(pack).digest() + pack)
    return pack


def _read(path: Path) -> bytes | None:
    """Return a pack's content; None if the file is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    pack = content[_DIGEST_BYTES:]
    return pack if hashlib.sha256(pack).digest() == content[:_DIGEST_BYTES] else None


def _names(database: Database, groups: Sequence[RunGroup]) -> list[str]:
    digests = content_digests(database, *bundle_contents(groups))
    return [content_id([_code(), _request(group), _contents(group, digests)]) for group in groups]


def bundle_contents(groups: Sequence[RunGroup]) -> tuple[set[str], set[str]]:
    """Return the ids of the attempts (stored runs), and the keys of the documents, whose rows are packed."""
    attempts = {attempt for group in groups for run in group.runs for attempt in _attempts(run)}
    return attempts, {key for group in groups for key in group.bundled_keys}


def _attempts(run: TracedRun) -> list[str]:
    """Return the ids of the attempts whose rows are packed for a run.

    These are the run's own attempt, that of its probe (predictions of every block), and that of its gate scores.
    """
    attempts = (run.attempt_id, run.probe_attempt_id, run.scores_attempt_id)
    return [attempt for attempt in attempts if attempt is not None]


def _request(group: RunGroup) -> object:
    return [group.bundled_keys, [(_attempts(run), run.scores_attempt_id, run.blocks) for run in group.runs]]


def _contents(group: RunGroup, digests: Mapping[str, list[str]]) -> object:
    """Return digests of what a group's pack is built from: the rows of its runs' attempts and the texts of token ids.

    `digests` maps each attempt id, and each tokenizer's digest, to such digests.
    """
    names = [group.runs[0].tokenizer_sha256, *(attempt for run in group.runs for attempt in _attempts(run))]
    return [digests.get(name, []) for name in names]


@cache
def _code() -> str:
    """Return a digest of the code that reads and packs answers, and of the versions of its libraries."""
    return content_id([sources_sha256(reports), sources_sha256(analysis), *(version(name) for name in _MAKES)])
