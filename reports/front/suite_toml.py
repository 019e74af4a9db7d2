"""A setting as a suite of its own: the same cells, asked for again."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from exitbench.reports.frame import Frame, Row
from exitbench.results.database.connection import Database
from exitbench.results.files.formats import toml_key, toml_table, toml_value

EXPORTS: Final = Path(__file__).with_name("exports.sql")
FOLDER: Final = "the folder of the checkpoint"
"""Stands where a reader writes it: a database does not know folders."""
_GENERATION: Final = (
    *("max_new_tokens", "repetition_penalty", "no_repeat_ngram_size", "min_length", "forced_bos_token_id"),
    *("system", "max_prompt_tokens", "truncate", "first_token"),
)
"""What a suite's task says by the names that `generation` has; `stop` only where it is not empty."""
_DATA: Final = ("source", "split", "limit")
_BUILT_IN: Final = ("seed", "level")


def suite_toml(row: Row, name: str) -> str | None:
    """Return a suite that asks for one run: its quality, and its time if it was timed.

    Args:
        row: Of exports.sql.
        name: Of the suite.

    Returns:
        TOML; None where the database does not say which documents they were (tasks of lm-eval and declared ones, whose
        texts are in files of their own).
    """
    if row["data_asked"] is None:
        return None
    asked, fit = json.loads(row["data_asked"]), json.loads(row["fit_data_asked"] or "null")
    model, task, timing = row["model"], row["task_label"], json.loads(row["timing"] or "null")
    try:
        lines = [
            "schema = 1",
            f"name = {toml_value(name)}",
            f"seed = {row['seed']}",
            *toml_table("[defaults]", _some(row, "dtype", "device", "batch_size", "batch_rows", "head_precision")),
            *toml_table(f"[models.{toml_key(model)}]", _model(row)),
            *toml_table(f"[tasks.{toml_key(task)}]", _task(row, asked, fit)),
            *toml_table("[[sweep]]", _sweep(row, is_timed=timing is not None)),
            *(toml_table("[timing]", timing) if timing else []),
            *(toml_table("[fit]", {"documents": fit["limit"]}) if fit and fit.get("limit") else []),
        ]
    except (AttributeError, LookupError, TypeError, ValueError):  # somebody else's database, which says it otherwise
        return None
    return "\n".join(lines) + "\n"


def stored_suite(database: Database, cell_id: str, name: str, folder: Path | None = None) -> str | None:
    """Return a suite that asks for a stored run again.

    Args:
        database: An open database.
        cell_id: Of its quality.
        name: Of the suite.
        folder: Of its checkpoint, where that is not of a recipe or the hub.

    Returns:
        See `suite_toml`; None too where there is no such run.
    """
    for row in Frame.query(database, EXPORTS.read_text("utf-8")).rows:
        if row["cell_id"] == cell_id:
            return suite_toml({**row, "model_source": row["model_source"] or (folder and str(folder.resolve()))}, name)
    return None


def _model(row: Row) -> dict[str, Any]:
    more = {} if row["engine"] == "lean" else {"engine": row["engine"]}
    if row["random_weights"]:
        more["random_weights"] = True
    if row["model_source"]:
        return {"path": row["model_source"], **more}
    return {"recipe": row["recipe"], **more} if row["recipe"] else {"path": FOLDER, **more}


def _task(row: Row, asked: Mapping[str, Any], fit: Mapping[str, Any] | None) -> dict[str, Any]:
    generation = json.loads(row["generation"])
    task = {"task": row["task"], **_some(asked, *_DATA)}
    if asked["source"] == "builtin":
        task |= _some(asked, *_BUILT_IN)
    if asked["files"]:
        task["files"] = dict(asked["files"])
    if fit and fit["files"]:
        task["train_files"] = dict(fit["files"])
    task |= _some(generation, *_GENERATION)
    if generation.get("stop"):
        task["stop"] = generation["stop"]
    return task | ({"chat_template": True} if generation.get("chat_template_sha256") else {})


def _sweep(row: Row, is_timed: bool) -> dict[str, Any]:
    grid = {name: [value] for name, value in json.loads(row["params"]).items() if value not in (None, [])}
    kinds = ["quality", "timing"] if is_timed else ["quality"]
    return {"method": row["method"], **({"grid": grid} if grid else {}), "kinds": kinds}


def _some(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names if values.get(name) is not None}
