"""Spellings of tokens: which begin a word, and their way through the spool into the database."""

from pathlib import Path
from typing import Any

import pytest

from exitbench.results.database.connection import open_database
from exitbench.results.ingest.importing import merge
from exitbench.results.ingest.ingest import ingest, rebuild
from exitbench.results.side_records.vocabularies import begins_word, check_vocabularies, record_vocabulary

ID = "abc0" * 16
TEXTS = ["<pad>", "▁the", "ory", None, "▁"]


def ask(path: Path) -> list[tuple[Any, ...]]:
    with open_database(path) as database:
        return database.rows("FROM vocabulary ORDER BY ALL")[1]


@pytest.mark.parametrize(
    ("texts", "begin"),
    [
        (["▁the", "ory", "▁", "."], [True, False, True, False]),
        (["Ġthe", "ory", "ĊĊ", "."], [True, False, True, False]),
        (["the", "##ory", "##", "▁"], [True, False, True, True]),
        (["the", "theory", None], [True, True, False]),
    ],
    ids=["SentencePiece", "byte-level", "WordPiece", "words"],
)
def test_word_starts_are_detected_from_tokenizer_markers(texts: list[str | None], begin: list[bool]) -> None:
    assert begins_word(texts) == begin


def test_vocabulary_is_stored_once_and_special_tokens_have_no_word_start(tmp_path: Path) -> None:
    spool, path = tmp_path / "spool", tmp_path / "exitbench.duckdb"
    record_vocabulary(spool, ID, TEXTS, {0})
    record_vocabulary(spool, ID, ["other"], ())
    assert ingest(spool, path).quarantined == ()
    assert ingest(spool, path).quarantined == ()
    rows = [
        (ID, 0, "<pad>", None),
        (ID, 1, "▁the", True),
        (ID, 2, "ory", False),
        (ID, 4, "▁", True),
    ]
    assert ask(path) == rows
    rebuild(spool, path)
    assert ask(path) == rows


def test_damaged_vocabulary_is_named_and_rewritten_by_the_next_run(tmp_path: Path) -> None:
    spool, path = tmp_path / "spool", tmp_path / "exitbench.duckdb"
    record_vocabulary(spool, ID, TEXTS, {0})
    with (spool / "vocabularies" / ID / "token_text.parquet").open("ab") as file:
        file.write(b"x")
    (message,) = check_vocabularies(spool)
    assert "token_text.parquet: was changed after it was written" in message
    (problem,) = ingest(spool, path).quarantined
    assert "token_text.parquet: was changed after it was written" in problem and "quarantine" in problem
    assert ask(path) == []
    assert check_vocabularies(spool) == []
    record_vocabulary(spool, ID, TEXTS, {0})
    assert ingest(spool, path).quarantined == ()
    assert len(ask(path)) == 4


def test_merge_imports_vocabularies(tmp_path: Path) -> None:
    other_spool, spool, path = tmp_path / "theirs", tmp_path / "spool", tmp_path / "exitbench.duckdb"
    record_vocabulary(other_spool, ID, TEXTS, {0})
    merge(other_spool, spool, path)
    assert len(ask(path)) == 4
