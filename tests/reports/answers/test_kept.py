"""Cached packs of answers are never older than the database and contain only what the page needs."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from exitbench.reports.answers import document_choice, documents
from exitbench.reports.answers.documents import documents_payload
from exitbench.results.database.connection import open_database

Written = Callable[[], tuple[bytes, int]]


@pytest.fixture
def database(small_database: Path, tmp_path: Path) -> Path:
    """Return a copy of the small database, with two groups of answers, that a test may change."""
    return Path(shutil.copy(small_database, tmp_path / "exitbench.duckdb"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def build_payload(database: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Return a function that returns the payload, and the number of groups that were packed for it."""
    packed, packed_groups = documents._packed, []

    def noted(*arguments: Any) -> bytes:
        packed_groups.append(arguments)
        return packed(*arguments)

    monkeypatch.setattr(documents, "_packed", noted)
    monkeypatch.setattr(document_choice, "recommended", lambda _: [])  # none is recommended on so few documents

    def payload() -> tuple[bytes, int]:
        packed_groups.clear()
        with open_database(database) as opened:
            built_payload = documents_payload(opened, kept_in=folder)
        assert built_payload is not None
        return built_payload, len(packed_groups)

    return payload


def change(database: Path, sql: str) -> None:
    with duckdb.connect(str(database)) as duck:
        duck.execute(sql)


def first_attempt_condition(table: str) -> str:
    """Return an SQL condition that selects the rows of one attempt whose answers are on the page."""
    return f"attempt_id = (SELECT min(attempt_id) FROM {table})"


def test_answers_that_did_not_change_are_not_packed_again(build_payload: Written, database: Path, folder: Path) -> None:
    first, n_packed = build_payload()
    assert n_packed == 2 and build_payload() == (first, 0)
    with open_database(database) as opened:
        assert documents_payload(opened) == first, "the same as with nothing kept"


@pytest.mark.parametrize(
    "table, change_of",
    [
        ("token_exit", "exit_layer = exit_layer % 4 + 1"),
        ("sample", "scores = '{\"f1\": 12.5}'"),
        ("probe_token", "first_match = first_match % 4 + 1"),
        ("score_token", "score = list_transform(score, lambda x: x / 2)"),
    ],
)
def test_changed_row_invalidates_the_cached_pack(
    build_payload: Written, database: Path, table: str, change_of: str
) -> None:
    first, _ = build_payload()
    change(database, f"UPDATE {table} SET {change_of} WHERE {first_attempt_condition(table)}")
    second, packed_groups = build_payload()
    with open_database(database) as opened:
        assert documents_payload(opened) == second != first
    assert packed_groups >= 1


def test_added_or_deleted_row_invalidates_the_cached_pack(build_payload: Written, database: Path) -> None:
    first, _ = build_payload()
    rescored = "attempt_id, doc_key, '9', '{\"f1\": 99.0}', statistics, now()::TIMESTAMP"
    change(
        database, f"INSERT INTO sample_rescore SELECT {rescored} FROM sample WHERE {first_attempt_condition('sample')}"
    )
    second, _ = build_payload()
    change(database, "DELETE FROM sample_rescore")
    assert build_payload()[0] == first != second
    tokenizer = "(SELECT min(tokenizer_sha256) FROM model_artifact)"
    change(database, f"INSERT INTO token_text SELECT {tokenizer}, range, 'word', true FROM range(100)")
    third, packed_groups = build_payload()
    with open_database(database) as opened:
        assert packed_groups >= 1 and documents_payload(opened) == third != first


def test_changed_code_repacks_everything(build_payload: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = build_payload()
    monkeypatch.setattr(documents, "_code", lambda: "changed")
    assert build_payload() == (first, 2)


def test_damaged_pack_is_rebuilt_and_unused_packs_are_deleted(build_payload: Written, folder: Path) -> None:
    first, _ = build_payload()
    first_path, other = sorted(folder.iterdir())
    first_path.write_bytes(other.read_bytes()[:-1])
    (folder / ("0" * 64)).write_bytes(b"of a page before")
    (folder / "mine").write_text("mine")
    assert build_payload() == (first, 1)
    assert {path.name for path in folder.iterdir()} == {first_path.name, other.name, "mine"}
    shutil.rmtree(folder)
    folder.write_text("a file where the folder should be")
    assert build_payload() == (first, 2)
