"""Every database has the published results as printed, each with a comparable local result or the reason for having
none.
"""

import csv
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from stored_rows import query_rows

from exitbench.results.database import published
from exitbench.results.database.connection import Database, open_database
from exitbench.results.files.formats import content_id

FOLDER = Path(published.__file__).parent
RULES = tomllib.loads((FOLDER / "comparable.toml").read_text())
LINES = list(csv.DictReader((FOLDER / "published_results.csv").read_text().splitlines()))
PRINTED = ("source", "figure_or_table", "model", "dataset", "split", "method", "setting", "metric", "unit", "note")


@pytest.fixture(scope="module")
def database(example_database: Path) -> Iterator[Database]:
    with open_database(example_database) as opened:
        yield opened


# ---------------------------------------------------------------------------------------------- rows, as printed


def test_every_row_of_the_file_is_in_the_database_as_printed(database: Database) -> None:
    rows = database.query("FROM published_result ORDER BY ordinal").to_pylist()
    assert len(rows) == len(LINES) == 1205
    for row, line in zip(rows, LINES, strict=True):
        assert {name: row[name] or "" for name in PRINTED} == {name: line[name] for name in PRINTED}
        assert row["value"] == float(line["value"])
        assert row["std"] == (float(line["std"]) if line["std"] else None)
        assert row["published_id"] == content_id(line)


def test_a_value_that_is_not_a_number_is_refused_with_its_row() -> None:
    line = {**LINES[0], "value": "~8"}
    with pytest.raises(ValueError, match=r"published_results\.csv, row 7: value is '~8', not a number"):
        published._published_row(7, line, RULES)


def test_known_published_values_can_be_queried(database: Database) -> None:
    query = "SELECT value FROM published WHERE source = $s AND dataset = $d AND method = $m AND metric = $q"
    params = {"s": "MEE repo SQUAD.log", "d": "SQuAD v1.1", "m": "no early exit", "q": "f1"}
    assert database.query(query, params).to_pylist() == [{"value": 88.8409}]
    low = database.query("SELECT min(value) AS v FROM published_result WHERE metric = 'lm_head_flops_per_sample'")
    assert low.to_pylist() == [{"v": 7.27e07}]


# ------------------------------------------------------------------------------------------ kept up to date


def test_outdated_published_results_are_replaced_on_open(tmp_path: Path) -> None:
    path = tmp_path / "exitbench.duckdb"
    open_database(path, read_only=False).close()
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE published_source SET sha256 = 'older'")
        connection.execute("DELETE FROM published_result WHERE ordinal > 10")
        connection.execute("UPDATE published_result SET value = -1")
    with open_database(path, read_only=False) as opened:
        rows = opened.query("SELECT count(*) AS n, min(value) AS low FROM published_result").to_pylist()
        assert rows == [{"n": 1205, "low": 0}]


# ------------------------------------------------------------------------------------------ the rules themselves


def test_every_published_row_has_a_local_counterpart_or_a_reason(database: Database) -> None:
    rows = database.query("FROM published_result").to_pylist()
    for row in rows:
        params = [row[name] for name in ("our_task", "our_method", "our_params", "our_metric", "unit_factor")]
        if row["not_comparable"] is None:
            assert None not in params
        else:
            assert params == [None] * len(params) and row["not_comparable"].endswith(".")
    assert sum(row["not_comparable"] is None for row in rows) == 257


def test_every_mapping_rule_matches_a_published_row() -> None:
    fits = [
        next(n for n, rule in enumerate(RULES["rule"]) if published._matches(rule, line) is not None) for line in LINES
    ]
    assert set(fits) == set(range(len(RULES["rule"])))


def test_local_parameters_come_from_the_rule_and_the_published_setting(database: Database) -> None:
    rows = database.query(
        "SELECT DISTINCT our_method, min_exit_share, our_params ->> 'threshold' AS threshold, "
        "our_params ->> 'head' AS head, our_params ->> 'min_exit' AS min_exit FROM published_result "
        "WHERE setting = 'min exit layer 17' AND method = 'JSD + fixed pruning'"
    ).to_pylist()
    assert rows == [
        {
            **{"our_method": "contrastive-jsd", "min_exit_share": 17 / 24, "threshold": "0.9", "head": "pruned-fixed"},
            "min_exit": None,
        }
    ]


@pytest.mark.parametrize(
    "broken",
    ["samples_per_second", "lm_head_flops_per_sample", "runtime", "avg_ideal_exit_layer"],
)
def test_metrics_from_broken_clocks_or_counters_are_not_comparable(database: Database, broken: str) -> None:
    rows = database.query("SELECT count(our_method) AS n FROM published_result WHERE metric = $m", {"m": broken})
    assert rows.to_pylist() == [{"n": 0}]


# ------------------------------------------------------------------------------------------ beside runs of ours


def _local_database(example: Any, folder: Path, **changes: Any) -> Database:
    """Return a database of one full-depth run that scored 80 points; `changes` replaces keys of its cell."""
    cell = example.cell_json(example.MODELS[0], example.TASKS[0], example.FULL, "quality")
    cell["task"] = {**cell["task"], "source": "huggingface"} | changes.pop("task", {})
    metrics = [{"metric": "f1", "metric_version": "1", "value": 80.0, "ci_low": 70.0, "ci_high": 90.0, "n": 8}]
    metrics[0] |= {"role": "headline", "lower_is_better": False}
    example.write_attempt(folder / "spool", {**cell, **changes}, {"metrics": metrics})
    return open_database(example.ingested(folder), read_only=False)


def _published(opened: Database, method: str = "no early exit") -> dict[str, Any]:
    query = "FROM published WHERE source = 'MEE repo SQUAD.log' AND metric = 'f1' AND method = $m"
    (row,) = query_rows(opened, query, {"m": method})
    return row


def test_run_of_another_model_lists_differences_and_is_never_the_same_setting(example: Any, tmp_path: Path) -> None:
    with _local_database(example, tmp_path) as opened:
        row = _published(opened)
    assert row["comparable"] == "same method and task, other model"
    assert (row["our_value"], row["our_ci_low"], row["our_ci_high"], row["our_n"]) == (80, 70, 90, 8)
    assert row["our_model"] == "world-t5" and row["reason"] is None
    assert row["differences"].split("; ") == [
        "model: T5-large weighted-CE (CALM) ckpt, 24 dec layers there, world-t5 here",
        "decoder blocks: 24 there, 6 here",
        "trained on: weighted there, what is not known here",
        "data: SQuAD v1.1, validation (10873 features) there, squad, 8 documents of test here",
        "batch size: 32 there, 1 here",
        "scored over 10,873 windows of long contexts there, over documents here",
    ]


def test_generated_data_and_document_subsets_are_labeled(example: Any, tmp_path: Path) -> None:
    with _local_database(example, tmp_path, task={"source": "builtin"}, limited=True) as opened:
        row = _published(opened)
    assert row["comparable"] == "same method, generated data, other model"
    assert "validation (10873 features) there, generated, only 8 documents of test here" in row["differences"]


def test_missing_and_random_weight_runs_count_as_not_measured(example: Any, tmp_path: Path) -> None:
    with _local_database(example, tmp_path, random_weights=True) as opened:
        for method in ("no early exit", "softmax diff"):
            row = _published(opened, method)
            assert (row["comparable"], row["our_value"], row["differences"], row["attempt_id"]) == (None,) * 4
            assert row["reason"] == "Not measured here."
            assert row["our_method"] is not None


def test_the_same_setting_needs_the_same_weights_and_data_and_no_caveat(example: Any, tmp_path: Path) -> None:
    steps = {
        "weights_sha256 = (SELECT weights_sha256 FROM model_artifact)": "same method, task and model",
        "data_sha256 = (SELECT data_sha256 FROM dataset_artifact)": "same method, task and model",
        "model_blocks = 6, setting = 'batch 1'": "same method, task and model",
        "caveat = NULL": "same setting",
    }
    with _local_database(example, tmp_path) as opened:
        for change, comparable in steps.items():
            with opened.engine.begin() as connection:
                connection.exec_driver_sql(f"UPDATE published_result SET {change}")
            assert _published(opened)["comparable"] == comparable, change
        assert _published(opened)["differences"] is None
        with opened.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE cell SET limited = true")
        assert _published(opened)["comparable"] == "same method, task and model"


def test_values_are_compared_in_the_unit_they_were_printed_in(example: Any, tmp_path: Path) -> None:
    with _local_database(example, tmp_path) as opened, opened.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE published_result SET unit_factor = 100")
    with open_database(tmp_path / "exitbench.duckdb") as opened:
        assert _published(opened)["our_value"] == 0.8


def test_run_is_comparable_only_if_all_relevant_parameters_match(example: Any, tmp_path: Path) -> None:
    params = {"min_exit": 1, "head": "full", "rule": "constant", "threshold": 0.7, "decay": "code", "temperature": 4.0}
    params |= {"every": 1, "kv_policy": "state-copy", "levels": []}
    for number, (change, compares) in enumerate(
        [({}, True), ({"threshold": 0.9}, False), ({"head": "pruned-fixed"}, False), ({"kv_policy": "exact"}, False)]
    ):
        method = example.Method("calm-softmax", {**params, **change})
        cell = example.cell_json(example.MODELS[0], example.TASKS[0], method, "quality")
        with _local_database(example, tmp_path / str(number), method=cell["method"], cell_id=cell["cell_id"]) as opened:
            assert (_published(opened, "softmax diff")["our_value"] == 80) is compares, change


@pytest.mark.parametrize(
    ("published_min_exit", "local_min_exit", "reason"),
    [
        (17, 4, "earliest exit: 17 of 24 blocks there, 4 of 6 here"),
        (19, 5, "earliest exit: 19 of 24 blocks there, 5 of 6 here"),
        (6, 2, "earliest exit: 6 of 24 blocks there, 2 of 6 here"),
        (20, 5, None),
        (2, 1, "earliest exit: 2 of 24 blocks there, 1 of 6 here"),
        (6, 6, "not compared"),
    ],
)
def test_min_exit_and_depth_are_compared_as_shares_of_the_blocks(
    example: Any, tmp_path: Path, published_min_exit: int, local_min_exit: int, reason: str | None
) -> None:
    params = {"min_exit": local_min_exit, "head": "full", "rule": "constant", "threshold": 0.9, "decay": "none"}
    params |= {"every": 1, "k_first": 35000, "k_min": 250, "kv_policy": "state-copy", "levels": []}
    cell = example.cell_json(example.MODELS[0], example.TASKS[0], example.Method("calm-softmax", params), "quality")
    metric = {"metric": "mean_exit_layer", "metric_version": "1", "role": "depth", "value": 4.5, "n": 8}
    metrics = [{**metric, "ci_low": 4.0, "ci_high": 5.0}]
    example.write_attempt(tmp_path / "spool", cell, {"metrics": metrics})
    setting_query = (
        "figure_or_table = 'PRUNE Fig 6a' AND method = 'softmax diff' AND setting = $s AND metric = 'avg_exit_block'"
    )
    with open_database(example.ingested(tmp_path)) as opened:
        (row,) = opened.query(
            f"FROM published WHERE {setting_query}", {"s": f"min exit layer {published_min_exit}"}
        ).to_pylist()
    assert (row["depth_share"], row["min_exit_share"]) == (pytest.approx(row["value"] / 24), published_min_exit / 24)
    if reason == "not compared":
        assert (row["our_value"], row["our_depth_share"], row["reason"]) == (None, None, "Not measured here.")
        return
    assert (row["our_value"], row["our_ci_low"], row["our_ci_high"]) == (18, 16, 20)  # of 24 blocks
    assert (row["our_depth_share"], row["our_min_exit_share"]) == (0.75, local_min_exit / 6)
    assert "decoder blocks: 24 there, 6 here" in row["differences"]
    assert (reason in row["differences"]) if reason else ("earliest exit" not in row["differences"])
