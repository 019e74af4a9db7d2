"""Contributions of single documents to metrics that are not means over documents."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitbench.results.statistics.intervals import Aggregate, Floats
from exitbench.results.statistics.pooled import contributions, largest_contribution
from exitbench.tasks.base import Task
from exitbench.tasks.glue import confusion, moments
from exitbench.tasks.registry import get_task

LABELS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=12)
RATINGS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=12)
BLEU = st.lists(
    st.tuples(st.integers(4, 9), st.integers(4, 9), *(st.integers(0, 3) for _ in range(4))), min_size=2, max_size=8
)


def left_out_one_by_one(rows: Floats, aggregate: Aggregate) -> Floats:
    """Return the metric plus each document's influence on it, by computing the metric n + 1 times."""
    value = float(aggregate(rows.sum(axis=0), np.array(float(len(rows)))))
    without = [
        float(aggregate(np.delete(rows, i, axis=0).sum(axis=0), np.array(len(rows) - 1.0))) for i in range(len(rows))
    ]
    return value + (len(rows) - 1) * (np.mean(without) - np.array(without))


def check(task: Task, metric: str, rows: Floats) -> None:
    moved = contributions(metric, rows)
    assert moved is not None
    assert 100 * moved == pytest.approx(left_out_one_by_one(rows, task.aggregator(metric)), abs=1e-6)


@given(pairs=LABELS)
def test_f1_and_mcc_contributions_match_the_task_metrics(pairs: list[tuple[int, int]]) -> None:
    rows = np.array([confusion(gold, predicted) for gold, predicted in pairs])
    check(get_task("mrpc"), "f1", rows)
    check(get_task("cola"), "mcc", rows)


@given(pairs=RATINGS)
def test_pearson_contributions_match_the_task_metric(pairs: list[tuple[int, int]]) -> None:
    check(get_task("stsb"), "pearson", np.array([moments(gold, predicted) for gold, predicted in pairs]))


@given(answers=BLEU)
def test_bleu_contributions_match_the_task_metric(answers: list[tuple[int, ...]]) -> None:
    rows = np.array([[own, gold, *matches, own, own - 1, own - 2, own - 3] for own, gold, *matches in answers])
    check(get_task("wmt-en-fr"), "bleu", rows.astype(np.float64))


def test_mean_of_contributions_equals_the_metric() -> None:
    moved = contributions("f1", np.array([confusion(1, 1), confusion(0, 1), confusion(1, 0), confusion(1, 1)]))
    assert moved is not None
    assert moved.mean() == pytest.approx(2 / 3)


@pytest.mark.parametrize(("metric", "width", "n"), [("rougeL", 4, 3), ("f1", 2, 3), ("f1", 4, 1)])
def test_unsupported_metrics_statistics_and_single_documents_have_no_contributions(
    metric: str, width: int, n: int
) -> None:
    assert contributions(metric, np.ones((n, width))) is None


@given(pairs=LABELS)
def test_largest_contribution_is_that_of_one_changed_label(pairs: list[tuple[int, int]]) -> None:
    n = len(pairs)
    for task, metric in (("mrpc", "f1"), ("cola", "mcc")):
        rows = np.array([confusion(gold, predicted) for gold, predicted in pairs])
        aggregate, count = get_task(task).aggregator(metric), np.array(float(n))
        value = float(aggregate(rows.sum(axis=0), count))
        changes = []
        for i, (gold, predicted) in enumerate(pairs):
            changed = rows.copy()
            changed[i] = confusion(gold, 1 - predicted)
            changes.append(abs(float(aggregate(changed.sum(axis=0), count)) - value))
        assert 100 * largest_contribution(metric, rows) == pytest.approx(n * max(changes), abs=1e-6)


@given(pairs=RATINGS)
def test_largest_contribution_to_a_correlation_is_between_the_extreme_predictions(pairs: list[tuple[int, int]]) -> None:
    aggregate, count = get_task("stsb").aggregator("pearson"), np.array(float(len(pairs)))
    extremes = (min(predicted for _, predicted in pairs), max(predicted for _, predicted in pairs))
    changes = []
    for i, (gold, _) in enumerate(pairs):
        low, high = (
            aggregate(
                np.sum([moments(*pair) for pair in [*pairs[:i], *pairs[i + 1 :], (gold, extreme)]], axis=0), count
            )
            for extreme in extremes
        )
        changes.append(abs(float(high) - float(low)))
    rows = np.array([moments(gold, predicted) for gold, predicted in pairs])
    assert 100 * largest_contribution("pearson", rows) == pytest.approx(len(pairs) * max(changes), abs=1e-4)


def test_largest_contribution_to_bleu_grows_with_the_longest_answer() -> None:
    short = [10.0, 10, 8, 6, 5, 4, 10, 9, 8, 7]
    rows = np.array([short] * 9 + [[10 * value for value in short]])
    # The longest of ten answers has 100 of 190 words, 5.3 times the mean: it decides about as many times one tenth.
    assert 3 < largest_contribution("bleu", rows) < 10
    assert largest_contribution("bleu", rows[:9]) < 1.5


def test_unsupported_metric_has_no_largest_contribution() -> None:
    assert largest_contribution("rougeL", np.ones((3, 1))) == 0
