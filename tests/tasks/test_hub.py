"""The hub source, read by `datasets` itself: from folders in the hub's layout, and without a network."""

from pathlib import Path

import datasets
import huggingface_hub.constants
import pytest

from exitbench.errors import UserError
from exitbench.tasks.base import Source
from exitbench.tasks.glue import DATA_SETS
from exitbench.tasks.registry import get_task, task_names

PAIR = {"translation": {"en": "One.", "fr": "Un."}}
ROMANIAN = {"translation": {"en": "One.", "ro": "Unu."}}
ARTICLE = {"id": "a1", "article": "Rain fell.", "highlights": "Rain."}
PATENT = {"description": "A wheel.", "abstract": "Wheel."}
DIALOGUE = {"id": "1", "dialogue": "A: hi", "summary": "A says hi."}
QUESTION = {
    "id": "q1",
    "title": "Ada",
    "context": "Ada wrote the first program. She lived in London.",
    "question": "Who?",
    "answers": {"text": ["Ada"], "answer_start": [0]},
}
# `datasets` takes a folder of the data set's name for the data set.
HUB_ROWS = {
    "rajpurkar/squad/validation.parquet": [QUESTION],
    "knkarthick/samsum/validation.parquet": [DIALOGUE],
    "knkarthick/samsum/train.parquet": [DIALOGUE, {**DIALOGUE, "dialogue": None}],
    "knkarthick/dialogsum/validation.parquet": [DIALOGUE],
    "wmt/wmt14/fr-en/validation.parquet": [PAIR],
    "wmt/wmt16/ro-en/validation.parquet": [ROMANIAN],
    "abisee/cnn_dailymail/3.0.0/validation.parquet": [ARTICLE],
    "NortheasternUniversity/big_patent/all/validation.parquet": [PATENT],
}
CARD = """---
configs:
- config_name: {config}
  data_files:
  - split: validation
    path: {config}/validation.parquet
---
"""
CARDS = {
    "wmt/wmt14": "fr-en",
    "wmt/wmt16": "ro-en",
    "abisee/cnn_dailymail": "3.0.0",
    "NortheasternUniversity/big_patent": "all",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, rows in HUB_ROWS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_list(rows).to_parquet(path)
    for name, config in CARDS.items():
        (tmp_path / name / "README.md").write_text(CARD.format(config=config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("squad", QUESTION),
        ("samsum", DIALOGUE),
        ("dialogsum", DIALOGUE),
        ("wmt-en-fr", {"id": "1", **PAIR["translation"]}),
        ("wmt14-fr-en", {"id": "1", **PAIR["translation"]}),
        ("wmt16-ro-en", {"id": "1", **ROMANIAN["translation"]}),
        ("wmt16-en-ro", {"id": "1", **ROMANIAN["translation"]}),
        ("cnn-dailymail", ARTICLE),
        ("bigpatent", {"id": "1", **PATENT}),
    ],
)
def test_hub_rows_become_documents_with_the_expected_fields(hub, name, fields):
    (document,) = get_task(name).load(Source("hub"), "validation", None)
    assert document.fields == fields


def test_hub_and_local_documents_have_the_same_keys(hub, load, write, squad_json):
    write("dev.json", squad_json)
    task = get_task("squad")
    (document,) = task.load(Source("hub"), "validation", None)
    assert document.key == load(task, data="dev.json")[0].key


def test_null_dialogue_becomes_empty_text(hub):
    documents = get_task("samsum").load(Source("hub"), "train", None)
    assert [document.fields["dialogue"] for document in documents] == ["A: hi", ""]


def test_unknown_split_error_lists_existing_splits(hub):
    with pytest.raises(UserError, match=r"rajpurkar/squad, split 'calibration'.*validation"):
        get_task("squad").load(Source("hub"), "calibration", None)


@pytest.mark.parametrize("name", task_names())
def test_offline_error_names_the_data_set_and_alternative_sources(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    wanted = {
        "squad": "rajpurkar/squad",
        "samsum": "knkarthick/samsum",
        "dialogsum": "knkarthick/dialogsum",
        "cnn-dailymail": r"abisee/cnn_dailymail \(3\.0\.0\)",
        "bigpatent": r"NortheasternUniversity/big_patent \(all\)",
        "wmt-en-fr": r"wmt/wmt14 \(fr-en\)",
        **{glue: rf"nyu-mll/glue \({data_set.hub}\)" for glue, data_set in DATA_SETS.items()},
    }[name]
    with pytest.raises(UserError, match=rf"hub data set {wanted}, split 'test(_m\w+)?'.*'local'.*'builtin'"):
        get_task(name).load(Source("hub"), "test", None)


def test_data_set_missing_on_the_hub_is_local_only():
    with pytest.raises(
        UserError, match=r'^iwslt14-de-en: the hub has no data set of iwslt14\. Allowed: source = "local"'
    ):
        get_task("iwslt14-de-en").load(Source("hub"), "test", None)
