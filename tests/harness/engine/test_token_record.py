"""The record of a token: field names equal the database's columns, and values that do not apply are NULL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exitbench.harness.engine.model.token_record import TokenRecord
from exitbench.methods.base import Parts
from exitbench.methods.registry import get_method
from exitbench.results.tables.traces import TRACES


def parts_of(method: str) -> Parts:
    return get_method(method).from_params({}).parts(6)


RECORD = TokenRecord(
    token_id=7,
    exit_layer=3,
    blocks_run=5,
    head_rows=20,
    score=0.5,
    score_half_width=0.25,
    head_rows_int8=40,
    head_fallbacks=1,
    rejected=2,
    rejected_layers=(1, 2),
    wasted=1,
    logprob=-1.5,
    is_greedy=True,
)
NOT_STORED = ("wasted", "rejected_layers")
STORED = {name: value for name, value in RECORD._asdict().items() if name not in NOT_STORED} | {"reason": "threshold"}
EXACT, VERIFYING = parts_of("calm-softmax"), parts_of("self-speculation")
BOUNDS, DRAFTS = {"head_rows_int8": 40, "head_fallbacks": 1}, {"rejected": 2}


def test_row_fields_equal_the_token_columns_of_the_database() -> None:
    columns = {column.name for table in TRACES if table.file == "tokens" for column in table.columns}
    of_the_document = {"attempt_id", "doc_key", "choice", "position", "token_kind"}
    of_full_depth = {"full_token_id", "full_logprob", "full_is_greedy"}
    assert set(RECORD.to_row(None)) == columns - of_the_document - of_full_depth


@pytest.mark.parametrize(
    ("parts", "known"),
    [
        (EXACT, {}),
        (EXACT.certified(), BOUNDS),
        (VERIFYING, DRAFTS),
        (replace(VERIFYING, head=EXACT.certified().head), BOUNDS | DRAFTS),
    ],
    ids=["exact", "certified", "verifying", "certified-and-verifying"],
)
def test_bound_counts_need_a_certified_head_and_draft_counts_a_verifying_policy(
    parts: Parts, known: dict[str, int]
) -> None:
    assert RECORD.to_row(parts) == STORED | dict.fromkeys(BOUNDS | DRAFTS) | known


def test_replayed_token_has_no_lm_head_counts() -> None:
    assert RECORD.to_row(None) == STORED | dict.fromkeys(("head_rows", *BOUNDS, *DRAFTS))


def test_token_without_a_score_has_exit_reason_last() -> None:
    assert RECORD._replace(score=None).to_row(None)["reason"] == "last"
