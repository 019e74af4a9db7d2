"""Training records go from a model's folder through the spool into the database, once, complete or not at all."""

import json
from pathlib import Path
from typing import Any

import pytest
from stored_rows import query_rows

from exitbench.results.database.connection import open_database
from exitbench.results.ingest.ingest import ingest, rebuild
from exitbench.results.side_records.trainings import record_training

CARD = {
    "recipe": {"name": "small", "objective": {"loss": "weighted"}},
    "steps": 20,
    "parameters": 7,
    "final_loss_nats": 0.5,
    "validation": {"token_accuracy": [0.25, 0.75]},
    "wall_seconds": 1.5,
}
GOOD, BAD = "a" * 64, "b" * 64
LOG = "step,block,metric,value\n10,,loss_nats,2.5\n10,1,block_loss_nats,3\n20,,loss_nats,0.5\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "card.json").write_text(json.dumps(CARD))
    (folder / "training_log.csv").write_text(LOG)
    return folder


def ask(path: Path, sql: str) -> list[dict[str, Any]]:
    with open_database(path) as database:
        return query_rows(database, sql)


def test_training_log_is_queryable_and_named_by_its_recipe(model: Path, tmp_path: Path) -> None:
    spool, path = tmp_path / "spool", tmp_path / "exitbench.duckdb"
    record_training(spool, "a" * 64, model)
    assert ingest(spool, path).quarantined == ()
    assert ingest(spool, path).quarantined == ()  # again: nothing more
    rows = ask(path, "SELECT model, step, block, metric, value FROM training_curves ORDER BY ALL")
    assert [tuple(row.values()) for row in rows] == [
        ("small", 10, 1, "block_loss_nats", 3.0),
        ("small", 10, None, "loss_nats", 2.5),
        ("small", 20, None, "loss_nats", 0.5),
    ]
    (row,) = ask(path, "SELECT loss, steps, parameters, final_loss_nats, token_accuracy, seconds FROM trainings")
    assert tuple(row.values()) == ("weighted", 20, 7, 0.5, [0.25, 0.75], 1.5)


def test_rebuilt_database_contains_the_training_log(model: Path, tmp_path: Path) -> None:
    spool, path = tmp_path / "spool", tmp_path / "exitbench.duckdb"
    record_training(spool, "a" * 64, model)
    rebuild(spool, path)
    assert ask(path, "SELECT count(*) AS n FROM training_curves") == [{"n": 3}]


def test_model_without_training_record_writes_nothing(tmp_path: Path) -> None:
    record_training(tmp_path / "spool", "a" * 64, tmp_path)
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("card.json", "{"),
        ("card.json", '{"recipe": {}}'),
        ("training_log.csv", "step,value\n1,2\n"),
        ("training_log.csv", LOG + "x,,m,1\n"),
    ],
)
def test_damaged_training_record_is_named_and_not_ingested(model: Path, tmp_path: Path, file: str, text: str) -> None:
    spool, path = tmp_path / "spool", tmp_path / "exitbench.duckdb"
    record_training(spool, GOOD, model)
    (model / file).write_text(text)
    record_training(spool, BAD, model)
    (problem,) = ingest(spool, path).quarantined
    assert BAD in problem
    assert ask(path, "SELECT weights_sha256, (SELECT count(*) FROM training_log) AS n FROM training_run") == [
        {"weights_sha256": GOOD, "n": 3}
    ]


def test_a_models_objective_is_that_of_its_trainings_and_unknown_without_one(model: Path, tmp_path: Path) -> None:
    spool, path = tmp_path / "spool", tmp_path / "exitbench.duckdb"
    card = {**CARD, "recipe": {"name": "joint", "objective": {"loss": "weighted", "blocks": [2, 4]}}}
    record_training(spool, "a" * 64, model)
    (model / "card.json").write_text(json.dumps(card))
    record_training(spool, "b" * 64, model)
    record_training(spool, "f" * 64, model)
    (model / "card.json").write_text(json.dumps(CARD))
    record_training(spool, "e" * 64, model)
    ingest(spool, path)
    with open_database(path, read_only=False) as database:
        names = {"a": "ours", "c": "ours", "b": "every second", "d": "released", "e": "twice", "f": "twice"}
        for weights, name in names.items():
            database.duck.execute(
                "INSERT INTO model_artifact BY NAME SELECT $id AS model_id, $name AS name, $id AS weights_sha256, "
                "$id AS config_sha256, $id AS tokenizer_sha256, 'causal' AS kind, 4 AS blocks",
                {"id": weights * 64, "name": name},
            )
    rows = ask(path, "SELECT model, loss, trained_blocks FROM objectives ORDER BY ALL")
    assert [tuple(row.values()) for row in rows] == [
        ("every second", "weighted of some blocks", [2, 4]),
        ("ours", "weighted", None),  # in spite of other weights of that name without a record of their training
        ("released", "unknown", None),
        ("twice", "several", None),
    ]
