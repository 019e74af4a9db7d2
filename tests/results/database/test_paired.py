"""What a run loses to full depth, paired by document, and what to use for a loss allowed, beside slow references."""

import json
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from scipy.stats import t

from exitbench.results.database.connection import Database, open_database
from exitbench.results.database.schema_doc import described_views
from exitbench.results.statistics.intervals import Floats, jackknife
from exitbench.results.statistics.paired import difference_interval
from exitbench.tasks.registry import get_task

BASELINES = ("random", "oracle")


def reference(moved: Floats) -> tuple[float, float]:
    """The ends of the interval of the mean of `moved` [n], on a scale of 0..100, step by step."""
    n, shares = len(moved), moved / 100
    gains, losses = np.clip(shares, 0, None), np.clip(-shares, 0, None)
    (gain_low, gain_high), (loss_low, loss_high) = share_interval(gains), share_interval(losses)
    differing = np.count_nonzero(moved)
    typical = (gains.mean() + losses.mean()) * n / differing if differing else 1.0
    gain_high *= 1.0 if gains.any() else typical
    loss_high *= 1.0 if losses.any() else typical
    both = gains.any() and losses.any()
    correlation = float(np.corrcoef(gains, losses)[0, 1]) if both else 0.0

    def joined(first: float, second: float) -> float:
        return 100 * float(np.sqrt(first**2 + second**2 - 2 * correlation * first * second))

    gain, loss = gains.mean(), losses.mean()
    return moved.mean() - joined(gain - gain_low, loss_high - loss), moved.mean() + joined(
        gain_high - gain, loss - loss_low
    )


def share_interval(parts: Floats) -> tuple[float, float]:
    n, share = len(parts), float(parts.mean())
    error = float(parts.std(ddof=1)) / np.sqrt(n)
    if error < 1e-7:
        unseen = 1 - 0.025 ** (1 / n)
        return share * (1 - unseen), share + (1 - share) * unseen
    reach = t.ppf(0.975, n - 1) * error / (share * (1 - share))
    logit = np.log(share / (1 - share))
    return float(1 / (1 + np.exp(reach - logit))), float(1 / (1 + np.exp(-reach - logit)))


def differences(database: Database, row: dict[str, Any]) -> Floats:
    """What the documents of a run score more than with full depth, [n], in the order of their keys."""
    (full,) = database.query("SELECT full_depth_attempt_id AS id FROM runs WHERE attempt_id = ?", [row["attempt_id"]])[
        "id"
    ].to_pylist()
    own, other = (
        [
            json.loads(scores)[row["metric"]]
            for scores in database.query("SELECT scores FROM sample WHERE attempt_id = ? ORDER BY doc_key", [attempt])[
                "scores"
            ].to_pylist()
        ]
        for attempt in (row["attempt_id"], full)
    )
    return np.array(own) - np.array(other)


@pytest.fixture(scope="module")
def mixed_database(example_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, but for rougeL: of each run some documents gain and others lose."""
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
    return path


@pytest.mark.parametrize("database", ["example_database", "mixed_database"])
def test_a_difference_has_the_interval_of_its_documents_gains_and_losses(
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
            assert (row["delta_low"], row["delta_high"]) == pytest.approx(reference(moved), rel=5e-3, abs=0.01)
            loss = max(0.0, -100 * row["delta_low"] / row["full_value"])
            assert row["loss_high_percent"] == pytest.approx(loss)


def test_the_interval_is_about_the_one_that_comparisons_have() -> None:
    """Those take Korn and Graubard's for the shares, which SQL has not; what is promised is the lower end."""
    rng = np.random.default_rng(0)
    for n, differing in ((100, 1), (100, 5), (400, 0), (400, 3), (400, 60)):
        moved = np.zeros(n)
        moved[:differing] = rng.choice([-100.0, -50.0, 30.0], size=differing)
        low, theirs = reference(moved)[0], difference_interval(float(moved.mean()), moved).low
        assert theirs is not None and low <= moved.mean()
        assert moved.mean() - low == pytest.approx(moved.mean() - theirs, rel=0.35)


@pytest.mark.parametrize(("n", "losing", "gaining", "by"), [(60, 0.02, 0.0, 100.0), (200, 0.1, 0.05, 50.0)])
def test_no_more_is_lost_than_the_interval_says(n: int, losing: float, gaining: float, by: float) -> None:
    """Of 40 lower ends one may lie above the truth; what is lost by few documents is what early exit loses."""
    rng, truth = np.random.default_rng(0), by * (gaining - losing)
    drawn = rng.choice([-by, by, 0.0], size=(300, n), p=[losing, gaining, 1 - losing - gaining])
    assert sum(reference(moved)[0] <= truth for moved in drawn) >= 0.965 * len(drawn)


def test_bleu_is_paired_by_what_each_document_moves(example_database: Path, tmp_path: Path) -> None:
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
                for key, own in zip(keys, sums[attempt], strict=True):
                    connection.execute(
                        "UPDATE sample SET statistics = ? WHERE attempt_id = ? AND doc_key = ?",
                        [json.dumps({"bleu": list(own)}), attempt, key],
                    )
                value = float(task.aggregate("bleu", sums[attempt].sum(axis=0), np.array(len(keys))))
                connection.execute(
                    "UPDATE metric SET value = ? WHERE attempt_id = ? AND metric = 'bleu'", [value, attempt]
                )
    with open_database(path) as database:
        found = {row["attempt_id"]: row for row in database.query("FROM paired WHERE metric = 'bleu'").to_pylist()}
    aggregate = partial(task.aggregate, "bleu")
    for row in rows:
        own = found[row["attempt_id"]]
        both = np.concatenate([sums[row["full_id"]], sums[row["attempt_id"]]], axis=1)
        moved = own["delta"] + jackknife(
            both, lambda total, n: aggregate(total[..., 10:], n) - aggregate(total[..., :10], n)
        )
        assert own["is_paired"]
        assert (own["delta_low"], own["delta_high"]) == pytest.approx(reference(moved), rel=5e-3, abs=0.01)


def test_a_metric_of_the_whole_text_has_the_intervals_of_both_runs_joined(
    example_database: Path, tmp_path: Path
) -> None:
    path = tmp_path / "whole.duckdb"
    shutil.copyfile(example_database, path)
    with duckdb.connect(path) as connection:
        connection.execute(
            "UPDATE metric SET value = 0.9 * value, ci_low = 0.8 * value, ci_high = value "
            "WHERE metric = 'rougeL' AND value > 1"
        )
    with open_database(path) as database:
        rows = database.query(
            "SELECT p.*, f.value, f.ci_low, m.value AS full_depth, m.ci_high AS full_high FROM paired AS p "
            "JOIN frontier AS f USING (attempt_id) JOIN runs AS r USING (attempt_id) "
            "JOIN metric_values AS m ON m.attempt_id = r.full_depth_attempt_id AND m.metric = p.metric "
            "WHERE p.metric = 'rougeL' AND abs(f.delta) > 1"
        ).to_pylist()
    assert rows
    for row in rows:
        assert not row["is_paired"]
        reach = np.hypot(row["value"] - row["ci_low"], row["full_high"] - row["full_depth"])
        assert row["delta_low"] == pytest.approx(row["delta"] - reach)


@pytest.fixture(scope="module")
def made_up() -> list[dict[str, Any]]:
    """Runs of two settings, with ties in everything and all that is no candidate."""
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
                "speedup_low": None if speedup is None else speedup - 0.1,
                "speedup_high": None if speedup is None else speedup + 0.1,
                "aa_high": rng.choice([None, 0.9, 1.3, 2.5]),
                "random_weights": rng.random() < 0.1,
                "conforms": rng.choice([None, True, True, False]),
                "loss_high_percent": loss,
                "delta": rng.choice([-1.0, 0.0]),
            }
        )
    return rows


def test_what_to_use_is_the_fastest_run_whose_loss_is_shown_to_be_allowed(made_up: list[dict[str, Any]]) -> None:
    (pareto,) = (view.sql for view in described_views() if view.name == "pareto")
    database = duckdb.connect()
    database.execute(
        "CREATE TABLE given (attempt_id TEXT, cell_id TEXT, setting_id TEXT, method TEXT, speedup DOUBLE, "
        "speedup_low DOUBLE, speedup_high DOUBLE, aa_high DOUBLE, random_weights BOOLEAN, conforms BOOLEAN, "
        "loss_high_percent DOUBLE, delta DOUBLE)"
    )
    database.executemany(f"INSERT INTO given VALUES ({', '.join('?' * 12)})", [list(row.values()) for row in made_up])
    database.execute("CREATE VIEW frontier AS FROM given")
    database.execute("CREATE VIEW cell AS SELECT cell_id, setting_id FROM given")
    database.execute(
        "CREATE VIEW paired AS SELECT attempt_id, cell_id, method, 'f1' AS metric, NULL AS full_value, delta, "
        "delta AS delta_low, delta AS delta_high, true AS is_paired, loss_high_percent, 0 AS gained, 0 AS lost, "
        "0 AS n, NULL AS params FROM given"
    )
    database.execute(pareto)
    steps = database.sql("FROM pareto").fetchall()
    names = [column[0] for column in database.sql("FROM pareto LIMIT 0").description]
    rows = [dict(zip(names, step, strict=True)) for step in steps]
    told = 0
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
                    and row["speedup_low"] > max(1, row["aa_high"] or 1)
                    and row["loss_high_percent"] is not None
                    and row["loss_high_percent"] <= allowed
                ]
                best = min(
                    candidates,
                    key=lambda row: (-row["speedup"], row["loss_high_percent"], -row["delta"], row["cell_id"]),
                    default=None,
                )
                found = [
                    row
                    for row in rows
                    if (row["setting_id"], row["is_static"]) == (setting, is_static)
                    and row["loss_high_percent"] <= allowed
                    and (row["next_percent"] is None or allowed < row["next_percent"])
                ]
                assert [row["cell_id"] for row in found] == ([best["cell_id"]] if best else [])
                told += best is not None
    assert told > 100 and len(rows) > 20
