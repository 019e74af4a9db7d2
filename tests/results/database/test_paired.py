"""Losses against full depth, paired by document, and recommendations for an allowed loss, against slow references."""

import json
import random
import shutil
from functools import cache, partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from exitbench.results.database.connection import Database, open_database
from exitbench.results.database.differences import fill_differences
from exitbench.results.database.schema_doc import described_views
from exitbench.results.ingest.opening import open_snapshot
from exitbench.results.ingest.snapshot import write_snapshot
from exitbench.results.statistics.intervals import Floats, jackknife
from exitbench.results.statistics.split import is_choosing
from exitbench.tasks.registry import get_task

BASELINES = ("random", "oracle")


def reference(moved: Floats, largest: float = 100.0) -> tuple[float, float]:
    """Return the ends of the 95 % interval of the mean of `moved` [n], in points, from random document weights.

    `largest` is the largest possible contribution of one document.
    """
    weights = np.random.default_rng(0).dirichlet(np.ones(len(moved) + 1), size=40_000)
    low, high = (weights @ np.append(moved, extreme) for extreme in (-largest, largest))
    return float(np.quantile(low, 0.025)), float(np.quantile(high, 0.975))


@cache
def full_depth_attempts(database: Database) -> dict[str, str]:
    """Return the attempt at full depth of every run, by attempt."""
    return dict(database.rows("SELECT attempt_id, full_depth_attempt_id FROM runs")[1])


def differences(database: Database, row: dict[str, Any]) -> Floats:
    """Return the differences of a run's document scores to full depth's, [n], in the order of their keys."""
    full = full_depth_attempts(database)[row["attempt_id"]]
    method_values, other = (
        [
            json.loads(scores)[row["metric"]]
            for (scores,) in database.rows(
                "SELECT scores FROM sample WHERE attempt_id = ? ORDER BY doc_key", [attempt]
            )[1]
        ]
        for attempt in (row["attempt_id"], full)
    )
    return np.array(method_values) - np.array(other)


def refill_differences(path: Path) -> None:
    """Compute the stored differences again, after a test has changed scores without ingest."""
    with open_database(path, read_only=False) as database, database.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM quality_difference")
        fill_differences(connection)


@pytest.fixture(scope="module")
def mixed_database(example_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the example database with other values of rougeL: in each run some documents gain and others lose."""
    path, rng = tmp_path_factory.mktemp("mixed") / "exitbench.duckdb", random.Random(0)
    shutil.copyfile(example_database, path)
    with duckdb.connect(path) as connection:
        documents = connection.execute(
            "SELECT attempt_id, doc_key FROM sample JOIN metric USING (attempt_id) WHERE metric = 'rougeL'"
        )
        for attempt, key in documents.fetchall():
            scores = json.dumps({"rougeL": rng.choice([20.0, 50.0, 90.0])})
            connection.execute(
                "UPDATE sample SET scores = ? WHERE attempt_id = ? AND doc_key = ?", [scores, attempt, key]
            )
        connection.execute(
            "UPDATE metric SET value = (SELECT avg((scores ->> 'rougeL')::DOUBLE) FROM sample AS s "
            "WHERE s.attempt_id = metric.attempt_id) WHERE metric = 'rougeL'"
        )
    refill_differences(path)
    return path


@pytest.mark.parametrize("database", ["example_database", "mixed_database"])
def test_delta_interval_and_gain_loss_counts_equal_a_slow_reference(
    database: str, request: pytest.FixtureRequest
) -> None:
    with open_database(request.getfixturevalue(database)) as opened:
        rows = opened.query("FROM paired").to_pylist()
        expected = opened.query(
            "SELECT cell_id FROM frontier WHERE execution = 'real' AND NOT is_full_depth AND delta IS NOT NULL"
        ).num_rows
        assert len(rows) == expected > 10
        assert database == "example_database" or any(row["gained"] > 1 < row["lost"] for row in rows)
        for row in rows:
            moved = differences(opened, row)
            assert row["is_paired"] and row["n"] == len(moved)
            assert (row["gained"], row["lost"]) == ((moved > 0).sum(), (moved < 0).sum())
            assert (row["delta_low"], row["delta_high"]) == pytest.approx(reference(moved), rel=0.03, abs=0.5)
            loss = max(0.0, -100 * row["delta_low"] / row["full_value"])
            assert row["loss_high_percent"] == pytest.approx(loss)


STORED = "SELECT attempt_id, part, delta_low, delta_high FROM quality_difference ORDER BY ALL"


def test_stored_differences_of_another_version_are_computed_again(few_database: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(few_database, tmp_path))
    with open_database(path) as database:
        expected = database.rows(STORED)[1]
    with duckdb.connect(path) as connection:
        connection.execute("UPDATE quality_difference SET delta_low = -1")
        connection.execute("UPDATE view_source SET sha256 = 'of another version'")
    open_database(path, read_only=False).close()
    with open_database(path) as database:
        assert database.rows(STORED)[1] == expected != []


def test_differences_are_computed_when_a_snapshot_is_opened_not_read_from_it(
    few_database: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(few_database, tmp_path))
    with duckdb.connect(path) as connection:
        connection.execute("UPDATE quality_difference SET delta_low = -1")
    with open_database(path) as database:
        write_snapshot(database.engine, tmp_path / "snapshot")
    with open_database(few_database) as database, open_snapshot(str(tmp_path / "snapshot")) as opened:
        assert opened.rows(STORED)[1] == database.rows(STORED)[1] != []


@pytest.mark.parametrize("part", ["choosing", "confirming"])
def test_choosing_and_confirming_documents_have_separate_loss_bounds(mixed_database: Path, part: str) -> None:
    with open_database(mixed_database) as opened:
        rows = opened.query("FROM paired").to_pylist()
        keys = [row["doc_key"] for row in opened.query("SELECT DISTINCT doc_key FROM sample ORDER BY 1").to_pylist()]
        in_sql = opened.query("SELECT DISTINCT doc_key FROM sample WHERE is_choosing(doc_key) ORDER BY 1")
        for row in rows:
            moved = differences(opened, row)
            moved = moved[[is_choosing(key) == (part == "choosing") for key in keys]]
            low, high = reference(moved)
            assert row[f"{part}_loss_high_percent"] == pytest.approx(max(0, -100 * low / row["full_value"]), rel=0.03)
            if part == "confirming":
                assert (row["confirming_n"], row["confirming_delta"]) == (len(moved), pytest.approx(moved.mean()))
                assert row["confirming_delta_high"] == pytest.approx(high, rel=0.03, abs=0.1)
    assert in_sql["doc_key"].to_pylist() == [key for key in keys if is_choosing(key)]
    assert 0 < in_sql.num_rows < len(keys)


def test_bleu_difference_is_paired_by_per_document_contributions(example_database: Path, tmp_path: Path) -> None:
    from sacrebleu.metrics import BLEU

    path = tmp_path / "bleu.duckdb"
    shutil.copyfile(example_database, path)
    task, rng = get_task("wmt-en-fr"), random.Random(0)
    reference_text = "the cat sat on the mat and looked at the old dog"

    def statistics() -> list[float]:
        words = [word if rng.random() < 0.85 else "no" for word in reference_text.split()]
        return [float(x) for x in BLEU()._extract_corpus_statistics([" ".join(words)], [[reference_text]])[0]]

    with open_database(example_database) as database:
        rows = database.query(
            "SELECT p.attempt_id, r.full_depth_attempt_id AS full_id FROM paired AS p "
            "JOIN runs AS r USING (attempt_id) WHERE p.metric = 'bleu' AND p.model = 'world-t5' ORDER BY ALL"
        ).to_pylist()
        sums: dict[str, Floats] = {}
        with duckdb.connect(path) as connection:
            for attempt in {*(row["attempt_id"] for row in rows), rows[0]["full_id"]}:
                keys = [
                    k
                    for (k,) in connection.execute(
                        "SELECT doc_key FROM sample WHERE attempt_id = ? ORDER BY 1", [attempt]
                    ).fetchall()
                ]
                sums[attempt] = np.array([statistics() for _ in keys])
                for key, method_sums in zip(keys, sums[attempt], strict=True):
                    connection.execute(
                        "UPDATE sample SET statistics = ? WHERE attempt_id = ? AND doc_key = ?",
                        [json.dumps({"bleu": list(method_sums)}), attempt, key],
                    )
                value = float(task.aggregate("bleu", sums[attempt].sum(axis=0), np.array(len(keys))))
                connection.execute(
                    "UPDATE metric SET value = ? WHERE attempt_id = ? AND metric = 'bleu'", [value, attempt]
                )
    refill_differences(path)
    with open_database(path) as database:
        by_attempt = {row["attempt_id"]: row for row in database.query("FROM paired WHERE metric = 'bleu'").to_pylist()}
    aggregate = partial(task.aggregate, "bleu")
    for row in rows:
        paired_row = by_attempt[row["attempt_id"]]
        both = np.concatenate([sums[row["full_id"]], sums[row["attempt_id"]]], axis=1)
        moved = paired_row["delta"] + jackknife(
            both, lambda total, n: aggregate(total[..., 10:], n) - aggregate(total[..., :10], n)
        )
        # One document contributes at most what BLEU changes by if its n-grams all match instead of none.
        extremes = []
        for runs_sums in (sums[row["full_id"]], sums[row["attempt_id"]]):
            for i, document in enumerate(runs_sums):
                others = np.delete(runs_sums, i, axis=0).sum(axis=0)
                matches = (document[6:], 0 * document[6:])
                most, least = (
                    aggregate(others + np.concatenate([document[:2], match, document[6:]]), np.array(len(both)))
                    for match in matches
                )
                extremes.append(len(both) * abs(float(most) - float(least)))
        assert max(extremes) > 100
        assert paired_row["is_paired"]
        assert (paired_row["delta_low"], paired_row["delta_high"]) == pytest.approx(
            reference(moved, max(extremes)), rel=0.03, abs=0.5
        )


def test_metric_that_cannot_be_paired_combines_the_intervals_of_both_runs(
    example_database: Path, tmp_path: Path
) -> None:
    path = tmp_path / "whole.duckdb"
    shutil.copyfile(example_database, path)
    with duckdb.connect(path) as connection:
        connection.execute(
            "UPDATE metric SET value = 0.9 * value, ci_low = 0.8 * value, ci_high = value "
            "WHERE metric = 'rougeL' AND value > 1"
        )
    refill_differences(path)
    with open_database(path) as database:
        rows = database.query(
            "SELECT p.*, f.value, f.ci_low, m.value AS full_depth, m.ci_high AS full_high FROM paired AS p "
            "JOIN frontier AS f USING (attempt_id) "
            "JOIN metric_values AS m ON m.attempt_id = f.full_depth_attempt_id AND m.metric = p.metric "
            "WHERE p.metric = 'rougeL' AND abs(f.delta) > 1"
        ).to_pylist()
        recommended = {row["attempt_id"] for row in database.query("SELECT attempt_id FROM pareto").to_pylist()}
    assert rows
    for row in rows:
        assert not row["is_paired"]
        reach = np.hypot(row["value"] - row["ci_low"], row["full_high"] - row["full_depth"])
        assert row["delta_low"] == pytest.approx(row["delta"] - reach)
        # No part of the documents bounds the loss: it is unknown, not 0, and nothing is recommended for it.
        assert row["choosing_loss_high_percent"] is row["confirming_loss_high_percent"] is None
    assert not recommended & {row["attempt_id"] for row in rows}


@pytest.fixture(scope="module")
def made_up() -> list[dict[str, Any]]:
    """Return made-up runs of two settings, with ties in every column and some runs that cannot be recommended."""
    rng = random.Random(1)
    methods = ("a", "b", "static", *BASELINES)
    rows: list[dict[str, Any]] = []
    for number in range(400):
        speedup = rng.choice([None, *np.linspace(0.8, 3, 12).round(2).tolist()])
        # what is faster loses more, so that there are many steps, and often as much
        loss = rng.choice([None, *(max(0.0, 6 * (speedup or 1) - 5 + rng.randrange(4)) for _ in range(8))])
        rows.append(
            {
                "attempt_id": f"{number:04}",
                "cell_id": f"{rng.random():.6f}",
                "setting_id": rng.choice("xy"),
                "method": rng.choice(methods),
                "speedup": speedup,
                "confirming_low": rng.choice([None, (speedup or 1) - 0.2]),
                "confirming_high": (speedup or 1) * rng.choice([1, 1, 1, 20]),
                "aa_high": rng.choice([None, 0.9, 1.3, 2.5]),
                "random_weights": rng.random() < 0.1,
                "conforms": rng.choice([None, True, True, False]),
                "choosing_loss": loss,
                "confirming_loss": None if loss is None else max(0.0, loss + rng.choice([-1.0, 0.0, 2.0])),
                "delta": rng.choice([-1.0, 0.0]),
            }
        )
    return rows


def test_recommendation_is_fastest_on_choosing_and_confirmed_on_other_documents(
    made_up: list[dict[str, Any]],
) -> None:
    (pareto,) = (view.sql for view in described_views() if view.name == "pareto")
    database = duckdb.connect()
    database.execute(
        "CREATE TABLE given (attempt_id TEXT, cell_id TEXT, setting_id TEXT, method TEXT, speedup DOUBLE, "
        "confirming_low DOUBLE, confirming_high DOUBLE, aa_high DOUBLE, random_weights BOOLEAN, "
        "conforms BOOLEAN, choosing_loss DOUBLE, "
        "confirming_loss DOUBLE, delta DOUBLE)"
    )
    database.executemany(f"INSERT INTO given VALUES ({', '.join('?' * 13)})", [list(row.values()) for row in made_up])
    database.execute(
        "CREATE VIEW frontier AS SELECT *, attempt_id AS timing_attempt_id, speedup AS speedup_low, "
        "speedup AS speedup_high FROM given"
    )
    database.execute("CREATE VIEW cell AS SELECT cell_id, setting_id FROM given")
    database.execute(
        "CREATE VIEW metric AS SELECT attempt_id, 'speedup_choosing' AS metric, speedup AS value, NULL AS ci_low, "
        "NULL AS ci_high FROM given WHERE speedup IS NOT NULL UNION ALL "
        "SELECT attempt_id, 'speedup_confirming', speedup, confirming_low, confirming_high FROM given"
    )
    database.execute(
        "CREATE VIEW paired AS SELECT attempt_id, cell_id, method, 'f1' AS metric, NULL AS full_value, delta, "
        "choosing_loss AS choosing_loss_high_percent, confirming_loss AS confirming_loss_high_percent, "
        "0 AS gained, 0 AS lost, 0 AS n, NULL AS params FROM given"
    )
    database.execute("CREATE MACRO is_measurable(low, high) AS coalesce(high <= 10 * low, true)")
    database.execute(pareto)
    steps = database.sql("FROM pareto").fetchall()
    names = [column[0] for column in database.sql("FROM pareto LIMIT 0").description]
    rows = [dict(zip(names, step, strict=True)) for step in steps]
    by_cell = {row["cell_id"]: row for row in made_up}
    recommended = confirmed = 0
    for setting in "xy":
        for is_static in (False, True):
            for allowed in np.arange(0, 21, 0.25).tolist():
                candidates = [
                    row
                    for row in made_up
                    if row["setting_id"] == setting
                    and (row["method"] == "static") == is_static
                    and row["method"] not in BASELINES
                    and not row["random_weights"]
                    and row["conforms"] is not False
                    and row["speedup"] is not None
                    and row["speedup"] > 1
                    and row["choosing_loss"] is not None
                    and row["choosing_loss"] <= allowed
                ]
                best = min(
                    candidates,
                    key=lambda row: (-row["speedup"], row["choosing_loss"], -row["delta"], row["cell_id"]),
                    default=None,
                )
                confirmed_rows = [
                    row
                    for row in rows
                    if (row["setting_id"], row["is_static"]) == (setting, is_static)
                    and row["choosing_loss_high_percent"] <= allowed
                    and (row["next_percent"] is None or allowed < row["next_percent"])
                ]
                assert [row["cell_id"] for row in confirmed_rows] == ([best["cell_id"]] if best else [])
                recommended += best is not None
                for row in confirmed_rows:
                    method_row = by_cell[row["cell_id"]]
                    low, high = method_row["confirming_low"], method_row["confirming_high"]
                    is_measured = low is not None and high <= 10 * low
                    is_faster = is_measured and low > max(1, method_row["aa_high"] or 1)
                    assert (row["confirmed_percent"] is not None) == is_faster
                    if is_faster:
                        is_confirmed = row["confirmed_percent"] <= allowed
                        assert is_confirmed == (method_row["confirming_loss"] <= allowed)
                        confirmed += is_confirmed
    assert recommended > 100 and confirmed > 20 and len(rows) > 10


def test_loss_of_an_error_metric_is_its_increase(mixed_database: Path, tmp_path: Path) -> None:
    """An error that grows is a loss; otherwise, the setting with most errors would be recommended."""
    path = tmp_path / "errors.duckdb"
    shutil.copyfile(mixed_database, path)
    with duckdb.connect(path) as connection:
        connection.execute("UPDATE metric SET lower_is_better = true WHERE metric = 'rougeL'")
    with open_database(mixed_database) as database:
        scores = {row["attempt_id"]: row for row in database.query("FROM paired WHERE metric = 'rougeL'").to_pylist()}
    with open_database(path) as database:
        errors = database.query("FROM paired WHERE metric = 'rougeL'").to_pylist()
    assert errors
    for row in errors:
        score = scores[row["attempt_id"]]
        assert (row["delta"], row["delta_low"], row["delta_high"]) == (
            *(score["delta"], score["delta_low"], score["delta_high"]),
        )
        assert row["loss_high_percent"] == pytest.approx(max(0.0, 100 * row["delta_high"] / row["full_value"]))
        assert score["loss_high_percent"] == pytest.approx(max(0.0, -100 * score["delta_low"] / score["full_value"]))
        assert (row["gained"], row["lost"]) == (score["lost"], score["gained"])
