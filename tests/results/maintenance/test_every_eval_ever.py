"""Export to Every Eval Ever, a format for evaluation results: the keys of its schema 0.3.0, the database's values."""

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from exitbench.errors import UserError
from exitbench.results.database.connection import open_database
from exitbench.results.maintenance.every_eval_ever import write_every_eval_ever

REQUIRED = {
    "schema_version",
    "evaluation_id",
    "retrieved_timestamp",
    "source_metadata",
    "model_info",
    "eval_library",
    "evaluation_results",
}
ALLOWED = REQUIRED | {"evaluation_timestamp", "dedupe_identity", "detailed_evaluation_results"}
RESULTS = "evaluation_results"
DETAILS = ("additional_details", "details")


@pytest.fixture(scope="module")
def records(example_database: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("records") / "out"
    with open_database(example_database) as database:
        count = write_every_eval_ever(database, folder, "Example University", "third_party")
    records_by_path = {path.relative_to(folder): json.loads(path.read_text()) for path in folder.rglob("*.json")}
    assert len(records_by_path) == count
    return records_by_path


def test_record_has_all_required_keys_and_no_unknown_key(records: dict[Path, dict[str, Any]]) -> None:
    for record in records.values():
        assert REQUIRED <= record.keys() <= ALLOWED
        assert record["schema_version"] == "0.3.0"
        assert record["source_metadata"] == {
            "source_type": "evaluation_run",
            "source_organization_name": "Example University",
            "evaluator_relationship": "third_party",
        }
        assert record["eval_library"].keys() >= {"name", "version"}
        assert record["model_info"].keys() >= {"name", "id"}
        assert record["model_info"]["additional_details"].items() >= {
            ("deployment_type", "self_deployed"), ("model_availability", "unknown"),
        }  # fmt: skip
        for result in record["evaluation_results"]:
            assert result.keys() >= {"evaluation_name", "source_data", "metric_config", "score_details"}
            assert result["source_data"].keys() >= {"dataset_name", "source_type"}
            config = result["metric_config"]
            assert config["score_type"] == "continuous" and config["lower_is_better"] is False
            assert config["min_score"] <= result["score_details"]["score"] <= config["max_score"]
            assert isinstance(result["generation_config"]["generation_args"]["max_tokens"], int)


@pytest.mark.parametrize(
    ("lower_is_better", "low", "high"), [(True, 0.0, 100.0), (False, -1.0, 1.0), (True, 0.0, 2.0), (True, None, None)]
)
def test_metric_record_has_its_direction_and_scale(
    example_database: Path, tmp_path: Path, lower_is_better: bool, low: float | None, high: float | None
) -> None:
    shutil.copy(example_database, tmp_path / "exitbench.duckdb")
    with duckdb.connect(str(tmp_path / "exitbench.duckdb")) as connection:
        turned = "UPDATE metric SET lower_is_better = $1, scale_low = $2, scale_high = $3 WHERE metric = 'f1'"
        connection.execute(turned, [lower_is_better, low, high])
    with open_database(tmp_path / "exitbench.duckdb") as database:
        write_every_eval_ever(database, tmp_path / "out", "Example University", "third_party")
    results = [
        result for path in (tmp_path / "out").rglob("*.json") for result in json.loads(path.read_text())[RESULTS]
    ]
    details = {
        tuple(result["metric_config"][name] for name in ("metric_name", "lower_is_better", "min_score", "max_score"))
        for result in results
    }
    assert details > {("f1", lower_is_better, low, high), ("em", False, 0.0, 100.0), ("rougeL", False, 0.0, 100.0)}
    assert not any("metric_unit" in result["metric_config"] for result in results)  # whose unit nothing says


def free_fields(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [field for item in value for field in free_fields(item)]
    if not isinstance(value, dict):
        return []
    nested_fields = [field for name in DETAILS for field in value.get(name, {}).values()]
    return nested_fields + [field for name, item in value.items() if name not in DETAILS for field in free_fields(item)]


def test_free_form_fields_are_strings(records: dict[Path, dict[str, Any]]) -> None:
    fields = [field for record in records.values() for field in free_fields(record)]
    assert len(fields) > 100
    assert all(isinstance(field, str) for field in fields)


def test_every_quality_run_is_a_record_with_its_tasks_metrics(
    records: dict[Path, dict[str, Any]], example_database: Path
) -> None:
    with open_database(example_database) as database:
        stored = database.query(
            "SELECT attempt_id, metric, value, ci_low, model, task_label FROM metric_values WHERE kind = 'quality' "
            "AND metric IN ('f1', 'em', 'rougeL', 'rouge1', 'bleu', 'chrf')"
        ).to_pylist()
    details = {
        result["evaluation_result_id"]: (
            result["score_details"]["score"],
            result["score_details"]["uncertainty"]["confidence_interval"]["lower"],
            record["model_info"]["name"],
            result["source_data"]["dataset_name"],
        )
        for record in records.values()
        for result in record["evaluation_results"]
    }
    assert details == {
        f"{row['attempt_id']}/{row['metric']}": (row["value"], row["ci_low"], row["model"], row["task_label"])
        for row in stored
    }
    ids = [record["evaluation_id"] for record in records.values()]
    assert len(set(ids)) == len(ids)


def test_record_paths_follow_the_collection_layout(records: dict[Path, dict[str, Any]]) -> None:
    for path, record in records.items():
        data, label, harness, model, _file = path.parts
        assert (data, harness, model) == ("data", "exitbench", record["model_info"]["name"])
        assert label == record["evaluation_results"][0]["source_data"]["dataset_name"]


def test_record_contains_method_speed_and_depth(records: dict[Path, dict[str, Any]]) -> None:
    (static,) = [
        result
        for record in records.values()
        for result in record["evaluation_results"]
        if result["metric_config"]["metric_name"] == "f1"
        and result["generation_config"]["additional_details"]["method"] == "static"
        and record["model_info"]["name"] == "world-t5"
    ]
    assert json.loads(static["generation_config"]["additional_details"]["params"]) == {"exit_layer": 2}
    assert float(static["score_details"]["details"]["mean_exit_layer"]) == 2
    assert float(static["score_details"]["details"]["speedup"]) > 1


def test_no_answer_and_no_token_is_in_a_record(records: dict[Path, dict[str, Any]], example_database: Path) -> None:
    with open_database(example_database) as database:
        answers = database.query("SELECT DISTINCT output_text AS t, output_ids AS ids FROM sample").to_pylist()
    text = json.dumps(list(records.values()))
    assert len(answers) > 10
    assert not any(json.dumps(row["t"]) in text or json.dumps(row["ids"]) in text for row in answers if row["t"])


def test_existing_folder_is_not_overwritten(example_database: Path, tmp_path: Path) -> None:
    with open_database(example_database) as database, pytest.raises(UserError, match="exists already"):
        write_every_eval_ever(database, tmp_path, "x", "other")
