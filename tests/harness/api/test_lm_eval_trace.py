"""`trace=DIR`: lm-eval's evaluation is stored like the runs of an equal suite."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from suite_runs import worker_spec

from exitbench.errors import UserError
from exitbench.harness.api.lm_eval_model import ExitBenchLM
from exitbench.harness.cli.main import main
from exitbench.harness.planning.plan import make_plan
from exitbench.harness.planning.suite import load_suite
from exitbench.harness.running import worker
from exitbench.harness.work import lm
from exitbench.results.analysis.repeats import compare_attempts
from exitbench.results.database.connection import open_database
from exitbench.results.spool.attempts import attempt_status

Toys = tuple[Path, Path]


@pytest.fixture(scope="module")
def toys(toy_models: dict[str, Path], toy_tasks: Path) -> Toys:
    return toy_models["causal"], toy_tasks


def evaluate(toys: Toys, trace: Path, tasks: list[str], method: dict[str, Any], **asked: Any) -> Any:
    model, folder = toys
    arguments = {"pretrained": str(model), "dtype": "float32", "trace": str(trace), "include": str(folder), **method}
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    given = {"device": "cpu", "batch_size": 4, "bootstrap_iters": 0, "task_manager": manager, **asked}
    return simple_evaluate(model="exitbench", model_args={**arguments, "data_dir": "/"}, tasks=tasks, **given)


def attempts(trace: Path) -> dict[str, Path]:
    """Return the folder of each cell's attempt in a trace, by the cell's label without the model."""
    plan = make_plan(load_suite(trace / "suite.toml"), trace / "spool", trace / "models", Path("/"))
    (group,) = plan.groups
    assert {cell.state for cell in group.cells} == {"done"}, "a suite asks for the same cells"
    results = {}
    for cell in group.cells:
        status = attempt_status(trace / "spool", cell.item.cell.cell_id)
        assert status is not None
        results[cell.item.label.partition("/")[2]] = status.path
    return results


RANDOM = {"method": "random", "mean_exit": 2.5}


@pytest.fixture(scope="module")
def traced(toys: Toys, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    trace = tmp_path_factory.mktemp("traced") / "x"
    tasks = ["toy_text", "toy_choice", "toy_rolling"]
    return trace, evaluate(toys, trace, tasks, RANDOM, num_fewshot=1, limit=5)


def test_trace_stores_one_cell_per_task_and_method(traced: tuple[Path, Any]) -> None:
    result = attempts(traced[0])
    labels = {label.partition("/")[0] for label in result}
    assert labels == {"toy_text", "toy_choice", "toy_rolling"} and len(result) == 6
    assert {json.loads((path / "cell.json").read_text())["task"]["documents"] for path in result.values()} == {5}


def test_stored_metrics_equal_lm_evals_results(traced: tuple[Path, Any]) -> None:
    trace, results = traced
    compared = 0
    for label, path in attempts(trace).items():
        task, method, _ = label.split("/")
        if method == "full":
            continue
        metrics = {row["metric"]: row["value"] for row in pq.read_table(path / "metrics.parquet").to_pylist()}
        for name, value in results["results"][task].items():
            metric = name.removesuffix(",none")
            if metric in metrics and isinstance(value, float):
                scale = 100 if metric in ("acc", "acc_norm", "exact_match") else 1
                assert metrics[metric] == pytest.approx(value * scale), name
                compared += 1
    assert compared == 7


def test_running_the_traced_suite_reproduces_tokens_and_exits(traced: tuple[Path, Any]) -> None:
    trace = traced[0]
    again = trace.parent / "again"
    (group,) = make_plan(load_suite(trace / "suite.toml"), again, trace / "models", Path("/")).groups
    # With another number of threads, sums may differ in the last digit.
    spec = replace(worker_spec(group, again, Path("/")), threads=torch.get_num_threads())
    assert worker.run(spec, lambda event: None) == 0
    for item in spec.cells:
        first, second = (attempt_status(spool, item.cell.cell_id) for spool in (trace / "spool", again))
        assert first is not None and second is not None and (first.status, second.status) == ("ok", "ok")
        assert all(compared.equal for compared in compare_attempts(first.path, second.path)), item.label
    path = attempts(trace)[next(label for label in attempts(trace) if label.startswith("toy_choice/random"))]
    assert len(set(pq.read_table(path / "tokens.parquet")["exit_layer"].to_pylist())) > 1


def test_traced_spool_can_be_imported(
    traced: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    assert main(["import", str(traced[0] / "spool"), "--runs", str(runs)]) == 0
    assert "6 attempts are new" in capsys.readouterr().out
    with open_database(runs / "exitbench.duckdb") as database:
        rows = database.query("SELECT DISTINCT task FROM token_trace WHERE choice IS NOT NULL ORDER BY ALL").to_pylist()
    assert [row["task"] for row in rows] == ["lm-eval:toy_choice", "lm-eval:toy_rolling"]


def test_stored_cells_are_not_written_again(
    toys: Toys, traced: tuple[Path, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    before = attempts(traced[0])
    tasks = ["toy_text", "toy_choice", "toy_rolling"]
    evaluate(toys, traced[0], tasks, RANDOM, num_fewshot=1, limit=5)
    assert "has all of this already" in capsys.readouterr().err
    assert attempts(traced[0]) == before


def test_full_depth_is_not_scored_again_if_already_stored(
    toys: Toys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    score = lm.score_texts

    def counted(checkpoint: Any, texts: Any, *rest: Any) -> Any:
        asked.append(len(texts))
        return score(checkpoint, texts, *rest)

    monkeypatch.setattr(lm, "score_texts", counted)
    evaluate(toys, tmp_path / "x", ["toy_choice"], {})
    assert asked == [21]
    evaluate(toys, tmp_path / "x", ["toy_choice"], {"method": "static", "exit_layer": 3})
    assert asked == [21, 21], "full depth is there"
    evaluate(toys, tmp_path / "y", ["toy_choice"], {"method": "static", "exit_layer": 3})
    assert asked == [21, 21, 21, 21], "full depth beside it"


def test_requests_a_suite_cannot_express_are_not_stored_and_reported(
    toys: Toys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = evaluate(toys, tmp_path / "x", ["toy_choice"], {}, num_fewshot=2, fewshot_random_seed=7)
    assert "toy_choice/full/quality is left out: its requests are not those of a suite" in capsys.readouterr().err
    assert "acc,none" in result["results"]["toy_choice"]
    assert not list((tmp_path / "x" / "spool").glob("*/*/*/DONE"))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"samples": {"toy_choice": [2, 4]}}, "limit, not with samples"),
        ({"system_instruction": "be brief"}, "goes with a chat template"),
        ({"use_cache": "kept"}, "trace needs every answer"),
    ],
)
def test_arguments_a_suite_cannot_express_are_refused_before_decoding(
    toys: Toys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], message: str
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(ExitBenchLM, "_score", never)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        evaluate(toys, tmp_path / "x", ["toy_choice"], {}, **asked)


def test_third_party_tasks_require_include(toys: Toys, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'toy_choice' is not one of lm-eval's own tasks; include=DIR says"):
        evaluate(toys, tmp_path / "x", ["toy_choice"], {"include": None})
