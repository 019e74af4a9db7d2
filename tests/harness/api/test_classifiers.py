"""Classification from Python: labels, exit layers, traces, and messages about invalid calls."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from pathlib import Path

import pytest

import exitbench as eb
from exitbench.harness.api import classifiers, models
from exitbench.harness.engine.encoders.model import EncoderClassifier
from exitbench.tasks import builtin
from exitbench.tasks.registry import get_task


@pytest.fixture(scope="module")
def model() -> eb.Classifier:
    loaded = eb.load_model("builtin-encoder-joint")
    assert isinstance(loaded, eb.Classifier)
    return loaded


@pytest.fixture(scope="module")
def texts() -> list[str]:
    task = get_task("sst2")
    return [task.prompt(document) for document in builtin.documents("sst2", "test", 40)]


def test_products_of_a_classifier_are_chosen_when_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[object] = []
    monkeypatch.setattr(models, "use_fastest", chosen.append)
    eb.load_model("builtin-encoder-joint")
    assert [type(model) for model in chosen] == [EncoderClassifier]


def test_docstring_examples_pass() -> None:
    result = doctest.testmod(classifiers)
    assert result.failed == 0 and result.attempted > 1


def test_text_exits_at_the_first_block_whose_score_exceeds_the_threshold(
    model: eb.Classifier, texts: list[str]
) -> None:
    result = eb.classify(model, texts, "max-prob", threshold=0.7)
    assert len({one.exit_layer for one in result}) > 1
    for one in result:
        assert [said.block for said in one.trace] == list(range(1, one.exit_layer + 1))
        assert [said.exited for said in one.trace] == [False] * (one.exit_layer - 1) + [True]
        assert all(said.score <= 0.7 for said in one.trace[:-1] if said.score is not None)
        last = one.trace[-1]
        assert (last.label, last.value) == (one.label, one.value) and one.label in model.labels
        assert last.score is None or last.score > 0.7
        assert one.to_pandas()["block"].tolist() == list(range(1, one.exit_layer + 1))


def test_batched_and_single_texts_get_the_same_answer(model: eb.Classifier, texts: list[str]) -> None:
    together = eb.classify(model, texts[:8], "pabee", patience=1)
    alone = [eb.classify(model, [text], "pabee", patience=1)[0] for text in texts[:8]]
    assert [(one.label, one.exit_layer) for one in together] == [(one.label, one.exit_layer) for one in alone]


def test_unreachable_threshold_equals_full_depth(model: eb.Classifier, texts: list[str]) -> None:
    full = eb.classify(model, texts)
    never = eb.classify(model, texts, "max-prob", threshold=1.0)
    assert [one.label for one in full] == [one.label for one in never]
    assert {one.exit_layer for one in full} == {model.n_blocks} == {6}
    assert [len(one.trace) for one in never] == [6] * len(texts)


def test_regression_model_accepts_text_pairs_and_truncates_long_texts(classifier_folder: Callable[..., Path]) -> None:
    model = eb.load_model(classifier_folder(("LABEL_0",)))
    long = ("a dog runs " * 9, "two men sing " * 9)
    (one,) = eb.classify(model, [long], "static", exit_layer=2)
    assert one.label is None and one.trace[-1].value == one.value
    assert one.n_tokens == 30 and one.n_cut > 0
    assert eb.classify(model, []) == []


@pytest.mark.parametrize(
    ("method", "params", "message"),
    [
        ("berxit", {}, "'berxit' must be fitted first"),
        ("max-prob", {"threshold": 2.0}, "out of range"),
        ("max-prob", {"kv_policy": "exact"}, "keeps no keys and values"),
        ("no-such", {}, "no-such"),
    ],
)
def test_unsupported_calls_raise_user_errors(
    model: eb.Classifier, method: str, params: dict[str, object], message: str
) -> None:
    with pytest.raises(eb.UserError, match=message):
        eb.classify(model, ["a dog runs"], method, **params)


def test_wrong_model_kind_error_names_the_right_function(model: eb.Classifier) -> None:
    with pytest.raises(eb.UserError, match=r"eb\.classify"):
        eb.decode(model, ["a dog runs"])
    with pytest.raises(eb.UserError, match=r"eb\.classify"):
        eb.probe(model, ["a dog runs"])
    with pytest.raises(eb.UserError, match=r"eb\.decode"):
        eb.classify(eb.load_model("builtin-vanilla"), ["a dog runs"])
