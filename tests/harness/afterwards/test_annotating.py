"""`exitbench annotate upos`: part-of-speech tags of the tokens of full depth's answers, stored in the spool."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from exitbench.harness.afterwards import taggers
from exitbench.harness.afterwards.taggers import Word, tags_of
from exitbench.harness.cli.main import main
from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest, rebuild
from exitbench.results.maintenance.gc import find_garbage
from exitbench.results.maintenance.integrity import check
from exitbench.results.side_records.vocabularies import record_vocabulary
from exitbench.results.spool.attempts import scan_spool

VOCABULARY, END = 100, 7
TEXTS = ["</s>" if n == END else f"▁w{n}" if n % 3 else f"x{n}" for n in range(VOCABULARY)]
"""Two of three tokens begin a word."""


class Lengths:
    """Tagger that tags each word by its length."""

    name = "lengths 1"

    def __init__(self, model: str) -> None:
        self.name = f"lengths {model}"

    def words(self, text: str) -> Sequence[Word]:
        assert text == text.lstrip(), "spaCy takes a space in front for a word"
        return [Word(m.start(), m.end(), f"LEN{len(m[0])}") for m in re.finditer(r"\S+", text)]


@pytest.fixture(scope="module")
def spelled_runs(example_spool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return runs of two models on one task of the example, with a vocabulary that spells their tokens."""
    runs = tmp_path_factory.mktemp("spelled") / "runs"
    for prefix in sorted(example_spool.iterdir()):
        cells = [json.loads(path.with_name("cell.json").read_text()) for path in prefix.glob("*/*/samples.parquet")]
        if any(cell["method"]["name"] in ("full", "static") and cell["task"]["name"] == "squad" for cell in cells):
            shutil.copytree(prefix, runs / "spool" / prefix.name)
    for tokenizer in {
        json.loads(p.read_text())["model"]["tokenizer_sha256"] for p in runs.glob("spool/*/*/*/cell.json")
    }:
        record_vocabulary(runs / "spool", tokenizer, TEXTS, {END})
    ingest(runs / "spool", runs / "exitbench.duckdb")
    return runs


@pytest.fixture
def runs(spelled_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of these runs, with `Lengths` as the installed tagger."""
    monkeypatch.setitem(taggers.TAGGERS, "spacy", taggers._Kind("re", "one", Lengths))  # type: ignore[index]
    return Path(shutil.copytree(spelled_runs, tmp_path / "runs"))


def asked(runs: Path, sql: str) -> list[dict[str, Any]]:
    with open_database(runs / "exitbench.duckdb") as database:
        return database.query(sql).to_pylist()


TAGGED = "SELECT attempt_id, doc_key, position, upos, tagger FROM token_tags ORDER BY ALL"


def expected(runs: Path, tagger: str) -> list[dict[str, Any]]:
    """Compute the expected tags in Python: a word is a token together with its continuation tokens."""
    answers: dict[tuple[str, str], list[int]] = {}
    for row in asked(
        runs,
        "SELECT attempt_id, doc_key, token_id FROM token_trace JOIN runs USING (attempt_id) WHERE is_full_depth "
        "ORDER BY attempt_id, doc_key, position",
    ):
        answers.setdefault((row["attempt_id"], row["doc_key"]), []).append(row["token_id"])
    rows = []
    for (attempt_id, doc_key), token_ids in answers.items():
        words: list[list[int]] = []
        for position, token_id in enumerate(token_ids, start=1):
            if token_id == END:
                continue
            if TEXTS[token_id].startswith("▁") or not words:
                words.append([])
            words[-1].append(position)
        for word in words:
            length = sum(len(TEXTS[token_ids[position - 1]].lstrip("▁")) for position in word)
            rows += [
                {"attempt_id": attempt_id, "doc_key": doc_key, "position": n, "upos": f"LEN{length}", "tagger": tagger}
                for n in word
            ]
    return sorted(rows, key=lambda row: (row["attempt_id"], row["doc_key"], row["position"]))


def test_each_subword_has_the_tag_of_its_word_also_after_a_rebuild(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["annotate", "upos", "--runs", str(runs)]) == 0
    assert "2 runs tagged by lengths one, 0 were, 0 left." in capsys.readouterr().out
    rows = asked(runs, TAGGED)
    assert rows == expected(runs, "lengths one")
    assert len({row["upos"] for row in rows}) > 3
    assert main(["annotate", "upos", "--runs", str(runs)]) == 0
    assert "0 runs tagged by lengths one, 2 were, 0 left." in capsys.readouterr().out
    assert main(["annotate", "upos", "*t5/squad/*", "--runs", str(runs), "--model", "two"]) == 0
    assert "1 run tagged by lengths two" in capsys.readouterr().out
    both = asked(runs, TAGGED)
    assert len(rows) < len(both) < 2 * len(rows)
    rebuild(runs / "spool", runs / "exitbench.duckdb")
    assert asked(runs, TAGGED) == both
    assert check(runs / "spool", runs / "exitbench.duckdb").problems == ()


def test_damaged_tags_are_quarantined_and_can_be_recomputed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["annotate", "upos", "*t5/squad/*", "--runs", str(runs)]) == 0
    rows = asked(runs, TAGGED)
    (path,) = (runs / "spool" / "tags").glob("*/*/token_tag.parquet")
    path.write_bytes(path.read_bytes() + b"x")
    assert "annotate again" in "".join(check(runs / "spool", runs / "exitbench.duckdb").problems)
    (problem,) = rebuild(runs / "spool", runs / "exitbench.duckdb").quarantined
    assert "was changed after it was written" in problem and "Moved to" in problem
    assert asked(runs, TAGGED) == []
    assert main(["annotate", "upos", "*t5/squad/*", "--runs", str(runs)]) == 0
    assert asked(runs, TAGGED) == rows


def test_garbage_collection_removes_a_superseded_attempt_with_its_tags(runs: Path) -> None:
    assert main(["annotate", "upos", "*t5/squad/*", "--runs", str(runs)]) == 0
    (tags,) = (runs / "spool" / "tags").glob("*")
    old = next(attempt for attempt in scan_spool(runs / "spool") if attempt.attempt_id == tags.name)
    shutil.copytree(old.path, old.path.with_name(f"3{old.attempt_id[1:]}"))
    ingest(runs / "spool", runs / "exitbench.duckdb")
    result = find_garbage(runs / "spool", runs / "exitbench.duckdb", superseded=True, traces=False)
    assert {garbage.path for garbage in result} >= {old.path, tags}


@pytest.mark.parametrize("named", [[], ["--tagger", "spacy"]])
def test_missing_tagger_message_says_what_to_install(
    named: list[str], runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(taggers, "find_spec", lambda module: None)
    assert main(["annotate", "upos", "--runs", str(runs), *named]) == 2
    assert "pip install spacy && python -m spacy download en_core_web_sm" in capsys.readouterr().err


def test_only_full_depth_runs_can_be_tagged(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["annotate", "upos", "*/static", "--runs", str(runs)]) == 2
    assert "no run at full depth is named '*/static'" in capsys.readouterr().err


def test_tagging_without_stored_vocabularies_fails(example_database: Path, runs: Path) -> None:
    shutil.copyfile(example_database, runs / "exitbench.duckdb")
    shutil.rmtree(runs / "spool" / "vocabularies")
    assert main(["annotate", "upos", "--runs", str(runs)]) == 2


@pytest.mark.parametrize(
    ("pieces", "words", "tags"),
    [
        (["Un", "believ", "able", " news"], [(0, 12, "ADJ"), (13, 17, "NOUN")], ["ADJ", "ADJ", "ADJ", "NOUN"]),
        (["don", "'", "t"], [(0, 2, "AUX"), (2, 5, "PART")], ["AUX", "PART", "PART"]),
        (["isn't", "."], [(0, 2, "AUX"), (2, 5, "PART"), (5, 6, "PUNCT")], ["PART", "PUNCT"]),
        (["it", "", " ", " is"], [(0, 2, "PRON"), (4, 6, "AUX")], ["PRON", None, None, "AUX"]),
        (["a", "\n"], [(0, 1, "DET"), (1, 2, "SPACE")], ["DET", None]),
        (["ab"], [(0, 1, "X"), (1, 2, "NUM")], ["X"]),
        (["a"], [], [None]),
    ],
    ids=["pieces", "split words", "most of it", "no text", "spaces", "first of equals", "nothing"],
)
def test_subword_gets_the_tag_of_the_word_it_overlaps_most(
    pieces: list[str], words: list[tuple[int, int, str]], tags: list[str | None]
) -> None:
    assert list(tags_of(pieces, [Word(*word) for word in words])) == tags
