"""Export results as records of Every Eval Ever, a JSON schema shared by evaluation frameworks (version 0.3.0).

One JSON file per quality run of a model, `data/TASK_LABEL/exitbench/MODEL/UUID.json`. The method and its parameters are
details of generation, so that a model keeps one name; depth and speed are details of the score. No record quotes a
document, an answer or a token, so licences of data do not matter.
"""

import json
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.results.database.connection import Database
from exitbench.results.files.atomic import write_folder, write_json

SCHEMA_VERSION: Final = "0.3.0"
_NAMESPACE: Final = uuid.UUID("6a1f3a34-3a4c-5f0e-9c56-0a4f5d3b7e21")
_UNKNOWN: Final = "unknown"
_LEVEL: Final = 0.95
_RUNS: Final = """
    SELECT
        r.*, c.method_revision, m.weights_sha256, d.source, d.data_sha256, epoch(a.ended_at) AS ended, e.packages,
        e.python, e.platform, f.speedup, f.speedup_low, f.speedup_high, f.mean_exit_layer, f.token_match,
        f.ideal_speedup_bytes, f.ideal_speedup_flops
    FROM runs AS r
    JOIN frontier AS f USING (attempt_id)
    JOIN cell AS c ON c.cell_id = r.cell_id
    JOIN model_artifact AS m USING (model_id)
    JOIN dataset_artifact AS d USING (data_id)
    JOIN attempt AS a USING (attempt_id)
    JOIN environment AS e USING (env_id)
    WHERE r.kind = 'quality'
    ORDER BY r.attempt_id
"""
_METRICS: Final = """
    SELECT
        attempt_id, metric, metric_version, value, ci_low, ci_high, ci_method, n, lower_is_better, scale_low, scale_high
    FROM metric_values
    SEMI JOIN (
        SELECT attempt_id, unnest(json_keys(any_value(scores))) AS metric FROM sample GROUP BY attempt_id
    ) USING (attempt_id, metric)
    WHERE is_current ORDER BY attempt_id, metric
"""
_SCORE_DETAILS: Final = (
    "speedup",
    "speedup_low",
    "speedup_high",
    "mean_exit_layer",
    "token_match",
    "ideal_speedup_bytes",
    "ideal_speedup_flops",
)
_GENERATION_DETAILS: Final = (
    "method",
    "params",
    "kv_policy",
    "method_revision",
    "dtype",
    "device",
    "batch_size",
    "seed",
)
_MODEL_DETAILS: Final = ("weights_sha256", "model_kind", "blocks", "parameters", "random_weights")
_LIBRARY_DETAILS: Final = ("commit", "dirty", "python", "platform", "cpu", "gpu")
_DATA_DETAILS: Final = ("task", "split", "source", "documents", "limited", "data_sha256")


def write_every_eval_ever(database: Database, folder: Path, organization: str, relationship: str) -> int:
    """Write one record per quality run with scores into a new folder, all or none; return the number of records.

    Args:
        database: An open database.
        folder: Folder to write; it must not exist.
        organization: Organization that publishes the results.
        relationship: Relationship of the evaluator to the model's developer: first_party, third_party, collaborative or
            other.

    Raises:
        UserError: The folder exists or cannot be written.
    """
    if folder.exists():
        raise UserError(f"{folder} exists already. Name a folder that does not.")
    metrics: dict[str, list[Mapping[str, Any]]] = {}
    for row in database.query(_METRICS).to_pylist():
        metrics.setdefault(row["attempt_id"], []).append(row)
    runs = [run for run in database.query(_RUNS).to_pylist() if run["attempt_id"] in metrics]
    source = {
        "source_type": "evaluation_run",
        "source_organization_name": organization,
        "evaluator_relationship": relationship,
    }
    now = str(time.time())

    def fill(partial: Path) -> None:
        for run in runs:
            name = uuid.uuid5(_NAMESPACE, run["attempt_id"])
            path = (
                partial / "data" / _portable(run["task_label"]) / "exitbench" / _portable(run["model"]) / f"{name}.json"
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {**_record(run, metrics[run["attempt_id"]], now), "source_metadata": source})

    write_folder(folder, fill)
    return len(runs)


def _record(run: Mapping[str, Any], metrics: list[Mapping[str, Any]], now: str) -> dict[str, Any]:
    packages = json.loads(run["packages"])
    version = str(packages.get("exitbench", _UNKNOWN))
    return {
        "schema_version": SCHEMA_VERSION,
        # Runs of a model differ in method and parameters, which only the cell's id identifies completely.
        "evaluation_id": f"{run['task_label']}/{run['model']}/{run['cell_id'][:16]}/{run['ended']:.6f}",
        "evaluation_timestamp": f"{run['ended']:.6f}",
        "retrieved_timestamp": now,
        "eval_library": {
            "name": "exitbench",
            "version": version,
            "additional_details": {**_details(run, _LIBRARY_DETAILS), "packages": json.dumps(packages, sort_keys=True)},
        },
        "model_info": {
            "name": run["model"],
            "id": run["model"],
            "inference_engine": {"name": "exitbench", "version": version},
            "additional_details": {**_details(run, _MODEL_DETAILS), **_access(run["model_source"])},
        },
        "evaluation_results": [_result(run, metric) for metric in metrics],
    }


def _result(run: Mapping[str, Any], metric: Mapping[str, Any]) -> dict[str, Any]:
    uncertainty: dict[str, Any] = {"num_samples": metric["n"]}
    if metric["ci_low"] is not None:
        uncertainty["confidence_interval"] = {
            "lower": metric["ci_low"],
            "upper": metric["ci_high"],
            "confidence_level": _LEVEL,
            "method": metric["ci_method"],
        }
    generation = json.loads(run["generation"])
    return {
        "evaluation_result_id": f"{run['attempt_id']}/{metric['metric']}",
        "evaluation_name": f"exitbench.{run['task_label']}",
        "evaluation_timestamp": f"{run['ended']:.6f}",
        "source_data": {
            "dataset_name": run["task_label"],
            "source_type": "other",
            "additional_details": _details(run, _DATA_DETAILS),
        },
        "metric_config": {
            "metric_id": f"exitbench.{run['task']}.{metric['metric']}",
            "metric_name": metric["metric"],
            "evaluation_description": f"{metric['metric']} of {run['task']}, version {metric['metric_version']}",
            "lower_is_better": metric["lower_is_better"],
            "score_type": "continuous",
            # null means that a bound is unknown, as for metrics without a scale
            "min_score": metric["scale_low"],
            "max_score": metric["scale_high"],
        },
        "score_details": {
            "score": metric["value"],
            "uncertainty": uncertainty,
            "details": _details(run, _SCORE_DETAILS),
        },
        "generation_config": {
            "generation_args": {"max_tokens": generation["max_new_tokens"]},
            "additional_details": {**_details(run, _GENERATION_DETAILS), "stop": json.dumps(generation["stop"])},
        },
    }


def _access(model_source: str | None) -> dict[str, str]:
    """Return the schema's fields on access to a model: run by the user, with open weights if it is from the hub."""
    is_public = model_source is not None and model_source.startswith("hub:")
    return {"deployment_type": "self_deployed", "model_availability": "open_weights" if is_public else "unknown"}


def _details(run: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    """Return the named columns of a run as text, for a free-form field of the schema; NULL columns are omitted."""
    values = {name: run[name] for name in names if run[name] is not None}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


def _portable(name: str) -> str:
    """Return a name with ``-`` in place of characters that may be invalid in the name of a folder."""
    return "".join(sign if sign.isalnum() or sign in "-_." else "-" for sign in name)
