"""One answer of one run with all that the database has of its tokens, found by what a person types."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.reports.labels import number_format
from exitbench.results.analysis.traces import (
    TracedRun,
    answers,
    named,
    probed,
    scored,
    shared_prefix,
    spelled,
    tokens,
    traced_runs,
)
from exitbench.results.database.connection import Database

Row = Mapping[str, Any]

_FORMAT: Final = """
    SELECT
        $dtype AS dtype, max(value) FILTER (metric = 'format_logprob_gap') AS format_logprob_gap,
        max(value) FILTER (metric = 'format_choice_gap') AS format_choice_gap,
        max(value) FILTER (metric IN ('format_choice_match', 'format_token_match')) AS format_match
    FROM metric WHERE attempt_id = $full AND role = 'format'
"""


@dataclass(frozen=True)
class Answer:
    """What a run generated for one document.

    Attributes:
        name: Of the run.
        run: The run.
        ordinal: Which document, from 1, in the order of keys.
        of_documents: How many there are.
        key: Its key.
        about: Row of the answer: lengths, why it ended, scores.
        tokens: A row a token, by position.
        full_ids: What full depth answered; None where it has not run.
        probe: A row for each of full depth's tokens; none where it was not probed.
        gate: The gate's scores by block, for each row of `probe`; none where it was not asked.
        texts: How ids are spelled.
        number_format: What the run's number format changes of full depth, in words; None for float32.
    """

    name: str
    run: TracedRun
    ordinal: int
    of_documents: int
    key: str
    about: Row
    tokens: Sequence[Row]
    full_ids: Sequence[int] | None
    probe: Sequence[Row]
    gate: Sequence[Row]
    texts: Mapping[int, str]
    number_format: str | None

    @property
    def ids(self) -> list[int]:
        """Its token ids."""
        return [row["token_id"] for row in self.tokens]

    @property
    def shared(self) -> int:
        """How many tokens are full depth's, from the first on."""
        return len(self.tokens) if self.full_ids is None else shared_prefix(self.ids, self.full_ids)

    def differs(self, place: int) -> bool:
        """Whether the token at `place`, from 0, is not the one full depth has there."""
        if self.full_ids is None:
            return False
        return place >= len(self.full_ids) or self.full_ids[place] != self.ids[place]

    def full_text(self, place: int) -> str | None:
        """What full depth has at `place`; None behind the end of its answer."""
        if self.full_ids is None or place >= len(self.full_ids):
            return None
        return self.texts[self.full_ids[place]]

    def scores(self) -> dict[str, float]:
        """Scores of the document by metric."""
        scores: dict[str, float] = json.loads(self.about["scores"])
        return scores


def find_answers(database: Database, names: Sequence[str], document: str) -> list[Answer]:
    """Return the answers of the runs that are named to the document that is named.

    Args:
        database: An open database.
        names: Each an id, or the beginning of one, or a glob over MODEL/TASK/METHOD; must name one run.
        document: Its key, the beginning of it, or its number from 1 in the order of keys.

    Raises:
        UserError: A name fits no run or several, or there is no such document, or a run has not answered it.
    """
    runs = traced_runs(database)
    choice, by_attempt = named(runs), {run.attempt_id: run for run in runs}
    found: list[Answer] = []
    for text in names:
        named_run = choice.find_one(text)
        run, name = by_attempt[named_run.attempt_id], choice.name(named_run)
        keys = answers(database, [run.attempt_id])["doc_key"].to_pylist()
        # The same document everywhere: a number means that of the first run.
        key = _document(document, keys, name) if not found else found[0].key
        if key not in keys:
            raise UserError(f"{name} has not answered document {key} of {found[0].name}: its documents are others.")
        found.append(_answer(database, run, name, key, keys))
    return found


def _document(text: str, keys: Sequence[str], name: str) -> str:
    if text in keys:
        return text
    if text.isascii() and text.isdigit() and len(text) <= len(str(len(keys))) and 1 <= int(text) <= len(keys):
        return keys[int(text) - 1]
    begun = [key for key in keys if key.startswith(text)] if text else []
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise UserError(
            f"{name} has no document {text!r}: {len(begun)} keys begin with it, such as {begun[0]!r}. "
            f"Allowed: 1 to {len(keys)}, or more of a key."
        )
    close = get_close_matches(text, keys, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    told = f"1 to {len(keys)}, or a key such as {keys[0]!r}" if keys else "none: it answered no document"
    raise UserError(f"{name} has no document {text!r}.{hint} Allowed: {told}.")


def _answer(database: Database, run: TracedRun, name: str, key: str, keys: Sequence[str]) -> Answer:
    (about,) = answers(database, [run.attempt_id], [key]).to_pylist()
    own = tokens(database, [run.attempt_id], [key]).to_pylist()
    full = None
    if run.full_attempt_id is not None:
        full = tokens(database, [run.full_attempt_id], [key])["token_id"].to_pylist()
    probe = probed(database, run.probe_attempt_id, [key]).to_pylist()
    gate = scored(database, run.scores_attempt_id, [key]).to_pylist()
    ids = {row["token_id"] for row in own} | set(full or ())
    ids |= {token_id for row in probe for name in ("top1_id", "top2_id", "top3_id") for token_id in row[name]}
    ids |= {row["full_token_id"] for row in probe}
    texts = _labels(database, run, key) if run.classifies else spelled(database, run.tokenizer_sha256, ids)
    told = _number_format(database, run)
    return Answer(name, run, keys.index(key) + 1, len(keys), key, about, own, full, probe, gate, texts, told)


def _number_format(database: Database, run: TracedRun) -> str | None:
    (row,) = database.query(_FORMAT, {"full": run.full_attempt_id, "dtype": run.dtype}).to_pylist()
    return number_format(row)


def _labels(database: Database, run: TracedRun, key: str) -> dict[int, str]:
    """How an encoder's labels are spelled, by their places; of numbers, which all have place 0, the run's own."""
    attempts = [attempt for attempt in (run.full_attempt_id, run.attempt_id) if attempt is not None]
    said = {row["attempt_id"]: row for row in answers(database, attempts, [key]).to_pylist()}
    rows = [said[attempt] for attempt in attempts if attempt in said]
    return {ids[0]: row["output_text"] for row in rows for ids in [row["output_ids"] or [0]]}
