"""The README's table: of each method one setting, with the interval of what it loses, and of which data it is."""

import json
import shutil
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import duckdb
import pytest
from scipy.stats import t

from exitbench.reports import tables
from exitbench.reports.frame import Frame
from exitbench.reports.registry import discover
from exitbench.reports.tables.filled import FilledTable, fill
from exitbench.results.database.connection import Database, open_database

(HIGHLIGHTS,) = (source for source in discover(tables) if source.name == "highlights")
POINT = 1.0


def made(database: Database) -> tuple[Frame, FilledTable]:
    frame = Frame.query(database, HIGHLIGHTS.sql)
    return frame, fill(HIGHLIGHTS, frame)


def every_setting(database: Database, row: dict[str, Any]) -> list[dict[str, Any]]:
    """All that was timed on the model and task of the table."""
    rows = Frame.query(database, "SELECT * FROM frontier").rows
    same = ("model", "dtype", "device", "batch_size")
    (own,) = (other for other in rows if other["cell_id"] == row["cell_id"])
    return [
        other
        for other in rows
        if other["execution"] == "real"
        and other["speedup"] is not None
        and not other["random_weights"]
        and other["task_label"] == own["task_label"]
        and all(other[name] == own[name] for name in same)
    ]


def test_each_method_is_shown_at_its_fastest_setting_that_loses_little(small_database: Path) -> None:
    with open_database(small_database) as database:
        frame, _ = made(database)
        known = every_setting(database, dict(frame.rows[0]))
    assert frame.rows[0]["is_full_depth"] and len(frame.rows) <= 10
    assert {row["method"] for row in frame.rows} <= {row["method"] for row in known}
    assert len({row["method"] for row in frame.rows}) == len(frame.rows)
    for row in frame.rows:
        others = [other for other in known if other["method"] == row["method"]]
        close = [other for other in others if other["delta"] >= -POINT]
        if close:
            assert row["speedup"] == max(other["speedup"] for other in close)
        else:
            assert row["delta"] == max(other["delta"] for other in others)


def test_what_a_setting_loses_has_an_interval_paired_by_document(small_database: Path) -> None:
    told = 0
    with open_database(small_database) as database:
        frame, _ = made(database)
        attempts = {row["cell_id"]: row for row in Frame.query(database, "SELECT cell_id, attempt_id FROM runs").rows}
        answers = Frame.query(database, "SELECT attempt_id, doc_key, scores FROM answers").rows
    scores = {(row["attempt_id"], row["doc_key"]): json.loads(row["scores"]) for row in answers}
    full = attempts[frame.rows[0]["cell_id"]]["attempt_id"]
    for row in frame.rows[1:]:
        own = attempts[row["cell_id"]]["attempt_id"]
        differences = [
            score[row["metric"]] - scores[full, key][row["metric"]]
            for (attempt, key), score in scores.items()
            if attempt == own
        ]
        if row["delta_low"] is None:
            assert len(set(differences)) == 1 or mean(differences) != pytest.approx(row["delta"])
            continue
        half = t.ppf(0.975, len(differences) - 1) * stdev(differences) / sqrt(len(differences))
        assert (row["delta_low"], row["delta_high"]) == pytest.approx(
            (row["delta"] - half, row["delta"] + half), rel=1e-3
        )
        told += 1
    assert told


def test_the_caption_says_of_which_data_and_how_large_a_model_it_is(small_database: Path) -> None:
    with open_database(small_database) as database:
        _, table = made(database)
    assert "Data: generated, a model of" in table.agreed and "million parameters" in table.agreed
    assert "Documents: " in table.agreed


def test_a_task_whose_losses_have_an_interval_comes_before_one_whose_quality_differs_more(
    example_database: Path, tmp_path: Path
) -> None:
    """A metric of the whole text, as BLEU is, is no mean of documents, and no interval is paired by document."""
    with open_database(example_database) as database:
        before, _ = made(database)
    assert {row["task"] for row in before.rows} == {"wmt-en-fr"}, "its quality differs most"
    whole = tmp_path / "whole.duckdb"
    shutil.copyfile(example_database, whole)
    with duckdb.connect(whole) as connection:
        connection.execute("UPDATE metric SET value = 0.9 * value WHERE metric = 'bleu' AND value BETWEEN 1 AND 99")
    with open_database(whole) as database:
        frame, _ = made(database)
    assert {row["task"] for row in frame.rows} == {"squad"}
    assert any(row["delta_low"] is not None for row in frame.rows)
