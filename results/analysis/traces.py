"""Read answers' token traces (exit layer and score) and the probe (each block's predictions) of full depth's answer.

The probe describes a token of another run only if all earlier tokens of both answers are equal (`shared_prefix`).
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from exitbench.results.analysis.selection import Run, RunIndex
from exitbench.results.database.connection import Database

_RUNS: Final = """
    WITH ended AS (
        SELECT
            a.attempt_id, c.cell_id, c.kind, m.name AS model, m.kind AS model_kind, m.blocks, m.tokenizer_sha256,
            d.task, d.label AS task_label, d.documents, c.method, c.params, c.unused_params, c.kv_policy, c.seed,
            c.batch_size, c.dtype, c.device, c.random_weights, c.setting_id, c.method_revision,
            c.identity ->> 'fit_cell_id' AS fit_cell_id, c.identity ->> 'probe_cell_id' AS probe_cell_id,
            c.identity -> 'record' AS record,
            coalesce(c.full_depth_cell_id, c.cell_id) AS full_depth_cell_id
        FROM attempt AS a
        JOIN cell AS c USING (cell_id)
        JOIN model_artifact AS m USING (model_id)
        JOIN dataset_artifact AS d USING (data_id)
        WHERE a.status = 'ok' AND c.kind IN ('quality', 'probe', 'scores')
    ),
    latest AS (FROM ended QUALIFY row_number() OVER (PARTITION BY cell_id ORDER BY attempt_id DESC) = 1),
    -- A probe that records more than the signals is a separate run, of few documents.
    probe AS (
        FROM latest WHERE kind = 'probe' AND record IS NULL
        QUALIFY row_number() OVER (PARTITION BY full_depth_cell_id ORDER BY attempt_id DESC) = 1
    )
    SELECT
        q.* EXCLUDE (kind, setting_id, method_revision, fit_cell_id, probe_cell_id, record, unused_params)
            REPLACE (used_params(q.params, q.unused_params) AS params),
        f.attempt_id AS full_attempt_id, p.attempt_id AS probe_attempt_id,
        -- The gate was evaluated with those of the method's parameters that it depends on: a subset of all.
        (
            SELECT max(s.attempt_id) FROM latest AS s
            WHERE s.kind = 'scores' AND s.setting_id = q.setting_id AND s.method = q.method
                AND s.method_revision = q.method_revision AND s.fit_cell_id IS NOT DISTINCT FROM q.fit_cell_id
                AND s.probe_cell_id = p.cell_id AND json_contains(q.params, s.params)
        ) AS scores_attempt_id,
        row_number() OVER (
            PARTITION BY q.setting_id, q.method, q.params, q.kv_policy ORDER BY q.attempt_id DESC
        ) = 1 AS newest
    FROM ended AS q
    LEFT JOIN latest AS f ON f.cell_id = q.full_depth_cell_id
    LEFT JOIN probe AS p ON p.full_depth_cell_id = q.full_depth_cell_id
    WHERE q.kind = 'quality'
    ORDER BY q.attempt_id
"""
_ANSWERS: Final = """
    SELECT
        s.attempt_id, s.doc_key, s.output_text, s.n_prompt, s.stop_reason, l.scores, s.n_output, s.output_ids,
        s.input_text, s.gold_text
    FROM sample AS s JOIN latest_scores AS l USING (attempt_id, doc_key)
    WHERE list_contains($attempts, s.attempt_id) AND list_contains($attempts, l.attempt_id)
        AND ($keys IS NULL OR list_contains($keys, s.doc_key))
    ORDER BY s.attempt_id, s.doc_key
"""
# Joins, which DuckDB turns into filters of its scans.
_ONLY: Final = "attempt_id IN (SELECT unnest($attempts::VARCHAR[])) AND doc_key IN (SELECT unnest($keys::VARCHAR[]))"
_TOKENS: Final = f"""
    SELECT attempt_id, doc_key, position, token_id, exit_layer, score, reason FROM token_exit
    WHERE {_ONLY} AND choice IS NULL ORDER BY attempt_id, doc_key, position
"""
_PROBED: Final = f"""
    SELECT
        doc_key, position, token_id, full_token_id, gold_token_id, first_match, top1_id, top2_id, top3_id, rank_final,
        p1, p2, p3, p_final
    FROM probe_token WHERE {_ONLY} AND choice IS NULL ORDER BY doc_key, position
"""
_CLASSIFIED: Final = f"""
    SELECT attempt_id, doc_key, block, label_id, prediction, probability, gold, score, exited FROM sequence_block
    WHERE {_ONLY} ORDER BY attempt_id, doc_key, block
"""
# A sum, not an exclusive or: equal rows would cancel each other out in the latter.
_DIGEST: Final = "count(*) || ':' || sum(hash(rows)) AS digest"
_DIGESTS: Final = " UNION ALL ".join(
    f"SELECT attempt_id AS of, '{table}' AS what, {_DIGEST} FROM {table} AS rows WHERE {_ONLY} GROUP BY ALL"
    for table in ("token_exit", "sample", "sample_rescore", "probe_token", "score_token", "sequence_block")
)
_SPELLING_DIGESTS: Final = f"SELECT tokenizer_sha256, 'token_text', {_DIGEST} FROM token_text AS rows GROUP BY ALL"
_LARGE: Final = ("token_exit", "probe_token", "score_token")
_SCORED: Final = f"SELECT doc_key, position, score FROM score_token WHERE {_ONLY} AND choice IS NULL ORDER BY ALL"


@dataclass(frozen=True)
class TracedRun:
    """Quality run, with the ids of the attempts that recorded more about its tokens: full depth, probe, gate scores.

    Attributes:
        params: Parameters of the method that have an effect.
        model_kind: Kind of the model: causal, seq2seq or encoder.
        blocks: Number of blocks after which tokens or texts can exit, L.
        documents: Number of documents that the run answered.
        full_depth_cell_id: Cell of full depth on the same documents; runs with equal values can be compared side by
            side.
        full_attempt_id: Latest successful attempt of full depth; None if there is none.
        probe_attempt_id: Attempt that probed full depth's answers; None if there is none.
        scores_attempt_id: Attempt that scored every probed token at every block with the method's own gate; None if
            there is none.
        newest: True if no later run has the same model, task, settings, method and parameters.
    """

    attempt_id: str
    cell_id: str
    model: str
    model_kind: str
    task: str
    task_label: str
    method: str
    params: Mapping[str, Any]
    kv_policy: str | None
    seed: int
    batch_size: int
    dtype: str
    device: str
    random_weights: bool
    blocks: int
    tokenizer_sha256: str
    documents: int
    full_depth_cell_id: str
    full_attempt_id: str | None
    probe_attempt_id: str | None
    scores_attempt_id: str | None
    newest: bool

    @property
    def is_full_depth(self) -> bool:
        """True if the run is the full-depth baseline."""
        return self.cell_id == self.full_depth_cell_id

    @property
    def classifies(self) -> bool:
        """True for an encoder: each document exits as a whole, with a label or a number as its only token."""
        return self.model_kind == "encoder"


def traced_runs(database: Database) -> list[TracedRun]:
    """Return every successful quality run of a database, oldest first."""
    return [TracedRun(**{**row, "params": json.loads(row["params"])}) for row in database.query(_RUNS).to_pylist()]


def run_index(runs: Sequence[TracedRun]) -> RunIndex:
    """Return an index that selects these runs by id, prefix of an id, or glob over names."""
    names = ("attempt_id", "cell_id", "model", "task_label", "method", "params", "newest")
    return RunIndex(
        [
            Run(
                **{name: getattr(run, name) for name in names},
                about=f"{run.documents} documents, batch {run.batch_size}, {run.dtype}, seed {run.seed}",
            )
            for run in runs
        ],
        what="quality run",
    )


def answers(database: Database, attempts: Collection[str], keys: Collection[str] | None = None) -> pa.Table:
    """Return one row per answer: text, token ids, lengths of prompt and answer, stop reason, and latest scores.

    For encoders at full depth, the classified text and the correct answer are also given.

    Args:
        database: Open result database.
        attempts: Ids of the attempts that gave the answers.
        keys: Keys of the documents; None for all documents.
    """
    return database.query(_ANSWERS, {"attempts": list(attempts), "keys": None if keys is None else list(keys)})


def tokens(database: Database, attempts: Collection[str], keys: Collection[str]) -> pa.Table:
    """Return the token traces of some attempts' answers to the documents `keys`.

    There is one row per token, with exit layer, gate score and exit reason, ordered by attempt, document and position.
    """
    return database.query(_TOKENS, {"attempts": list(attempts), "keys": list(keys)})


def probe_rows(database: Database, attempt_id: str | None, keys: Collection[str]) -> pa.Table:
    """Return the predictions of every block at each token of full depth's answers to the documents `keys`.

    A row per token, ordered by document and position, has lists with one entry per block: most probable tokens, their
    probabilities, rank and probability of the full-depth token. `attempt_id` is the probe's; None gives no rows.
    """
    return database.query(_PROBED, {"attempts": [attempt_id], "keys": list(keys)})


def gate_scores(database: Database, attempt_id: str | None, keys: Collection[str]) -> pa.Table:
    """Return the gate's scores for the documents `keys`: one row per probed token, ordered by document and position.

    A row has one score per block; NaN if the gate was not evaluated there. `attempt_id` is the attempt that stored the
    scores; None gives no rows.
    """
    return database.query(_SCORED, {"attempts": [attempt_id], "keys": list(keys)})


def classified(database: Database, attempts: Collection[str], keys: Collection[str]) -> pa.Table:
    """Return one row per run of an encoder, document and gated block: prediction, gate score, and whether it exited.

    The last block is included. Rows are ordered by attempt, document and block.
    """
    return database.query(_CLASSIFIED, {"attempts": list(attempts), "keys": list(keys)})


@contextmanager
def read_once(database: Database, attempts: Collection[str], keys: Collection[str]) -> Iterator[None]:
    """Copy the token rows of `attempts` and documents `keys` to temporary tables, which exist until the context ends.

    Meanwhile the other functions of this module read only these copies. In a large database, each query would otherwise
    scan all tokens to find those of a few documents.
    """
    for table in _LARGE:
        database.rows(
            f"CREATE TEMP TABLE {table} AS FROM {table} WHERE {_ONLY}", {"attempts": list(attempts), "keys": list(keys)}
        )
    try:
        yield
    finally:
        for table in _LARGE:
            database.duck.execute(f"DROP TABLE temp.{table}")


def content_digests(database: Database, attempts: Collection[str], keys: Collection[str]) -> dict[str, list[str]]:
    """Return digests of all rows that this module can read for `attempts` (ids) and documents `keys`.

    Returns:
        Digests by attempt and, for the texts of token ids, by tokenizer. If a row changes, its digest changes too.
        Digests of different versions of DuckDB cannot be compared.
    """
    digests: dict[str, list[str]] = defaultdict(list)
    _, rows = database.rows(
        f"{_DIGESTS} UNION ALL {_SPELLING_DIGESTS} ORDER BY ALL", {"attempts": list(attempts), "keys": list(keys)}
    )
    for owner, what, digest in rows:
        digests[owner].append(f"{what} {digest}")
    return dict(digests)


def shared_prefix(answer: Sequence[int], reference: Sequence[int]) -> int:
    """Return the length of the longest common prefix of two answers, in tokens.

    >>> shared_prefix([5, 7, 9], [5, 7, 8, 2])
    2
    """
    pairs = enumerate(zip(answer, reference, strict=False))
    return next((place for place, (token, other) in pairs if token != other), min(len(answer), len(reference)))


_STYLE: Final = """
    SELECT CASE
        WHEN bool_or(text LIKE '\u2581_%') THEN 'sentencepiece'
        WHEN bool_or(regexp_matches(text, '^[\u0120\u010a\u0109].')) THEN 'bytes'
        WHEN bool_or(text LIKE '##_%') THEN 'wordpiece'
        ELSE 'words' END AS style
    FROM vocabulary WHERE tokenizer_sha256 = $tokenizer
"""
_TEXTS: Final = """
    SELECT token_id, text, begins_word FROM vocabulary
    WHERE tokenizer_sha256 = $tokenizer AND list_contains($ids, token_id) ORDER BY token_id
"""


def token_texts(database: Database, tokenizer_sha256: str, ids: Collection[int]) -> dict[int, str]:
    """Return the text of each token id, with a leading space if it begins a word; `` #17`` if 17's text is unknown."""
    wanted = sorted(set(ids))
    (style,) = database.query(_STYLE, {"tokenizer": tokenizer_sha256})["style"].to_pylist()
    rows = database.query(_TEXTS, {"tokenizer": tokenizer_sha256, "ids": wanted}).to_pylist()
    spellings = {row["token_id"]: readable(row["text"], style, row["begins_word"]) for row in rows}
    return {token_id: spellings.get(token_id, f" #{token_id}") for token_id in wanted}


def readable(text: str, style: str, begins_word: bool | None) -> str:
    """Return the text that a token adds to an answer.

    Args:
        text: Token as the tokenizer spells it.
        style: Style in which the tokenizer marks spaces: sentencepiece, bytes (byte-level BPE), wordpiece, or words
            (no marks).
        begins_word: Whether the token begins a word, as in the view `vocabulary`; None for a special token.
    """
    if begins_word is None:
        return f" {text}"
    if style == "sentencepiece":
        return text.replace("\u2581", " ")
    if style == "bytes":
        return _from_bytes(text)
    if style == "wordpiece" and text.startswith("##"):
        return text[2:]
    return f" {text}"


def _from_bytes(text: str) -> str:
    """Return the text that a byte-level BPE token spells; bytes of incomplete characters become escapes."""
    if any(character not in _BYTES for character in text):
        return text
    return bytes(_BYTES[character] for character in text).decode("utf-8", "backslashreplace")


def _byte_spelling() -> dict[str, int]:
    """Return the byte for which each character stands in GPT-2's byte-level BPE.

    Visible Latin-1 characters stand for their own code; the other bytes are spelled with characters from U+0100 on.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    invisible = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + n): byte for n, byte in enumerate(invisible)}


_BYTES: Final = _byte_spelling()
