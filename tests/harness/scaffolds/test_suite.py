"""Suites written for a checkpoint: their content, and that they can be planned."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from exitbench.harness.cli.main import main
from exitbench.harness.engine.model import available
from exitbench.harness.planning.plan import Plan, make_plan
from exitbench.harness.planning.suite import Suite, load_suite
from exitbench.harness.training.store import SHIPPED
from exitbench.methods.registry import get_method, method_names

New = Callable[..., Suite]


@pytest.fixture
def new_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> New:
    """Return a function that runs `exitbench new suite` and returns the suite that it wrote."""

    def write(*arguments: str | Path) -> Suite:
        code = main(["new", "suite", "asked", *map(str, arguments)])
        assert code == 0, capsys.readouterr().err
        return load_suite("asked.toml")

    monkeypatch.chdir(tmp_path)
    return write


def shipped(name: str) -> Path:
    (folder,) = SHIPPED.glob(f"{name}-*")
    return folder


def plan_of(suite: Suite, folder: Path, data_dir: Path | None = None) -> Plan:
    return make_plan(suite, folder / "spool", folder / "models", data_dir)


def comment(path: Path) -> str:
    """Return all comments of a file, joined to one line."""
    return " ".join(line.lstrip("# ") for line in path.read_text().splitlines() if line.startswith("#"))


@pytest.mark.parametrize(
    ("model", "tasks"),
    [("builtin-weighted", ["squad", "samsum", "wmt-en-fr"]), ("builtin-exit-heads", ["squad", "samsum"])],
)
def test_new_suite_has_the_tasks_for_its_model_kind(
    model: str, tasks: list[str], new_suite: New, tmp_path: Path
) -> None:
    suite = new_suite("--model", shipped(model))
    assert [task.label for task in suite.tasks] == tasks
    labels = {planned.item.label.split("/")[1] for group in plan_of(suite, tmp_path).groups for planned in group.cells}
    assert labels == set(tasks)


def test_new_suite_has_only_methods_that_need_no_training(new_suite: New) -> None:
    methods = {sweep.points[0].method.name for sweep in new_suite("--model", shipped("builtin-weighted")).sweeps}
    assert {"full", "static", "calm-softmax"} <= methods
    assert not [name for name in methods if get_method(name)().fit_params() or get_method(name).needs_exit_heads]


def test_new_suite_names_every_other_method_in_a_comment(new_suite: New) -> None:
    methods = {sweep.points[0].method.name for sweep in new_suite("--model", shipped("builtin-weighted")).sweeps}
    said = comment(Path("asked.toml"))
    assert "Not on this model: heads, method 'heads' needs a checkpoint with trained exit heads" in said
    assert [name for name in set(method_names()) - methods if not re.search(rf"\b{name}\b", said)] == []


def test_new_suite_for_a_checkpoint_with_exit_heads_includes_method_heads(new_suite: New) -> None:
    suite = new_suite("--model", shipped("builtin-exit-heads"))
    assert "heads" in {sweep.points[0].method.name for sweep in suite.sweeps}
    assert "Not on this model" not in Path("asked.toml").read_text()


def static_depths(suite: Suite) -> list[Any]:
    (sweep,) = (sweep for sweep in suite.sweeps if sweep.points[0].method.name == "static")
    return [dict(point.params)["exit_layer"] for point in sweep.points]


@pytest.mark.parametrize(("n_blocks", "depths"), [(1, [1]), (2, [1]), (3, [1, 2]), (8, [2, 4, 6]), (12, [3, 6, 9])])
def test_static_depths_are_quarters_of_the_models_depth(
    n_blocks: int, depths: list[int], new_suite: New, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "n_embd": 8, "n_head": 2, "n_layer": n_blocks, "n_positions": 20}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=1)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    assert static_depths(new_suite("--model", "model")) == depths


def test_model_path_is_relative_to_the_new_suites_folder(new_suite: New, tmp_path: Path) -> None:
    shutil.copytree(shipped("builtin-vanilla"), tmp_path / "my models" / "É one")
    assert main(["new", "suite", "asked", "--model", "my models/É one", "--to", "deep/er"]) == 0
    suite = load_suite("deep/er/asked.toml")
    assert [(model.name, model.path) for model in suite.models] == [
        ("one", Path("deep/er") / ".." / ".." / "my models" / "É one")
    ]
    assert plan_of(suite, tmp_path).groups[0].folder is not None


def test_recipe_is_written_as_a_recipe(new_suite: New) -> None:
    (model,) = new_suite("--model", "builtin-free").models
    assert (model.name, model.recipe, model.path) == ("builtin-free", "builtin-free", None)


def test_hub_model_is_written_with_its_revision(
    new_suite: New, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    commit, cache = "0" * 40, tmp_path / "hub"
    snapshot = cache / "models--me--small-model" / "snapshots" / commit
    shutil.copytree(shipped("builtin-weighted"), snapshot)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    (model,) = new_suite("--model", f"hub:me/small-model@{commit}").models
    assert (model.name, str(model.hub)) == ("small-model", f"hub:me/small-model@{commit}")


def test_named_tasks_replace_the_default_tasks(new_suite: New) -> None:
    suite = new_suite("--model", "builtin-weighted", "--task", "squad", "--task", "wmt22-en-zh")
    assert [(task.label, task.data.limit) for task in suite.tasks] == [("squad", 20), ("wmt22-en-zh", 20)]


def test_prompt_style_depends_on_the_model_kind_and_data(
    causal_model: Path, worded_model: Path, new_suite: New, tmp_path: Path
) -> None:
    chat = Path(shutil.copytree(causal_model, tmp_path / "chat"))
    (chat / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    local = ("--task", "samsum", "--set", 'source="local"', "--set", 'files={data="val.json"}')
    for model, settings, style in (
        (chat, (), "chat"),
        (chat, local, "chat"),
        (worded_model, (), "t5"),
        (worded_model, local, "t5"),
        (causal_model, (), "t5"),  # generated data
        (causal_model, local, "completion"),
        (causal_model, (*local, "--set", 'prompt_style="t5"'), "t5"),
    ):
        suite = new_suite("--model", model, *settings)
        assert {task.prompts.style for task in suite.tasks} == {style}
        Path("asked.toml").unlink()


def test_task_settings_are_written_to_the_new_suite(new_suite: New, tmp_path: Path) -> None:
    (tmp_path / "text.en").write_text("a dog runs\n")
    (tmp_path / "text.fr").write_text("un chien court\n")
    files = 'files={en="text.en",fr="text.fr"}'
    given = ("--task", "wmt-en-fr", "--set", 'source="local"', "--set", files, "--set", "limit=7", "--data-dir", ".")
    suite = new_suite("--model", "builtin-weighted", *given)
    (task,) = suite.tasks
    assert (task.data.files, task.data.limit) == ((("en", "text.en"), ("fr", "text.fr")), 7)
    assert plan_of(suite, tmp_path, tmp_path).groups[0].cells


CHOICES = """\
schema = 1
name = "pick"
prompt = "{text} ="
choices = ["{a}", "{b}"]
target = "right"
metrics = ["acc"]
fields = { text = "text", a = "a", b = "b", right = "right" }
"""


def test_choice_tasks_omit_methods_without_log_likelihoods(new_suite: New, tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "pick.toml").write_text(CHOICES)
    (tmp_path / "pick.jsonl").write_text(json.dumps({"text": "the key", "a": "la clef", "b": "Ben", "right": 0}))
    given = ("--task", "tasks/pick.toml", "--set", 'files={data="pick.jsonl"}', "--data-dir", ".")
    suite = new_suite("--model", shipped("builtin-layer-skip"), *given)
    assert "self-speculation" not in {sweep.points[0].method.name for sweep in suite.sweeps}
    assert "self-speculation, it does not provide log-likelihoods" in comment(Path("asked.toml"))
    assert plan_of(suite, tmp_path, tmp_path).groups[0].cells


def test_new_suite_prints_the_next_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "a b"
    assert main(["new", "suite", "asked", "--model", "builtin-free", "--to", str(to)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"wrote {to}/asked.toml",
        "",
        "next:",
        f"  exitbench plan '{to}/asked.toml'",
        f"  exitbench run '{to}/asked.toml' --limit 2 --no-report",
        f"  exitbench run '{to}/asked.toml'",
    ]


def test_new_suite_for_a_model_larger_than_memory_loads_no_weights(
    new_suite: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(available, "_left_on_cpu", lambda: iter([1]))
    assert new_suite("--model", shipped("builtin-weighted")).sweeps
