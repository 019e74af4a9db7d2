"""Versions state whether engine, methods and metrics behave as before: golden traces tie versions to behaviour."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from golden import (
    REWRITE_COMMAND,
    TRACED_MODELS,
    Golden,
    Setting,
    Trace,
    faults,
    is_close,
    our_methods,
    read,
    settings_of,
    trace,
)
from settings import base
from traces import digest, scores, traced_model

from exitbench.harness.engine import ENGINE_VERSION
from exitbench.methods.gates import SoftmaxMargin
from exitbench.methods.registry import get_method, method_names
from exitbench.tasks.builtin import TEXT_TASKS
from exitbench.tasks.registry import get_task

OUR_METHODS = [cls.name for cls in our_methods()]


@pytest.fixture(scope="module")
def stored() -> Golden:
    return read()


def is_default(setting: Setting) -> bool:
    return json.loads(setting.params) == base(get_method(setting.method))


def assert_unchanged(settings: list[Setting], stored: Golden) -> None:
    changed = [one for one in settings if trace(one, stored.traces[one].documents) != stored.traces[one]]
    assert not changed, f"does otherwise than before: raise its version, or the engine's; then {REWRITE_COMMAND}"


@pytest.mark.parametrize("name", OUR_METHODS)
def test_method_traces_equal_the_golden_traces_of_its_version(name: str, stored: Golden) -> None:
    """Every setting is stored, and the defaults do on every model what they did."""
    asked = list(settings_of(get_method(name)))
    assert asked == [one for one in stored.traces if one.method == name], (
        f"{REWRITE_COMMAND}: settings were added or went"
    )
    assert_unchanged([one for one in asked if is_default(one)], stored)
    assert get_method(name).version == stored.versions[name], f"does what it did; else {REWRITE_COMMAND}"


def other_settings() -> Iterator[Any]:
    """Yield the settings other than the defaults; `nox -s tests` runs the first of each parameter."""
    seen = set()
    for one in (one for one in read().traces if not is_default(one)):
        changed = (one.method, *json.loads(one.params))
        name = f"{one.method}-{one.model}-{one.first_token}-{one.params}"
        yield pytest.param(one, id=name, marks=pytest.mark.exhaustive if changed in seen else ())
        seen.add(changed)


@pytest.mark.parametrize("setting", other_settings())
def test_traces_of_other_parameters_equal_the_golden_traces(setting: Setting, stored: Golden) -> None:
    assert_unchanged([setting], stored)


@pytest.mark.parametrize("name", TRACED_MODELS)
def test_probe_equals_the_golden_probe_of_the_engine_version(name: str, stored: Golden) -> None:
    assert traced_model(name).inputs == stored.inputs[name], f"another model or other prompts: {REWRITE_COMMAND}"
    whole, means = traced_model(name).probe()
    assert is_close(stored.probes[name], (digest(whole), means)), f"raise ENGINE_VERSION; then {REWRITE_COMMAND}"
    assert stored.engine_version == ENGINE_VERSION, f"does what it did; else {REWRITE_COMMAND}"


@pytest.mark.parametrize("name", TEXT_TASKS)
def test_metrics_equal_the_golden_scores_of_their_version(name: str, stored: Golden) -> None:
    assert (get_task(name).metric_version, scores(name)) == stored.metrics[name], (
        f"change metric_version; then {REWRITE_COMMAND}"
    )


def test_golden_traces_have_at_least_three_documents_and_mostly_all(stored: Golden) -> None:
    counts = [len(found.documents) for found in stored.traces.values()]
    assert min(counts) >= 3 and sum(counts) >= 0.95 * max(counts) * len(counts)


def test_at_least_30_percent_of_a_methods_settings_have_distinct_traces(stored: Golden) -> None:
    """A parameter without effect on any trace could change without a new version."""
    for name in method_names():
        found = [value.sha256 for one, value in stored.traces.items() if one.method == name]
        assert len(set(found)) >= 0.3 * len(found), name


def test_changed_gate_score_changes_the_trace(stored: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    before = SoftmaxMargin.score
    monkeypatch.setattr(SoftmaxMargin, "score", lambda gate, view: before(gate, view).sqrt())
    (asked,) = (one for one in settings_of(get_method("calm-softmax")) if one.params == '{"threshold": 0.5}')
    assert trace(asked, stored.traces[asked].documents) != stored.traces[asked]


def test_documents_that_differ_in_single_precision_are_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Setting("full", TRACED_MODELS[0], "{}", "full")
    whole = trace(asked)
    single = traced_model(TRACED_MODELS[0], torch.float32)
    of = type(single).traces

    def other(self: Any, *arguments: Any) -> Any:
        found = of(self, *arguments)
        return [["another", *found[0][1:]], *found[1:]] if self is single else found

    monkeypatch.setattr(type(single), "traces", other)
    assert trace(asked).documents == whole.documents[1:]


# ------------------------------------------------------------------------------------------ what is asked of versions

ONE, OTHER = Setting("static", "m", "{}", "full"), Setting("patience", "m", "{}", "full")
BEFORE = Golden(
    engine_version=1,
    inputs={"m": "same"},
    versions={"static": 1, "patience": 1},
    traces={ONE: Trace((0,), "a"), OTHER: Trace((0,), "b")},
    probes={"m": ("whole", {"p1": 0.5})},
    metrics={"squad": ("1", "x")},
)
CHANGED = {ONE: Trace((0,), "c"), OTHER: Trace((0,), "b")}
BOTH = {ONE: Trace((0,), "c"), OTHER: Trace((0,), "d")}
RAISED = {"static": 2, "patience": 1}


@pytest.mark.parametrize(
    ("now", "says"),
    [
        ({}, None),
        ({"traces": CHANGED}, "static does otherwise than before: raise its version"),
        ({"traces": CHANGED, "versions": RAISED}, None),
        ({"versions": RAISED}, "the version of static is another, but its traces are what they were"),
        ({"traces": BOTH, "versions": {"static": 2, "patience": 2}}, "what they share does: raise ENGINE_VERSION"),
        ({"traces": BOTH, "engine_version": 2}, None),
        ({"engine_version": 2}, "ENGINE_VERSION is another, but every trace is what it was"),
        ({"probes": {"m": ("whole", {"p1": 0.51})}}, "probes of m say something else: raise ENGINE_VERSION"),
        ({"probes": {"m": ("whole", {"p1": 0.51})}, "engine_version": 2}, None),
        ({"probes": {"m": ("whole", {"p1": 0.500001})}}, None),
        ({"metrics": {"squad": ("1", "y")}}, "the metrics of squad say something else: change its metric_version"),
        ({"metrics": {"squad": ("2", "y")}}, None),
        ({"traces": CHANGED, "inputs": {"m": "another model"}}, None),
    ],
)
def test_version_must_change_exactly_if_behavior_changes(now: dict[str, Any], says: str | None) -> None:
    found = list(faults(BEFORE, replace(BEFORE, **now)))
    assert (not found) if says is None else (says in found[-1]), found
