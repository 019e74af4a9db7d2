"""Suites that a model cannot run are refused at planning, on one screen with place and reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from suite_runs import plan_suite

from exitbench.errors import UserError
from exitbench.harness.planning.plan import Plan

pytestmark = pytest.mark.usefixtures("toy_classification")

HEAD = 'schema = 1\nname = "wrong"\nseed = 1\n[models.one]\npath = "{model}"\nrandom_weights = true\n[tasks]\n'
POLARITY = 'task = { task = "toy-polarity", source = "local", files = { data = "polarity.tsv" }'
RATING = 'task = { task = "toy-rating", source = "local", files = { data = "rating.tsv" }'
THREE, NUMBER = ("bad", "so-so", "good"), ("LABEL_0",)


@pytest.fixture
def plan(classifier_folder: Callable[..., Path], toy_texts: Path, tmp_path: Path) -> Callable[..., Plan]:
    """Return a function that plans one sweep of a model, given by labels or folder, on one task."""

    def make(model: Any, task: str, sweep: str = 'method = "static"', also: str = "") -> Plan:
        folder = model if isinstance(model, Path) else classifier_folder(model)
        text = HEAD.format(model=folder) + task + also + " }\n[[sweep]]\n" + sweep + "\n"
        return plan_suite(tmp_path, text, toy_texts)

    return make


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as error:
        call()
    message = str(error.value)
    assert len(message) < 600 and "suite.toml" in message, message
    return message


def test_classifier_with_matching_labels_is_planned(plan: Callable[..., Plan]) -> None:
    (group,) = plan(THREE, POLARITY).groups
    assert {planned.item.cell.model.kind for planned in group.cells} == {"encoder"}
    assert {planned.item.cell.engine for planned in group.cells} == {"hosted"}


@pytest.mark.parametrize(
    ("labels", "task", "message"),
    [
        (("no", "yes"), POLARITY, "one of 3 labels (bad, so-so, good), and the model gives one of 2 labels (no, yes)"),
        (NUMBER, POLARITY, "one of 3 labels (bad, so-so, good), and the model gives a number (regression)"),
        (THREE, RATING, "a number (regression), and the model gives one of 3 labels"),
    ],
)
def test_labels_that_differ_from_the_tasks_are_refused(
    labels: tuple[str, ...], task: str, message: str, plan: Callable[..., Plan]
) -> None:
    assert message in refused(lambda: plan(labels, task))


@pytest.mark.parametrize("method", ["entropy", "max-prob", "deebert", "fastbert", "oracle", "patience"])
def test_regression_with_a_gate_that_needs_labels_is_refused(method: str, plan: Callable[..., Plan]) -> None:
    message = refused(lambda: plan(NUMBER, RATING, f'method = "{method}"'))
    assert f"{method!r} cannot be run on 'one': its gate needs labels to choose from" in message


@pytest.mark.parametrize("method", ["static", "random", "pabee", "calm-saturation"])
def test_regression_with_gates_without_labels_is_planned(method: str, plan: Callable[..., Plan]) -> None:
    assert plan(NUMBER, RATING, f'method = "{method}"').groups[0].cells


def test_random_exit_depth_is_limited_by_the_model(plan: Callable[..., Plan]) -> None:
    (group,) = plan(THREE, POLARITY, 'method = "random"\ngrid = { mean_exit = [3.5] }').groups
    assert [planned.item.cell.method.params["mean_exit"] for planned in group.cells if "random" in planned.item.label]
    too_deep = refused(lambda: plan(THREE, POLARITY, 'method = "random"\ngrid = { mean_exit = [4.5] }'))
    assert "random.mean_exit = 4.5 is above the model's depth; allowed: between 1 and 4" in too_deep


def test_text_generation_task_is_refused_for_a_classifier(plan: Callable[..., Plan]) -> None:
    squad = 'task = { task = "squad", source = "builtin", limit = 2'
    assert "requires texts, and model 'one' is a classifier" in refused(lambda: plan(THREE, squad))


def test_classification_task_is_refused_for_a_generating_model(plan: Callable[..., Plan], checkpoint: Path) -> None:
    assert "model 'one' generates text" in refused(lambda: plan(checkpoint, POLARITY))


@pytest.mark.parametrize("kind", ["probe", "replay", "scores"])
def test_decoder_only_cell_kinds_are_refused_for_a_classifier(kind: str, plan: Callable[..., Plan]) -> None:
    message = refused(lambda: plan(THREE, POLARITY, f'method = "max-prob"\nkinds = ["{kind}"]'))
    assert "is for models that generate" in message and "allowed kinds: quality, timing, fit" in message


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ('method = "max-prob"\ngrid = { kv_policy = ["exact"] }', "an encoder keeps no keys and values"),
        ('method = "max-prob"\ngrid = { head = ["pruned-fixed"] }', "a classifier is read out as a whole"),
        ('method = "self-speculation"', "an encoder keeps no keys and values"),
        ('method = "static"\ngrid = { exit_layer = [5] }', "static.exit_layer = 5 is above the depth"),
    ],
)
def test_methods_that_need_a_decoder_are_refused_for_a_classifier(
    sweep: str, message: str, plan: Callable[..., Plan]
) -> None:
    assert message in refused(lambda: plan(THREE, POLARITY, sweep))


def test_methods_fitted_on_the_lm_head_are_refused_for_a_classifier(plan: Callable[..., Plan]) -> None:
    also = ', train_files = { data = "polarity-train.tsv" }'
    message = refused(lambda: plan(THREE, POLARITY, 'method = "calm-classifier"', also))
    assert "is fitted on the model's own head" in message


@pytest.mark.parametrize("setting", ["max_new_tokens = 3", 'stop = ["."]', "chat_template = true", "min_length = 2"])
def test_generation_settings_are_refused_for_classification_tasks(setting: str, plan: Callable[..., Plan]) -> None:
    message = refused(lambda: plan(THREE, POLARITY, also=f", {setting}"))
    assert "goes with tasks whose answers are generated" in message and setting.split()[0] in message


def test_max_prompt_tokens_is_part_of_the_identity(plan: Callable[..., Plan]) -> None:
    (group,) = plan(THREE, POLARITY, also=', max_prompt_tokens = 9, truncate = "left"').groups
    assert group.cells[0].item.cell.identity["generation"]["max_prompt_tokens"] == 9
