"""Tasks in TOML files with choices: requests to lm-eval, the correct choice, and refused files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exitbench.errors import UserError
from exitbench.harness.planning.entries.declared_task import read_declaration
from exitbench.harness.planning.suite import load_suite
from exitbench.tasks.base import Source
from exitbench.tasks.declared import Declaration
from exitbench.tasks.declared_choices import right_choice
from exitbench.tasks.lm_eval.settings import LmEvalSettings
from exitbench.tasks.lm_eval.task import LmEvalTask
from exitbench.tasks.registry import get_task

Write = Callable[[str, object], Path]
TOML = """\
schema = 1
name = "colours"
prompt = "the {thing} is"
choices = "options"
target = "answer"
metrics = ["acc", "acc_norm"]
[fields]
thing = "thing"
options = "options"
answer = "answer"
"""
RECORDS = [
    {"thing": "sky", "options": ["red", "light blue"], "answer": 1},
    {"thing": "{sun}", "options": ["yellow", "green", "grey"], "answer": "yellow"},
]


def task_of(declaration: Declaration) -> LmEvalTask:
    settings = LmEvalSettings.from_json(json.loads(json.dumps(LmEvalSettings(declaration=declaration).to_json())))
    task = get_task(declaration.task_name, settings)
    assert isinstance(task, LmEvalTask)
    return task


def requests_of(task: LmEvalTask, folder: Path, name: str = "data.json") -> list[list[tuple[Any, ...]]]:
    documents = task.load(Source("local", folder, (("data", name),)), "test", None)
    instances = task.instances(documents)
    return [[tuple(instance.args) for instance in instances[document.key]] for document in documents]


def test_each_choice_is_requested_as_a_continuation_of_the_prompt(write: Write, tmp_path: Path) -> None:
    write("data.json", RECORDS)
    task = task_of(read_declaration(write("colours.toml", TOML)))
    assert (task.name, task.metrics, task.output_type) == ("toml:colours", ("acc", "acc_norm"), "multiple_choice")
    assert requests_of(task, tmp_path) == [
        [("the sky is", " red"), ("the sky is", " light blue")],
        [("the {sun} is", " yellow"), ("the {sun} is", " green"), ("the {sun} is", " grey")],
    ]


def test_acc_and_acc_norm_are_scored_against_the_correct_choice(write: Write, tmp_path: Path) -> None:
    write("data.json", RECORDS)
    task = task_of(read_declaration(write("colours.toml", TOML)))
    documents = task.load(Source("local", tmp_path, (("data", "data.json"),)), "test", None)
    assert [task.right_choices(document) for document in documents] == [{1}, {0}]
    # The second choice is longer: less probable as it is, more by its characters.
    responses = {documents[0].key: [(-3.0, False), (-5.0, False)], documents[1].key: [(-1.0, True), (-2.0, False)] * 2}
    responses[documents[1].key] = responses[documents[1].key][:3]
    scores = task.score_responses(documents, responses)
    assert scores[documents[0].key].values == {"acc": 0.0, "acc_norm": 100.0}
    assert scores[documents[1].key].values["acc"] == 100.0


def test_choices_may_combine_columns_and_literal_texts(write: Write, tmp_path: Path) -> None:
    text = TOML.replace('"options"\ntarget', '["{first}", "not {first}", "none"]\ntarget').replace(
        'options = "options"', 'first = "first"'
    )
    write("data.csv", "thing,first,answer\nsky,blue,B\n")
    task = task_of(read_declaration(write("colours.toml", text)))
    assert requests_of(task, tmp_path, "data.csv") == [
        [("the sky is", f" {choice}") for choice in ("blue", "not blue", "none")]
    ]


@pytest.mark.parametrize(
    ("target", "choices", "right"),
    [
        ("b", ["a", "b"], 1),
        (1, ["a", "b"], 1),
        ("1", ["a", "b"], 1),
        ("B", ["x", "y"], 1),
        ("1", ["1", "0"], 0),
        (1, ["1", "0"], 1),
        ("A", ["B", "A"], 1),
    ],
)
def test_correct_choice_is_given_by_text_number_or_letter(target: object, choices: list[str], right: int) -> None:
    assert right_choice(target, choices, "here") == right


@pytest.mark.parametrize("target", [2, -1, "2", "C", "c", True, None, "", ["a"], "²", 1.0])
def test_target_outside_the_choices_is_refused(target: object) -> None:
    with pytest.raises(UserError, match=r"here: .* is none of the 2 choices"):
        right_choice(target, ["a", "b"], "here")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('choices = "options"', 'choices = "optoins"', "bad.toml:4: choices: unknown field 'optoins'. Did you mean"),
        ('choices = "options"', 'choices = ["{thing}"]', "bad.toml:4: choices: needed: the name of a field"),
        ('choices = "options"', 'choices = ["{thing.x}", "b"]', "bad.toml:4: choices: {thing.x} is no field's name"),
        ('choices = "options"', "choices = 3", "bad.toml:4: choices: is 3; it must be a list"),
        ('"acc", "acc_norm"', '"f1"', "metrics: unknown metric 'f1'. Allowed: acc, acc_norm"),
        ('choices = "options"\n', "", "metrics: unknown metric 'acc'."),
        ('choices = "options"', 'choices = "options"\ncausal_prompt = "x"', "causal_prompt: does not go with choices"),
        ('choices = "options"', 'choices = "options"\nmax_new_tokens = 3', "max_new_tokens: does not go with choices"),
    ],
)
def test_invalid_declaration_is_refused(write: Write, old: str, new: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        read_declaration(write("bad.toml", TOML.replace(old, new)))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({**RECORDS[0], "options": ["red"]}, "record 1, field 'options': needed: a list of two choices or more"),
        ({**RECORDS[0], "options": "red"}, "record 1, field 'options': needed: a list"),
        ({**RECORDS[0], "options": ["red", None]}, "record 1, field 'options': is null"),
        ({**RECORDS[0], "thing": ["sky"]}, "record 1, field 'thing': stands in a template"),
        ({**RECORDS[0], "answer": 2}, "record 1, field 'answer': '2' is none of the 2 choices"),
        ({"thing": "sky"}, "record 1: no column 'options'"),
    ],
)
def test_invalid_record_error_names_the_record(
    write: Write, tmp_path: Path, record: dict[str, Any], message: str
) -> None:
    write("data.json", [record])
    with pytest.raises(UserError) as error:
        requests_of(task_of(read_declaration(write("colours.toml", TOML))), tmp_path)
    assert message in str(error.value)


SUITE = """
schema = 1
name = "s"
seed = 1
[models.m]
recipe = "builtin-vanilla"
[tasks.c]
task = "colours.toml"
{more}
[[sweep]]
method = "full"
"""


def test_suite_entry_requests_log_likelihoods_instead_of_generation(write: Write) -> None:
    write("colours.toml", TOML)
    suite = load_suite(write("s.toml", SUITE.format(more='files = { data = "data.json" }\nscope = "context"')))
    (entry,) = suite.tasks
    assert not entry.work.generates and entry.data.task == "toml:colours"
    assert (entry.generation.scope, entry.generation.first_token) == ("context", "gated")
    assert type(entry.data).from_json(json.loads(json.dumps(_json(entry.data)))) == entry.data


def _json(data: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(data)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("", "files: is missing"),
        ('files = { data = "d.json" }\nsource = "hub"', "files: is missing: the task reads files"),
        ('files = { data = "d.json" }\ninclude = "."', "include: goes with YAML of lm-eval"),
        ('files = { data = "d.json" }\nmax_new_tokens = 3', "max_new_tokens: does not go with"),
    ],
)
def test_incompatible_suite_settings_are_refused(write: Write, more: str, message: str) -> None:
    write("colours.toml", TOML)
    with pytest.raises(UserError) as error:
        load_suite(write("s.toml", SUITE.format(more=more)))
    assert message in str(error.value)


def test_metric_version_depends_on_prompt_and_choices(write: Write) -> None:
    versions = {
        task_of(read_declaration(write("c.toml", TOML.replace(old, new)))).metric_version
        for old, new in (("", ""), ("the {thing} is", "{thing}:"), ('= "options"\ntarget', '= ["a", "b"]\ntarget'))
    }
    assert len(versions) == 3
