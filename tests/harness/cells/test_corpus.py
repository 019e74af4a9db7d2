"""Digests of documents are cached between plans and recomputed when the documents' sources change."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from exitbench.errors import UserError
from exitbench.harness.cells import corpus
from exitbench.harness.cells.corpus import CACHE, Corpora
from exitbench.harness.cells.job import DataRequest

BUILTIN = DataRequest("squad", "builtin", "test", limit=3)
LINES = DataRequest("wmt-en-fr", "local", "test", files=(("en", "text.en"), ("fr", "text.fr")))


def loads(monkeypatch: pytest.MonkeyPatch) -> list[DataRequest]:
    """Return a list that collects every request whose documents are read from now on."""
    seen: list[DataRequest] = []
    load = DataRequest.load
    monkeypatch.setattr(DataRequest, "load", lambda self, data_dir: seen.append(self) or load(self, data_dir))
    return seen


def test_digests_of_unchanged_documents_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = loads(monkeypatch)
    first = Corpora(tmp_path).describe(BUILTIN, None)
    assert Corpora(tmp_path).describe(BUILTIN, None) == first
    assert (first.documents, seen) == (3, [BUILTIN])


@pytest.mark.parametrize("other", [{"limit": 4}, {"seed": 1}, {"split": "validation"}, {"task": "samsum"}])
def test_another_data_request_gets_another_digest(other: dict[str, object], tmp_path: Path) -> None:
    first = Corpora(tmp_path).describe(BUILTIN, None)
    asked = DataRequest(**{**BUILTIN.__dict__, **other})  # type: ignore[arg-type]
    assert Corpora(tmp_path).describe(asked, None).data_sha256 != first.data_sha256


def test_a_file_that_changed_is_read_again(tmp_path: Path, data_dir: Path) -> None:
    first = Corpora(tmp_path).describe(LINES, data_dir)
    (data_dir / "text.fr").write_text("un\ndeux\ntrois\nquatre\n")
    second = Corpora(tmp_path).describe(LINES, data_dir)
    assert second.data_sha256 != first.data_sha256
    assert second.prompts_sha256 == first.prompts_sha256


def test_prompt_digests_depend_on_the_model_kind(tmp_path: Path) -> None:
    question_first = Corpora(tmp_path).describe(BUILTIN, None).prompts_sha256
    alike = Corpora(tmp_path).describe(replace(BUILTIN, task="samsum"), None).prompts_sha256
    assert question_first["causal"] != question_first["seq2seq"]
    assert alike["causal"] == alike["seq2seq"]


def test_another_data_folder_is_read_despite_equal_file_metadata(tmp_path: Path, data_dir: Path) -> None:
    first = Corpora(tmp_path).describe(LINES, data_dir)
    other = tmp_path / "other"
    other.mkdir()
    for name in ("text.en", "text.fr"):
        (other / name).write_text((data_dir / name).read_text().upper())
        shutil.copystat(data_dir / name, other / name)
    assert Corpora(tmp_path).describe(LINES, other) != first


def test_changed_task_sources_invalidate_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Corpora(tmp_path).describe(BUILTIN, None)
    seen = loads(monkeypatch)
    monkeypatch.setattr(corpus, "sources_sha256", lambda package: "other")
    Corpora(tmp_path).describe(BUILTIN, None)
    assert seen == [BUILTIN]


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": {"documents": 1}}'])
def test_unreadable_cache_file_is_rebuilt(text: str, tmp_path: Path) -> None:
    first = Corpora(tmp_path).describe(BUILTIN, None)
    (tmp_path / CACHE).write_text(text)
    assert Corpora(tmp_path).describe(BUILTIN, None) == first


def test_missing_runs_folder_is_not_created(tmp_path: Path) -> None:
    Corpora(tmp_path / "runs").describe(BUILTIN, None)
    assert not (tmp_path / "runs").exists()


def test_missing_data_file_is_an_error_despite_a_cached_digest(tmp_path: Path, data_dir: Path) -> None:
    Corpora(tmp_path).describe(LINES, data_dir)
    (data_dir / "text.fr").unlink()
    with pytest.raises(UserError, match=r"text\.fr"):
        Corpora(tmp_path).describe(LINES, data_dir)


def test_digests_computed_before_the_folder_existed_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = loads(monkeypatch)
    folder = tmp_path / "runs"
    first = Corpora(folder).describe(BUILTIN, None)
    assert not folder.exists()
    folder.mkdir()
    corpus.write_pending(folder)
    monkeypatch.setattr(corpus, "_pending", {})  # as in another process
    assert Corpora(folder).describe(BUILTIN, None) == first and seen == [BUILTIN]
