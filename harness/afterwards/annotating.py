"""Part-of-speech tags for the tokens of full depth's stored answers; needs the database, but no model."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from exitbench.harness.afterwards.taggers import Tagger, tags_of
from exitbench.results.analysis.selection import Run, RunIndex
from exitbench.results.analysis.traces import token_texts
from exitbench.results.database.connection import Database
from exitbench.results.side_records.derived import TAG_SCHEMA, TAGS, record_tags

_RUNS: Final = """
    SELECT attempt_id, cell_id, model, task_label, method, params, suite, documents, tokenizer_sha256
    FROM runs WHERE is_full_depth ORDER BY attempt_id
"""
_TOKENS: Final = """
    SELECT doc_key, list(token_id ORDER BY position) AS token_ids
    FROM token_trace WHERE attempt_id = $attempt AND choice IS NULL GROUP BY doc_key ORDER BY doc_key
"""
_NO_TEXT: Final = """
    SELECT token_id FROM vocabulary WHERE tokenizer_sha256 = $tokenizer AND begins_word IS NULL
"""
_TOKENIZERS: Final = "SELECT DISTINCT tokenizer_sha256 AS t FROM vocabulary"


@dataclass(frozen=True)
class AnnotationReport:
    """Numbers of runs that `annotate` has tagged or left out.

    Attributes:
        tagged: Number of runs whose tags were written.
        current: Number of runs that already had tags from this tagger.
        unspelled: Ids of attempts that were skipped, because the vocabulary of their tokenizer is not stored.
    """

    tagged: int
    current: int
    unspelled: tuple[str, ...]


def annotate(
    database: Database, spool_root: Path, names: Sequence[str], tagger: Tagger, progress: Callable[[int, int], None]
) -> AnnotationReport:
    """Write part-of-speech tags for the answers of the named full-depth runs; without names, of all full-depth runs.

    Args:
        database: Open database that contains the answers.
        spool_root: Folder of the spool, to which the tags are written (`results.side_records.derived`).
        names: Runs to tag: attempt or cell ids, or globs over MODEL/TASK/METHOD (`results.analysis.selection`).
        tagger: Tagger for the language of the answers.
        progress: Callback that receives (number of runs done, number of runs to do).

    Raises:
        UserError: A name matches no run, or the spool cannot be written.
    """
    rows = database.query(_RUNS).to_pylist()
    runs = RunIndex(map(_run, rows), what="run at full depth")
    chosen = {run.attempt_id for name in names for run in runs.find(name)}
    wanted = [row for row in rows if not names or row["attempt_id"] in chosen]
    to_do = [row for row in wanted if not TAGS.has(spool_root, row["attempt_id"], tagger.name)]
    spelling = set(database.query(_TOKENIZERS)["t"].to_pylist())
    unspelled = tuple(row["attempt_id"] for row in to_do if row["tokenizer_sha256"] not in spelling)
    to_do = [row for row in to_do if row["attempt_id"] not in unspelled]
    for n_done, row in enumerate(to_do, start=1):
        tags = _tags(database, row["attempt_id"], row["tokenizer_sha256"], tagger)
        record_tags(spool_root, row["attempt_id"], tagger.name, tags)
        progress(n_done, len(to_do))
    return AnnotationReport(len(to_do), len(wanted) - len(to_do) - len(unspelled), unspelled)


def _run(row: Mapping[str, Any]) -> Run:
    names = {name: row[name] for name in ("attempt_id", "cell_id", "model", "task_label", "method")}
    about = f"{row['documents']} documents, suite {row['suite']}"
    return Run(**names, params=json.loads(row["params"]), newest=True, about=about)


def _tags(database: Database, attempt_id: str, tokenizer_sha256: str, tagger: Tagger) -> pa.Table:
    """Return the part-of-speech tags of one run's answers, as a table with one row per token that belongs to a word."""
    answers = database.query(_TOKENS, {"attempt": attempt_id}).to_pylist()
    texts = token_texts(
        database, tokenizer_sha256, {token_id for answer in answers for token_id in answer["token_ids"]}
    )
    no_text = set(database.query(_NO_TEXT, {"tokenizer": tokenizer_sha256})["token_id"].to_pylist())
    rows = []
    for answer in answers:
        pieces = ["" if token_id in no_text else texts[token_id] for token_id in answer["token_ids"]]
        if pieces:
            pieces[0] = pieces[0].lstrip()  # the decoded text has no leading space
        for position, upos in enumerate(tags_of(pieces, tagger.words("".join(pieces))), start=1):
            if upos is not None:
                rows.append({"doc_key": answer["doc_key"], "position": position, "upos": upos})
    return pa.Table.from_pylist(rows, schema=TAG_SCHEMA)
