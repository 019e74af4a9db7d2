"""Views of the example: the tests compute each number from the files of the spool."""

import json
import math
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from stored_rows import query_rows

from exitbench.results.database.connection import Database, open_database
from exitbench.results.spool.attempts import AttemptRecord, read_attempt, scan_spool
from exitbench.results.spool.schema import TABLES

Json = dict[str, Any]


@pytest.fixture(scope="module")
def database(example_database: Path) -> Iterator[Database]:
    with open_database(example_database) as opened:
        yield opened


@pytest.fixture(scope="module")
def records(example_spool: Path) -> list[AttemptRecord]:
    """Every attempt in the example's spool."""
    return [read_attempt(attempt.path) for attempt in scan_spool(example_spool)]


def _rows(record: AttemptRecord, table: str) -> list[Json]:
    rows: list[Json] = pa.concat_tables(record.batches(table)).to_pylist()
    return rows


def _ok(records: list[AttemptRecord], kind: str) -> list[AttemptRecord]:
    return [record for record in records if record.cell["kind"] == kind and record.status["status"] == "ok"]


def _query(database: Database, sql: str, **parameters: Any) -> list[Json]:
    return query_rows(database, sql, parameters)


def test_runs_are_the_latest_successes(database: Database, records: list[AttemptRecord]) -> None:
    succeeded = {r.attempt.attempt_id: r for r in records if r.status["status"] == "ok"}
    rows = _query(database, "FROM runs")
    assert {row["attempt_id"] for row in rows} == set(succeeded)
    for row in rows:
        cell = succeeded[row["attempt_id"]].cell
        assert (row["kind"], row["model"], row["blocks"]) == (
            cell["kind"],
            cell["model"]["name"],
            cell["model"]["blocks"],
        )
        assert json.loads(row["params"]) == cell["method"]["params"]
        assert (row["commit"], row["dirty"], row["seconds"]) == ("0123456789abcdef0123456789abcdef01234567", False, 1)


def test_a_cell_that_failed_after_it_succeeded_is_a_run_and_a_failure(database: Database) -> None:
    rows = _query(database, "SELECT cell_id, status, reason, log_tail FROM failures ORDER BY attempt_id")
    assert [(row["status"], row["log_tail"]) for row in rows] == [("oom", "loading\nallocating"), ("failed", None)]
    (repeated,) = _query(database, "SELECT kind FROM runs WHERE cell_id = $cell", cell=rows[1]["cell_id"])
    assert repeated == {"kind": "quality"}
    assert not _query(database, "FROM runs WHERE cell_id = $cell", cell=rows[0]["cell_id"])


def test_metric_values_equal_the_written_rows(database: Database, records: list[AttemptRecord]) -> None:
    columns = ("metric", "value", "ci_low", "ci_high", "ci_method", "n")
    written = {
        (record.attempt.attempt_id, *(row[name] for name in columns))
        for record in records
        if "metrics" in record.tables
        for row in _rows(record, "metrics")
    }
    result = _query(database, "FROM metric_values")
    assert {(row["attempt_id"], *(row[name] for name in columns)) for row in result} == written


def test_frontier_has_one_row_for_each_quality_and_replay_run(database: Database, records: list[AttemptRecord]) -> None:
    expected = [record.attempt.attempt_id for kind in ("quality", "replay") for record in _ok(records, kind)]
    rows = _query(database, "SELECT attempt_id FROM frontier")
    assert sorted(row["attempt_id"] for row in rows) == sorted(expected)


def test_frontier_joins_quality_with_the_timing_of_the_same_work(
    database: Database, records: list[AttemptRecord]
) -> None:
    def work(record: AttemptRecord) -> str:
        cell = record.cell
        return json.dumps([cell["model"]["name"], cell["task"]["name"], cell["method"]], sort_keys=True)

    timed = {work(r): {row["metric"]: row for row in _rows(r, "metrics")} for r in _ok(records, "timing")}
    by_attempt = {row["attempt_id"]: row for row in _query(database, "FROM frontier")}
    full = {r.cell["cell_id"]: _rows(r, "metrics")[0] for r in _ok(records, "quality")}
    compared = 0
    for record in _ok(records, "quality"):
        row, metrics = by_attempt[record.attempt.attempt_id], _rows(record, "metrics")
        assert (row["metric"], row["value"], row["ci_low"]) == tuple(
            metrics[0][k] for k in ("metric", "value", "ci_low")
        )
        if record.cell["full_depth_cell_id"] is None:
            assert row["is_full_depth"]
            assert (row["speedup"], row["speedup_low"], row["speedup_high"], row["delta"]) == (1, 1, 1, 0)
            continue
        speed = timed[work(record)]
        assert row["speedup"] == speed["speedup"]["value"]
        assert (row["speedup_low"], row["speedup_high"]) == (speed["speedup"]["ci_low"], speed["speedup"]["ci_high"])
        assert (row["aa_low"], row["aa_high"]) == (speed["aa_speedup"]["ci_low"], speed["aa_speedup"]["ci_high"])
        assert row["realised_fraction"] == pytest.approx(speed["realised_fraction"]["value"])
        assert row["full_value"] == full[record.cell["full_depth_cell_id"]]["value"]
        assert row["delta"] == row["value"] - row["full_value"]
        compared += 1
    assert compared == 36


def test_frontier_gives_a_replay_agreement_and_no_quality_or_speed(database: Database) -> None:
    rows = _query(database, "FROM frontier WHERE execution = 'simulated'")
    assert len(rows) == 18
    for row in rows:
        assert (row["value"], row["delta"], row["speedup"], row["aa_low"], row["realised_fraction"]) == (None,) * 5
        assert 0 < row["token_match"] <= 1 <= row["mean_exit_layer"] <= row["blocks"]
        assert row["metric"] in ("f1", "rougeL", "bleu")


def test_token_trace_has_every_token_of_every_run(database: Database, records: list[AttemptRecord]) -> None:
    expected = Counter(
        {r.attempt.attempt_id: len(_rows(r, "tokens")) for kind in ("quality", "replay") for r in _ok(records, kind)}
    )
    rows = _query(database, "SELECT attempt_id, count(*) AS n FROM token_trace GROUP BY ALL")
    assert {row["attempt_id"]: row["n"] for row in rows} == expected


def test_layer_trace_has_one_row_per_token_and_block_of_the_probe(
    database: Database, records: list[AttemptRecord]
) -> None:
    record = _ok(records, "probe")[0]
    lists = [field.name for field in TABLES["probe"] if pa.types.is_list(field.type) and not field.nullable]
    expected = sorted(
        (row["doc_key"], row["position"], block + 1, *(row[name][block] for name in lists))
        for row in _rows(record, "probe")
        for block in range(record.cell["model"]["blocks"])
    )
    rows = _query(database, "FROM layer_trace WHERE attempt_id = $id", id=record.attempt.attempt_id)
    assert sorted((row["doc_key"], row["position"], row["block"], *(row[n] for n in lists)) for row in rows) == expected
    assert _query(
        database, "SELECT count(*) AS n FROM probe_trace WHERE attempt_id = $id", id=record.attempt.attempt_id
    ) == [{"n": len(_rows(record, "probe"))}]


def test_exit_histogram_counts_tokens_and_shares_sum_to_one(database: Database, records: list[AttemptRecord]) -> None:
    shares: dict[str, float] = defaultdict(float)
    exits: dict[str, dict[int, int]] = defaultdict(dict)
    for row in _query(database, "FROM exit_histogram"):
        shares[row["attempt_id"]] += row["share"]
        exits[row["attempt_id"]][row["exit_layer"]] = row["tokens"]
    assert list(shares.values()) == pytest.approx([1] * len(shares))
    for record in (*_ok(records, "quality"), *_ok(records, "replay")):
        assert exits[record.attempt.attempt_id] == Counter(row["exit_layer"] for row in _rows(record, "tokens"))


def test_plain_probes_flags_the_latest_probe_per_full_depth_and_the_largest(example: Any, tmp_path: Path) -> None:
    model, task = example.MODELS[0], example.TASKS[0]

    def write(documents: int, full_id: str, record: bool = False) -> str:
        cell = example.cell_json(
            model, task, example.FULL, "probe", full_id, source=f"{documents}, {full_id}, {record}"
        )
        cell["identity"] |= {"record": ["sublayers"]} if record else {}
        cell["task"] |= {"documents": documents, "data_sha256": str(documents) * 64}
        return str(example.write_attempt(tmp_path / "spool", cell, {}))

    largest, earlier, latest = write(9, "a" * 64), write(8, "b" * 64), write(7, "b" * 64)
    write(9, "b" * 64, record=True)
    with open_database(example.ingested(tmp_path)) as opened:
        rows = _query(opened, "FROM plain_probes")
    assert {row["attempt_id"] for row in rows} == {largest, earlier, latest}
    assert {row["attempt_id"] for row in rows if row["is_largest"]} == {largest}
    assert {row["attempt_id"] for row in rows if row["is_latest"]} == {largest, latest}


def test_exit_by_kind_of_a_probe_is_where_its_tokens_settle(database: Database, records: list[AttemptRecord]) -> None:
    record = _ok(records, "probe")[0]
    by_kind: dict[str, list[Json]] = defaultdict(list)
    for row in _rows(record, "probe"):
        by_kind[row["token_kind"]].append(row)
    result = _query(database, "FROM exit_by_kind WHERE attempt_id = $id", id=record.attempt.attempt_id)
    assert {row["token_kind"] for row in result} == set(by_kind)
    for row in result:
        tokens = by_kind[row["token_kind"]]
        assert row["n"] == len(tokens)
        assert row["mean_first_match"] == pytest.approx(sum(t["first_match"] for t in tokens) / len(tokens))
        assert row["mean_stable_from"] == pytest.approx(sum(t["stable_from"] for t in tokens) / len(tokens))
        assert (row["share_equal_full"], row["mean_exit_layer"]) == (1, None)


def test_exit_by_kind_of_a_run_compares_with_full_depths_tokens(
    database: Database, records: list[AttemptRecord]
) -> None:
    full = {
        r.cell["cell_id"]: _rows(r, "tokens") for r in _ok(records, "quality") if r.cell["full_depth_cell_id"] is None
    }
    record = next(r for r in _ok(records, "quality") if r.cell["method"]["name"] == "static")
    reference = {(t["doc_key"], t["position"]): t["token_id"] for t in full[record.cell["full_depth_cell_id"]]}
    hop = [t for t in _rows(record, "tokens") if t["token_kind"] == "hop1"]
    equal = sum(reference[t["doc_key"], t["position"]] == t["token_id"] for t in hop)
    (row,) = _query(
        database, "FROM exit_by_kind WHERE attempt_id = $id AND token_kind = 'hop1'", id=record.attempt.attempt_id
    )
    assert 0 < equal < len(hop)
    assert (row["n"], row["share_equal_full"], row["mean_exit_layer"]) == (len(hop), equal / len(hop), 2)
    assert (row["mean_first_match"], row["mean_stable_from"]) == (None, None)
    halves = ("first_match_half", "stable_from_half", "exit_layer_half")
    assert [row[half] for half in halves] == [None] * 3, "every exit is after block 2"
    assert 0 < row["equal_full_half"] < 1


def _metric_row(metric: str, value: float) -> Json:
    row = {"metric": metric, "metric_version": "1", "value": value, "ci_low": value, "ci_high": value, "n": 8}
    return row | ({"role": "speed"} if metric == "speedup" else {"role": "headline", "lower_is_better": False})


def test_frontier_takes_all_speeds_of_a_setting_from_the_machine_timed_last(
    example: Any, env: Json, tmp_path: Path
) -> None:
    model, task, full = example.MODELS[0], example.TASKS[0], example.FULL
    shallow, deep = (example.Method("static", {"exit_layer": layer}) for layer in (1, 2))
    laptop, server = ({**env, "hardware": {**env["hardware"], "cpu": name}} for name in ("laptop", "server"))
    reference = example.cell_json(model, task, full, "quality")["cell_id"]

    def write(method: Any, kind: str, used: Json, metric: str, value: float) -> None:
        cell = example.cell_json(model, task, method, kind, None if method is full else reference)
        example.write_attempt(tmp_path / "spool", cell, {"metrics": [_metric_row(metric, value)]}, env=used)

    for method in (full, shallow, deep):
        write(method, "quality", laptop, "f1", 50.0)
    write(shallow, "timing", laptop, "speedup", 3.0)
    write(deep, "timing", server, "speedup", 1.5)
    write(shallow, "timing", server, "speedup", 4.0)
    example.ingested(tmp_path)
    write(deep, "timing", laptop, "speedup", 2.0)
    write(shallow, "timing", server, "speedup", 5.0)
    with open_database(example.ingested(tmp_path)) as opened:
        rows = _query(opened, "SELECT params, speedup, timing_cpu FROM frontier ORDER BY params")
    assert rows == [
        {"params": '{"exit_layer":1}', "speedup": 5.0, "timing_cpu": "server"},
        {"params": '{"exit_layer":2}', "speedup": 1.5, "timing_cpu": "server"},
        {"params": "{}", "speedup": 1.0, "timing_cpu": None},
    ]


def test_frontier_keeps_the_newest_run_across_source_and_dependency_versions(example: Any, tmp_path: Path) -> None:
    model, task, full = example.MODELS[0], example.TASKS[0], example.FULL
    gated, other = (example.Method("gated", {"threshold": threshold}) for threshold in (0.5, 0.6))
    reference = example.cell_json(model, task, full, "quality")["cell_id"]

    def write(method: Any, kind: str, value: float, status: str = "ok", **changes: Any) -> str:
        cell = example.cell_json(model, task, method, kind, None if method is full else reference, **changes)
        metrics = [_metric_row("speedup" if kind == "timing" else "f1", value)]
        return str(example.write_attempt(tmp_path / "spool", cell, {"metrics": metrics}, status=status))

    def retained_quality() -> dict[str, float | None]:
        with open_database(example.ingested(tmp_path)) as opened:
            rows = _query(opened, "SELECT attempt_id, speedup FROM frontier")
        assert len({row["attempt_id"] for row in rows}) == len(rows)
        return {row["attempt_id"]: row["speedup"] for row in rows}

    always = {
        write(full, "quality", 50.0): 1.0,
        write(other, "quality", 50.0): None,
        write(replace(gated, kv_policy="exact"), "quality", 50.0): None,
        write(gated, "replay", 50.0, depends_on=("probe",), source="other kind"): None,
    }
    first = write(gated, "quality", 40.0, source="1", fit_id="a")
    write(gated, "timing", 2.0, source="1", fit_id="a")
    assert retained_quality() == {**always, first: 2.0}
    second = write(gated, "quality", 41.0, source="2", fit_id="a")
    assert retained_quality() == {**always, second: None}, "the speed is that of the older source"
    refitted = write(gated, "quality", 42.0, source="2", fit_id="b")
    write(gated, "timing", 3.0, source="2", fit_id="b")
    write(gated, "timing", 4.0, source="2", fit_id="a")
    write(gated, "quality", 43.0, "failed", source="3", fit_id="b")
    assert retained_quality() == {**always, refitted: 3.0}
    repeated = write(gated, "quality", 40.0, source="1", fit_id="a")
    assert retained_quality() == {**always, repeated: 2.0}
    replayed = write(gated, "replay", 50.0, depends_on=("another probe",))
    assert set(retained_quality()) == {*list(always)[:-1], repeated, replayed}


def test_failure_is_resolved_by_a_later_success_with_another_source_version(example: Any, tmp_path: Path) -> None:
    gated, other = (example.Method("gated", {"threshold": threshold}) for threshold in (0.5, 0.6))

    def write(method: Any, status: str, source: str) -> None:
        cell = example.cell_json(example.MODELS[0], example.TASKS[0], method, "quality", source=source)
        example.write_attempt(tmp_path / "spool", cell, {}, status=status)

    def failed() -> list[str]:
        with open_database(example.ingested(tmp_path)) as opened:
            rows = _query(opened, "SELECT params FROM failures ORDER BY params")
        return [row["params"] for row in rows]

    write(gated, "failed", "1")
    write(other, "failed", "1")
    assert failed() == ['{"threshold":0.5}', '{"threshold":0.6}']
    write(gated, "ok", "2")
    assert failed() == ['{"threshold":0.6}']
    write(gated, "failed", "3")
    assert failed() == ['{"threshold":0.5}', '{"threshold":0.6}']


def test_token_trace_has_the_head_rows_of_real_tokens_only(database: Database) -> None:
    rows = _query(database, "SELECT DISTINCT execution, method, head_rows, exit_layer FROM token_trace")
    for row in rows:
        n_evaluated = row["exit_layer"] if row["method"] == "calm-softmax" else 1
        assert row["head_rows"] == (100 * n_evaluated if row["execution"] == "real" else None)


def test_score_trace_equals_the_written_scores(database: Database, records: list[AttemptRecord]) -> None:
    written = _ok(records, "scores")
    assert len(written) == 6
    for record in written:
        rows = _query(
            database,
            "SELECT doc_key, position, score, emitted_id FROM score_trace WHERE attempt_id = $id ORDER BY ALL",
            id=record.attempt.attempt_id,
        )
        written_rows = sorted(_rows(record, "scores"), key=lambda row: (row["doc_key"], row["position"]))
        expected = [{name: row[name] for name in rows[0]} for row in written_rows]
        assert str(rows) == str(expected)  # as text: NaN equals nothing
        assert all(math.isnan(row["score"][-1]) and row["emitted_id"][-1] == -1 for row in rows)


def test_fit_curves_equal_the_written_rows(database: Database, records: list[AttemptRecord]) -> None:
    for record in _ok(records, "fit"):
        rows = _query(
            database,
            "SELECT epoch, train_loss, held_out_loss, held_out_accuracy FROM fit_curves WHERE attempt_id = $id "
            "ORDER BY epoch",
            id=record.attempt.attempt_id,
        )
        assert rows == _rows(record, "fit_curve")
        assert len(rows) == 3


def test_calibrations_choose_the_last_level_that_passed(database: Database, records: list[AttemptRecord]) -> None:
    for record in _ok(records, "calibration"):
        rows = _query(database, "FROM calibrations WHERE attempt_id = $id ORDER BY step", id=record.attempt.attempt_id)
        steps = _rows(record, "calibration")
        assert [{name: row[name] for name in steps[0]} for row in rows] == steps
        settings = record.cell["identity"]["calibration"]
        assert {tuple(row[name] for name in ("rule", "consistency", "delta", "epsilon")) for row in rows} == {
            tuple(settings[name] for name in ("rule", "consistency", "delta", "epsilon"))
        }
        (metric,) = [row["value"] for row in _rows(record, "metrics") if row["metric"] == "threshold"]
        assert [row["threshold"] for row in rows if row["chosen"]] == [metric]


def test_a_calibration_whose_first_level_failed_chooses_none(example: Any, tmp_path: Path) -> None:
    cell = example.cell_json(example.MODELS[0], example.TASKS[0], example.CALM[0], "calibration")
    step = {"step": 1, "threshold": 0.9, "mean_loss": 0.5, "passed": False, "mean_exit_layer": 5.0, "n": 8}
    example.write_attempt(tmp_path / "spool", cell, {"calibration": [step]})
    with open_database(example.ingested(tmp_path)) as opened:
        assert _query(opened, "SELECT p_value, chosen FROM calibrations") == [{"p_value": None, "chosen": False}]


def test_scores_fit_and_calibration_cells_do_not_appear_in_token_and_quality_views(database: Database) -> None:
    prepared = "SELECT attempt_id FROM runs WHERE kind IN ('scores', 'fit', 'calibration')"
    assert len(_query(database, prepared)) == 18
    for view in (
        "frontier",
        "token_trace",
        "exit_histogram",
        "exit_by_kind",
        "probe_trace",
        "layer_trace",
    ):
        assert not _query(database, f"FROM {view} WHERE attempt_id IN ({prepared})"), view
    assert {row["kind"] for row in _query(database, "SELECT DISTINCT kind FROM exit_by_kind")} == {
        "probe",
        "quality",
        "replay",
    }
    # They are not full depth, and nothing is compared with them.
    rows = _query(
        database,
        f"SELECT DISTINCT is_full_depth, full_depth_cell_id, full_depth_attempt_id FROM ({prepared}) "
        "JOIN runs USING (attempt_id)",
    )
    assert [tuple(row.values()) for row in rows] == [(False, None, None)]


def test_frontier_compares_values_of_one_version_of_a_metric(example_database: Path, tmp_path: Path) -> None:
    path = tmp_path / "rescored.duckdb"
    shutil.copyfile(example_database, path)
    with open_database(path) as database:
        before = {row["attempt_id"]: row for row in _query(database, "FROM frontier WHERE value IS NOT NULL")}
    (fitted, full) = next(
        (row["attempt_id"], r["full_depth_attempt_id"])
        for row in before.values()
        if not row["is_full_depth"]
        for r in [_run(path, row["attempt_id"])]
    )
    later = """
        INSERT INTO metric BY NAME SELECT * REPLACE ('later' AS metric_version, value * 2 AS value,
            scored_at + INTERVAL 1 DAY AS scored_at) FROM metric WHERE attempt_id = ? AND metric = ?"""
    for rescored, delta in ((fitted, None), (full, 2 * before[fitted]["delta"])):
        with duckdb.connect(path) as connection:
            connection.execute(later, [rescored, before[fitted]["metric"]])
        with open_database(path) as database:
            (row,) = _query(database, "FROM frontier WHERE attempt_id = $id", id=fitted)
        assert row["value"] == 2 * before[fitted]["value"]
        assert row["delta"] == (delta if delta is None else pytest.approx(delta))


def _run(path: Path, attempt_id: str) -> Json:
    with open_database(path) as database:
        (row,) = _query(database, "FROM runs WHERE attempt_id = $id", id=attempt_id)
    return row


def test_probe_by_document_sums_probe_values_per_document(database: Database, records: list[AttemptRecord]) -> None:
    rows = _query(database, "FROM probe_by_document")
    expected = {
        (record.attempt.attempt_id, key, block): [token for token in _rows(record, "probe") if token["doc_key"] == key]
        for record in _ok(records, "probe")
        for key in {token["doc_key"] for token in _rows(record, "probe")}
        for block in range(1, record.cell["model"]["blocks"] + 1)
    }
    assert {(row["attempt_id"], row["doc_key"], row["block"]) for row in rows} == set(expected)
    assert len(rows) == len(expected)
    for row in rows:
        block, tokens = row["block"], expected[row["attempt_id"], row["doc_key"], row["block"]]
        assert row["n"] == len(tokens)
        assert row["first_matches"] == sum(token["first_match"] == block for token in tokens)
        assert row["settled"] == sum(token["stable_from"] <= block for token in tokens)
        assert row["monotone"] == sum(token["monotone_from"] <= block for token in tokens)
        assert row["nearly_monotone"] == sum(token["nearly_monotone_from"] <= block for token in tokens)
        assert row["tolerance"] == 0.01
        assert row["equal_full"] == sum(token["top1_id"][block - 1] == token["full_token_id"] for token in tokens)
        for name in ("p1", "p_final", "entropy", "cosine_previous", "cosine_last", "jsd_last"):
            assert row[name] == pytest.approx(sum(token[name][block - 1] for token in tokens))
        assert row["gap"] == pytest.approx(sum(token["p1"][block - 1] - token["p2"][block - 1] for token in tokens))
        assert row["p_final_squared"] == pytest.approx(sum(token["p_final"][block - 1] ** 2 for token in tokens))


def test_half_width_agrees_with_a_bootstrap_over_documents(database: Database) -> None:
    rng = np.random.default_rng(0)
    c = rng.integers(1, 40, 300)
    s = rng.binomial(c, rng.beta(2, 2, 300)).astype(float)
    values = ", ".join(f"({a}, {b})" for a, b in zip(s, c, strict=True))
    (row,) = _query(database, f"SELECT half_width(s, c) AS half FROM (VALUES {values}) AS document (s, c)")
    weights = rng.multinomial(300, np.full(300, 1 / 300), size=4000)
    low, high = np.quantile((weights @ s) / (weights @ c), [0.025, 0.975])
    assert row["half"] == pytest.approx((high - low) / 2, rel=0.05)
    (single,) = _query(database, "SELECT half_width(1.0, 2) AS half FROM (VALUES (1))")
    assert single["half"] is None


@pytest.mark.parametrize(("documents", "least"), [(5, 0.95), (16, 0.95), (40, 0.9)])
def test_half_width_covers_shares_near_1(database: Database, documents: int, least: float) -> None:
    """Check that the interval holds the true share, 0.98, in at least `least` of 1,000 samples.

    In most documents all tokens agree; in three of four samples of five documents, this holds for all of them.
    """
    rng, trials = np.random.default_rng(documents), 1000
    c = rng.integers(2, 30, (trials, documents))
    s = rng.binomial(c, rng.beta(9.8, 0.2, (trials, documents)))
    rows = _query(
        database,
        """
        SELECT sum(s) / sum(c) AS share, half_width(s, c) AS half
        FROM (SELECT unnest($s) AS s, unnest($c) AS c, unnest($trials) AS trial) GROUP BY trial
        """,
        s=s.ravel().astype(float).tolist(),
        c=c.ravel().tolist(),
        trials=np.repeat(np.arange(trials), documents).tolist(),
    )
    assert all(row["half"] > 0 for row in rows)
    assert np.mean([abs(row["share"] - 0.98) <= row["half"] for row in rows]) >= least


@pytest.mark.parametrize(
    ("value", "full_value", "lower_is_better", "share"),
    [(49, 50, False, 0.98), (51, 50, True, 0.98), (-5, 10, False, -0.5), (2, 0, False, None), (-8, -2, False, None)],
)
def test_share_of_quality_is_defined_for_positive_values_of_full_depth_only(
    database: Database, value: float, full_value: float, lower_is_better: bool, share: float | None
) -> None:
    (row,) = _query(database, f"SELECT share_kept({value}, {full_value}, {lower_is_better}) AS share")
    assert row["share"] == (share if share is None else pytest.approx(share))


def test_half_width_of_equal_documents_is_the_exact_bound_or_null(database: Database) -> None:
    (row,) = _query(
        database,
        """
        SELECT half_width(s, s) AS all_right, half_width(0, s) AS none, half_width(3 * s, s) AS no_share,
            mean_half_width(2.0) AS equal
        FROM (VALUES (3), (5), (9)) AS document (s)
        """,
    )
    unseen = pytest.approx(1 - 0.025 ** (1 / 3))
    assert (row["all_right"], row["none"], row["no_share"], row["equal"]) == (unseen, unseen, None, None)


@pytest.mark.parametrize(("documents", "t"), [(2, 12.706), (5, 2.776), (11, 2.228), (12, 2.201), (31, 2.042)])
def test_half_width_of_few_documents_equals_students_t(database: Database, documents: int, t: float) -> None:
    """For equally long documents the ratio is a mean, and Student's t is exact: 95 % of the intervals contain the
    truth.
    """
    trials, tokens = 1000, 10
    sums = np.random.default_rng(documents).normal(4 * tokens, tokens, (trials, documents))
    rows = _query(
        database,
        """
        SELECT half_width(s, 10) AS half, mean_half_width(s / 10) AS of_mean
        FROM (SELECT unnest($sums) AS s, unnest($trials) AS trial) GROUP BY trial ORDER BY trial
        """,
        sums=sums.ravel().tolist(),
        trials=np.repeat(np.arange(trials), documents).tolist(),
    )
    halves = np.array([row["half"] for row in rows])
    errors = sums.std(axis=1, ddof=1) / tokens / documents**0.5
    assert halves / errors == pytest.approx(np.full(trials, t), rel=0.002)
    assert [row["of_mean"] for row in rows] == pytest.approx(halves)
    assert np.mean(np.abs(sums.mean(axis=1) / tokens - 4) <= halves) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        # One setting shows what is switched on where that is little, else its threshold alone.
        ([{"exit_layer": 2, "kv_policy": "exact", "rollback": 0.0}], ["exit_layer=2"]),
        ([{"a": 1, "b": 2, "threshold": 0.5}], ["threshold=0.5"]),
        ([{"a": 1, "b": 2, "c": 3}], ["usual"]),
        ([{}], ["usual"]),
        # Of several, what most have goes without saying; where there is no majority all are told.
        ([{"t": 2.0, "b": 1}, {"t": 2.0, "b": 2}, {"t": 4.5, "b": 3}], ["b=1", "b=2", "b=3, t=4.5"]),
        # A threshold that the rule ignores is none of them.
        (
            [{"rule": "x", "threshold": 0.3}, {"rule": "x", "threshold": 0.4}, {"rule": "epsilon", "threshold": 0.3}],
            ["threshold=0.3", "threshold=0.4", "rule=epsilon"],
        ),
        # No label is empty.
        ([{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 1}], ["usual", "b=2", "a=2"]),
        # No label is shared: those that would be say in what they differ from each other.
        (
            [{"kv_policy": "exact", "threshold": 0.9}, {"kv_policy": "copy", "threshold": 0.9}, {"threshold": 0.5}],
            ["threshold=0.9, kv_policy=exact", "threshold=0.9, kv_policy=copy", "threshold=0.5"],
        ),
        ([{"rule": "x", "kv_policy": "copy"}, {"rule": "x"}], ["kv_policy=copy", "usual"]),
        ([{"rule": "x", "a": None}, {"rule": "x"}], ["a=null", "usual"]),
        ([{"threshold": 1}, {"threshold": 1.0}], ["threshold=1, threshold=1", "threshold=1, threshold=1.0"]),
    ],
)
def test_label_contains_the_parameters_that_distinguish_a_setting(
    settings: list[Json], labels: list[str], tmp_path: Path
) -> None:
    with open_database(tmp_path / "exitbench.duckdb", read_only=False) as opened:
        columns = opened.query(
            "SELECT column_name, data_type, is_nullable FROM duckdb_columns() WHERE table_name = 'cell'"
        )
        for number, params in enumerate(settings):
            row = {
                row["column_name"]: None if row["is_nullable"] else _anything(row["data_type"])
                for row in columns.to_pylist()
            }
            row |= {"cell_id": str(number), "method": "m", "params": json.dumps(params)}
            row["unused_params"] = ["threshold"] if params.get("rule") == "epsilon" else []
            names = ", ".join(row)
            opened.duck.execute(f"INSERT INTO cell ({names}) VALUES ({', '.join('?' * len(row))})", list(row.values()))
        stored_labels = opened.query("SELECT label FROM settings")["label"].to_pylist()
    assert sorted(stored_labels) == sorted(labels)


def _anything(data_type: str) -> Any:
    """Return any value of a column's type."""
    if data_type.endswith("[]"):
        return []
    return {"VARCHAR": "x", "JSON": "{}", "BOOLEAN": False}.get(data_type, 1)


@pytest.mark.parametrize(
    ("objective", "training"),
    [
        ({"loss": "last"}, "last block"),
        ({"loss": "exit-heads"}, "last block"),
        ({"loss": "weighted"}, "every block"),
        ({"loss": "layer-skip"}, "every block"),
        ({"loss": "weighted", "blocks": [2, 4]}, "some blocks"),
        ({"loss": "self-distillation"}, "self-distillation"),
        (None, None),
    ],
)
def test_training_of_a_model_names_the_blocks_whose_losses_were_minimised(
    objective: Json | None, training: str | None, example_database: Path, tmp_path: Path
) -> None:
    card = json.dumps({"recipe": {"objective": objective}})
    with duckdb.connect(shutil.copy(example_database, tmp_path / "copy.duckdb")) as connection:
        connection.execute("DELETE FROM training_run")
        if objective is not None:
            sql = "SELECT DISTINCT weights_sha256, 'own' AS recipe, ?::JSON AS card FROM model_artifact"
            connection.execute(f"INSERT INTO training_run BY NAME {sql}", [card])
        assert connection.execute("SELECT DISTINCT training FROM objectives").fetchall() == [(training,)]
