"""Export of one setting as a suite that runs the same cells again."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from exitbench.reports.frame import Frame, Row
from exitbench.results.database.connection import Database
from exitbench.results.files.formats import toml_key, toml_table, toml_value

EXPORTS: Final = Path(__file__).with_name("exports.sql")
FOLDER: Final = "the folder of the checkpoint"
"""Placeholder for a path that the reader fills in: a database does not store folders."""
_GENERATION: Final = (
    *("max_new_tokens", "repetition_penalty", "no_repeat_ngram_size", "min_length", "forced_bos_token_id"),
    *("system", "max_prompt_tokens", "truncate", "first_token"),
)
"""Keys of a suite's task by their names in `generation`; `stop` only if not empty."""
_DATA: Final = ("source", "split", "limit")
_BUILT_IN: Final = ("seed", "level")


def suite_toml(row: Row, name: str) -> str | None:
    """Return a suite that repeats one run: its quality cell, and its timing cell if it was timed.

    Args:
        row: Row of exports.sql.
        name: Name of the suite.

    Returns:
        TOML; None if the database does not define the documents (tasks of lm-eval and declared tasks, whose texts are
        in other files).
    """
    if row["data_asked"] is None:
        return None
    data, fit = json.loads(row["data_asked"]), json.loads(row["fit_data_asked"] or "null")
    model, task, timing = row["model"], row["task_label"], json.loads(row["timing"] or "null")
    try:
        lines = [
            "schema = 1",
            f"name = {toml_value(name)}",
            f"seed = {row['seed']}",
            *toml_table(
                "[defaults]", _present_values(row, "dtype", "device", "batch_size", "batch_rows", "head_precision")
            ),
            *toml_table(f"[models.{toml_key(model)}]", _model(row)),
            *toml_table(f"[tasks.{toml_key(task)}]", _task(row, data, fit)),
            *toml_table("[[sweep]]", _sweep(row, is_timed=timing is not None)),
            *(toml_table("[timing]", timing) if timing else []),
            *(toml_table("[fit]", {"documents": fit["limit"]}) if fit and fit.get("limit") else []),
        ]
    except (AttributeError, LookupError, TypeError, ValueError):  # a third-party database with other JSON
        return None
    return "\n".join(lines) + "\n"


def stored_suite(database: Database, cell_id: str, name: str, folder: Path | None = None) -> str | None:
    """Return a suite that repeats a stored run.

    Args:
        database: An open database.
        cell_id: Id of the run's quality cell.
        name: Name of the suite.
        folder: Folder of its checkpoint, if it comes neither from a recipe nor from the hub.

    Returns:
        TOML; None if there is no such run, or if the database does not define the documents.
    """
    for row in Frame.query(database, EXPORTS.read_text("utf-8")).rows:
        if row["cell_id"] == cell_id:
            source = row["model_source"] if folder is None or _is_path(row["model_source"]) else str(folder.resolve())
            return suite_toml({**row, "model_source": source}, name)
    return None


def _model(row: Row) -> dict[str, Any]:
    more = {} if row["engine"] == "lean" else {"engine": row["engine"]}
    if row["random_weights"]:
        more["random_weights"] = True
    if _is_path(row["model_source"]):
        return {"path": row["model_source"], **more}
    return {"recipe": row["recipe"], **more} if row["recipe"] else {"path": FOLDER, **more}


def _is_path(source: str | None) -> bool:
    """Return whether a suite can load a model from `source` as its `path`; a GGUF file must be converted first."""
    return bool(source) and not str(source).startswith("gguf:")


def _task(row: Row, data: Mapping[str, Any], fit: Mapping[str, Any] | None) -> dict[str, Any]:
    generation = json.loads(row["generation"])
    task = {"task": row["task"], **_present_values(data, *_DATA)}
    if data["source"] == "builtin":
        task |= _present_values(data, *_BUILT_IN)
    if data["files"]:
        task["files"] = dict(data["files"])
    if fit and fit["files"]:
        task["train_files"] = dict(fit["files"])
    task |= _prompts(generation, data) | _present_values(generation, *_GENERATION)
    if generation.get("stop"):
        task["stop"] = generation["stop"]
    return task | ({"chat_template": True} if generation.get("chat_template_sha256") else {})


def _prompts(generation: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the suite's keys for a task's prompt; the style is always written, as its default depends on the model."""
    if not generation.get("max_new_tokens"):
        return {}
    prompts = {"prompt_style": generation.get("prompt_style") or "t5"}
    prompting = data.get("prompting")
    if prompting and not prompting["instruction"]:  # the user's template, which replaces the task's instruction
        prompts["prompt"] = prompting["template"]
    return prompts | _present_values(generation, "num_fewshot", "fewshot_seed")


def _sweep(row: Row, is_timed: bool) -> dict[str, Any]:
    grid = {name: [value] for name, value in json.loads(row["params"]).items() if value not in (None, [])}
    kinds = ["quality", "timing"] if is_timed else ["quality"]
    return {"method": row["method"], **({"grid": grid} if grid else {}), "kinds": kinds}


def _present_values(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names if values.get(name) is not None}
