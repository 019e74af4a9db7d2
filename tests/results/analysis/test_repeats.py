"""Two attempts at one cell: equal, or their first difference."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from exitbench.errors import UserError
from exitbench.results.analysis.repeats import FileComparison, compare_attempts
from exitbench.results.files.atomic import SpoolError
from exitbench.results.spool.attempts import AttemptWriter, free_tables
from exitbench.results.spool.schema import FITTED_FILE, TABLES

Json = dict[str, Any]
Rows = Mapping[str, list[Json]]


@pytest.fixture
def attempt(cell: Json, env: Json, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes an attempt and returns its folder."""

    def write(rows: Rows, fitted: bytes | None = None) -> Path:
        with AttemptWriter(tmp_path / "spool", cell, env) as writer:
            for table, table_rows in rows.items():
                writer.write(table, pa.Table.from_pylist(table_rows, schema=TABLES[table]))
            if fitted is not None:
                (writer.path / FITTED_FILE).write_bytes(fitted)
            writer.finish("ok")
        return writer.path

    return write


def token(position: int, token_id: int = 7, key: str = "a", **changed: Any) -> Json:
    row = {"doc_key": key, "position": position, "token_id": token_id, "token_kind": None, "exit_layer": 2}
    return {**row, "blocks_run": 2, "head_rows": 100, "score": 0.5, "reason": "threshold", "rejected": None, **changed}


def score(position: int, *scores: float) -> Json:
    return {"doc_key": "a", "position": position, "score": list(scores), "emitted_id": [3] * len(scores)}


THREE = [token(1), token(2), token(1, key="b")]


@pytest.mark.parametrize(
    ("column", "is_near"), [("logprob", True), ("full_logprob", True), ("score_half_width", False)]
)
def test_log_probabilities_of_given_tokens_may_differ_in_their_last_bits(
    attempt: Callable[..., Path], column: str, is_near: bool
) -> None:
    stored_token = token(1, choice=1, is_greedy=True, **{column: -2.0})
    for other, equal in ((-2.0 - 1e-5, is_near), (-2.1, False)):
        (compared,) = compare_attempts(
            attempt({"tokens": [stored_token]}), attempt({"tokens": [{**stored_token, column: other}]})
        )
        assert compared.equal is equal, other


def test_equal_attempts_are_equal_in_any_order_of_rows(attempt: Callable[..., Path]) -> None:
    (compared,) = compare_attempts(attempt({"tokens": THREE}), attempt({"tokens": THREE[::-1]}))
    assert compared == FileComparison("tokens.parquet", 3, 0, 0, None)
    assert compared.equal


def test_rows_are_matched_by_choice_and_generated_answers_have_no_choice(
    attempt: Callable[..., Path],
) -> None:
    stored_scores = [{**score(1, 0.1 * choice), "choice": choice} for choice in (1, 2, 3)]
    (compared,) = compare_attempts(attempt({"scores": stored_scores}), attempt({"scores": stored_scores[::-1]}))
    assert compared == FileComparison("scores.parquet", 3, 0, 0, None)
    (compared,) = compare_attempts(
        attempt({"scores": stored_scores}),
        attempt({"scores": [*stored_scores[:2], {**stored_scores[2], "score": [1.0]}]}),
    )
    assert (compared.rows, compared.differing_rows) == (3, 1)
    assert (compared.first or "").startswith("document a, choice 3, position 1: score[1]")
    (compared,) = compare_attempts(attempt({"scores": [score(1, 0.5)]}), attempt({"scores": [score(1, 0.5)]}))
    assert compared.equal


@pytest.mark.parametrize(("score", "equal"), [(0.50004, True), (0.5002, False), (None, False)])
def test_exit_scores_may_differ_in_their_last_digits(
    score: float | None, equal: bool, attempt: Callable[..., Path]
) -> None:
    """The cells in a shared pass determine the order of summation in matrix products."""
    now = [token(1, score=score), *THREE[1:]]
    (compared,) = compare_attempts(attempt({"tokens": THREE}), attempt({"tokens": now}))
    assert compared.equal is equal


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ([token(1), token(2, 8), token(1, key="b")], (3, 1, 1, "document a, position 2: token_id 7 -> 8")),
        (
            [token(1), token(2), token(1, 9, "b", exit_layer=1)],
            (3, 1, 1, "document b, position 1: exit_layer 2 -> 1; token_id 7 -> 9"),
        ),
        ([token(1), token(1, key="b")], (3, 1, 1, "document a, position 2: only in the stored attempt")),
        ([*THREE, token(2, key="b")], (4, 1, 1, "document b, position 2: only in the repetition")),
        ([token(1, 1), token(2, 1), token(1, 1, "b")], (3, 3, 2, "document a, position 1: token_id 7 -> 1")),
        ([token(1, score=None), *THREE[1:]], (3, 1, 1, "document a, position 1: score 0.5 -> None")),
    ],
)
def test_first_difference_is_reported(
    attempt: Callable[..., Path], now: list[Json], expected: tuple[int, int, int, str]
) -> None:
    (compared,) = compare_attempts(attempt({"tokens": THREE}), attempt({"tokens": now}))
    assert compared == FileComparison("tokens.parquet", *expected)
    assert not compared.equal


def test_differing_list_entry_is_reported_and_nan_equals_nan(attempt: Callable[..., Path]) -> None:
    old = attempt({"scores": [score(1, 0.5, 0.25, math.nan), score(2, 0.5, 0.5, math.nan)]})
    new = attempt({"scores": [score(1, 0.5, 0.25, math.nan), score(2, 0.5, 0.75, math.nan)]})
    (compared,) = compare_attempts(old, new)
    assert (compared.differing_rows, compared.first) == (1, "document a, position 2: score[2] 0.5 -> 0.75")


def test_only_differing_columns_of_a_row_are_reported(attempt: Callable[..., Path]) -> None:
    old, new = score(1, 0.5, math.nan), {**score(1, 0.5, math.nan), "emitted_id": [3, 4]}
    (compared,) = compare_attempts(attempt({"scores": [old]}), attempt({"scores": [new]}))
    assert compared.first == "document a, position 1: emitted_id[2] 3 -> 4"


def test_differing_fitted_tensors_are_reported(attempt: Callable[..., Path]) -> None:
    old, same, other = attempt({}, b"tensors"), attempt({}, b"tensors"), attempt({}, b"others!")
    assert [comparison.first for comparison in compare_attempts(old, same)] == [None]
    assert [comparison.first for comparison in compare_attempts(old, other)] == ["other tensors"]


def test_digests_are_compared_when_gc_removed_the_rows(attempt: Callable[..., Path]) -> None:
    old, same, other = (attempt({"tokens": rows}) for rows in (THREE, THREE, THREE[:2]))
    free_tables(old, {"tokens": 3})
    assert [comparison.first for comparison in compare_attempts(old, same)] == [None]
    assert [comparison.first for comparison in compare_attempts(old, other)] == [
        "other bytes, and gc removed the rows that say where"
    ]


def test_table_missing_from_one_attempt_is_a_difference(attempt: Callable[..., Path]) -> None:
    old, new = attempt({"tokens": THREE}), attempt({})
    (compared,) = compare_attempts(old, new)
    assert compared.first == f"{new} has no such file"


def test_attempts_without_anything_repeatable_are_refused(attempt: Callable[..., Path]) -> None:
    with pytest.raises(UserError, match="has no files that a repetition must reproduce"):
        compare_attempts(attempt({}), attempt({}))


def test_modified_files_are_refused(attempt: Callable[..., Path]) -> None:
    old, new = attempt({"tokens": THREE}), attempt({"tokens": THREE})
    (old / "tokens.parquet").write_bytes(b"torn")
    with pytest.raises(SpoolError, match="was changed after it was written"):
        compare_attempts(old, new)
