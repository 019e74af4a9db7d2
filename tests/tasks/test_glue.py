"""GLUE's nine tasks: original files, the hub's rows, and metrics that agree with scikit-learn and SciPy."""

import re

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef

from exitbench.errors import UserError
from exitbench.harness.work.metrics import task_metrics
from exitbench.tasks.base import Source
from exitbench.tasks.document import Document
from exitbench.tasks.glue import DATA_SETS
from exitbench.tasks.registry import get_task

MNLI = (
    "index\tpromptID\tpairID\tgenre\t_1\t_2\t_3\t_4\tsentence1\tsentence2\tlabel1\tgold_label\n"
    "0\t7\t7n\tnews\t(X a)\t(X b)\t(X a)\t(X b)\t"
)
FILES = {
    "cola": ('cj99\t1\t\tShe "left\nrl\t0\t*\tLeft she .\n', {"sentence": 'She "left'}, 1),
    "sst2": ("sentence\tlabel\na fine film \t1\n", {"sentence": "a fine film "}, 1),
    "mrpc": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t11\t12\tIt rained.\tRain fell.\r\n",
        {"sentence1": "It rained.", "sentence2": "Rain fell."},
        1,
    ),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tnews\tf\t2012\t1\tnone\tnone\tIt rains.\tIt snows.\t2.333\n",
        {"sentence1": "It rains.", "sentence2": "It snows."},
        2.333,
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n3\t5\t6\tWhy?\tHow so?\t1\n4\t7\t8\tIs this\n",
        {"question1": "Why?", "question2": "How so?"},
        1,
    ),
    "mnli": (f"{MNLI}It rained.\tIt was dry.\tneutral\tcontradiction\n", {"hypothesis": "It was dry."}, 2),
    "mnli-mismatched": (f"{MNLI}It rained.\tIt was wet.\tneutral\tentailment\n", {"premise": "It rained."}, 0),
    "qnli": (
        "index\tquestion\tsentence\tlabel\n0\tWho?\tAda did.\tentailment\n",
        {"question": "Who?", "sentence": "Ada did."},
        0,
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n0\tIt rained.\tIt was dry.\tnot_entailment\n",
        {"sentence1": "It rained."},
        1,
    ),
    "wnli": ("index\tsentence1\tsentence2\tlabel\n0\tAda met Bo.\tBo left.\t0\n", {"sentence2": "Bo left."}, 0),
}
"""One file a task by its documented form: content, some of the first record's texts, its label."""


@pytest.mark.parametrize("name", FILES)
def test_original_files_become_documents_with_the_hubs_fields(name, write, load):
    content, texts, label = FILES[name]
    write("dev.tsv", content)
    document = load(get_task(name), data="dev.tsv")[0]
    assert set(document.fields) == {"id", *DATA_SETS[name].texts, "label"}
    assert {**document.fields, **texts, "label": label, "id": "1"} == document.fields
    assert get_task(name).texts(document) == tuple(document.fields[text] for text in DATA_SETS[name].texts)


def test_every_data_set_has_an_example_file():
    assert FILES.keys() == DATA_SETS.keys()


def test_rows_broken_by_line_breaks_are_skipped_in_qqp(write, load):
    write("dev.tsv", FILES["qqp"][0])
    assert len(load(get_task("qqp"), data="dev.tsv")) == 1


def test_repeated_sentences_are_separate_documents(write, load):
    write("dev.tsv", "sentence\tlabel\nfine\t1\nfine\t1\n")
    assert len(load(get_task("sst2"), data="dev.tsv")) == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("sst2", "index\tsentence\n0\tfine\n"),
        ("cola", "index\tsentence\n0\tFine.\n"),
        ("stsb", "index\tsentence1\tsentence2\n0\ta\tb\n"),
        ("mrpc", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\ta\tb\n"),
    ],
)
def test_unlabeled_test_split_file_is_refused(name, content, write, load):
    write("test.tsv", content)
    with pytest.raises(
        UserError, match=r"test\.tsv, line 1: has no labels, .*Allowed: a file of the train or dev split"
    ):
        load(get_task(name), data="test.tsv")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "sst2",
            "text\tlabel\nfine\t1\n",
            "line 1: has no column 'sentence', only text, label. Needed: sentence, label",
        ),
        ("sst2", "", "line 1: has no column 'sentence', only nothing."),
        ("sst2", "sentence\tlabel\nfine\t1\nfine\n", "line 3: 1 TAB-separated columns. Needed: 2 (sentence, label)."),
        ("sst2", "sentence\tlabel\nfine\t2\n", "line 2, column 'label': is '2'. Allowed: 0, 1."),
        ("cola", "a\t1\tFine.\n", "line 1: 3 TAB-separated columns. Needed: 4 (source, label, mark, sentence)."),
        (
            "rte",
            "sentence1\tsentence2\tlabel\na\tb\tyes\n",
            "column 'label': is 'yes'. Allowed: entailment, not_entailment.",
        ),
        (
            "stsb",
            "sentence1\tsentence2\tscore\na\tb\t5.1\n",
            "column 'score': is '5.1'. Allowed: a number from 0 to 5.",
        ),
        (
            "stsb",
            "sentence1\tsentence2\tscore\na\tb\tnan\n",
            "column 'score': is 'nan'. Allowed: a number from 0 to 5.",
        ),
    ],
)
def test_malformed_file_error_names_the_line(name, content, message, write, load):
    path = write("dev.tsv", content)
    with pytest.raises(UserError, match=f"^{re.escape(str(path))}, .*{re.escape(message)}"):
        load(get_task(name), data="dev.tsv")


HUB_ROWS = {
    "sst2": ("sst2", "validation", {"sentence": "fine", "label": 1, "idx": 0}),
    "mnli": ("mnli", "validation_matched", {"premise": "a", "hypothesis": "b", "label": 2, "idx": 0}),
    "mnli-mismatched": ("mnli", "validation_mismatched", {"premise": "a", "hypothesis": "b", "label": 0, "idx": 0}),
    "stsb": ("stsb", "validation", {"sentence1": "a", "sentence2": "b", "label": 2.5, "idx": 0}),
}


def hub_of(config, split, row, folder):
    """Write one row as a data set in the hub's folder layout, which `datasets` reads like the hub."""
    path = folder / "nyu-mll/glue" / config
    path.mkdir(parents=True)
    datasets.Dataset.from_list([row]).to_parquet(path / "rows.parquet")
    files = f"  - split: {split}\n    path: {config}/rows.parquet\n"
    (path.parent / "README.md").write_text(f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{files}---\n")


@pytest.mark.parametrize("name", HUB_ROWS)
def test_hub_rows_become_documents_with_the_same_fields(name, tmp_path, monkeypatch):
    config, split, row = HUB_ROWS[name]
    hub_of(config, split, row, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (document,) = get_task(name).load(Source("hub"), "validation", None)
    assert document.fields == {"id": "1", **{key: value for key, value in row.items() if key != "idx"}}


def test_unlabeled_test_split_of_the_hub_is_refused(tmp_path, monkeypatch):
    hub_of("sst2", "test", {"sentence": "fine", "label": -1, "idx": 0}, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    with pytest.raises(UserError, match=r"\(sst2\), split 'test': has no labels, .*on the hub split = \"train\""):
        get_task("sst2").load(Source("hub"), "test", None)


def scored(name, gold, predicted):
    """Return the intervals of a task's metrics over documents with these labels and predictions."""
    task = get_task(name)
    texts = dict.fromkeys(DATA_SETS[name].texts, "a")
    documents = [Document.from_fields({"id": str(i), **texts, "label": label}) for i, label in enumerate(gold)]
    scores = [
        task.score_prediction(document, prediction) for document, prediction in zip(documents, predicted, strict=True)
    ]
    return {metric: result.interval for metric, result in task_metrics(task, scores).items()}


CLASSES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=40)
# Multiples of a fraction, so that many are equal and none differ by rounding alone.
RATINGS = st.lists(st.tuples(st.integers(0, 15), st.integers(-9, 24)), min_size=3, max_size=40)


@given(CLASSES)
@settings(max_examples=60, deadline=None)
def test_f1_accuracy_and_matthews_equal_scikit_learn(pairs):
    gold, predicted = zip(*pairs, strict=True)
    both = scored("mrpc", gold, predicted)
    assert both["f1"].value == pytest.approx(100 * f1_score(gold, predicted, zero_division=0))
    assert both["acc"].value == pytest.approx(100 * np.mean(np.equal(gold, predicted)))
    assert scored("cola", gold, predicted)["mcc"].value == pytest.approx(100 * matthews_corrcoef(gold, predicted))


@given(RATINGS)
@settings(max_examples=60, deadline=None)
def test_pearson_and_spearman_equal_scipy_and_are_0_for_constant_input(pairs):
    gold, predicted = np.array(pairs).T / 3
    metrics = scored("stsb", gold.tolist(), predicted.tolist())
    constant = len(set(gold)) == 1 or len(set(predicted)) == 1
    wanted = (0, 0) if constant else (pearsonr(gold, predicted)[0], spearmanr(gold, predicted)[0])
    assert (metrics["pearson"].value, metrics["spearman"].value) == pytest.approx(
        [100 * value for value in wanted], abs=1e-9
    )


@pytest.mark.parametrize(("metric", "reference"), [("pearson", pearsonr), ("spearman", spearmanr)])
def test_correlation_interval_is_close_to_the_bootstrap_interval(metric, reference):
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 16, 200) / 3
    predicted = 0.5 * gold + rng.normal(size=200)
    drawn = [rng.integers(200, size=200) for _ in range(1000)]
    low, high = np.percentile([100 * reference(gold[i], predicted[i])[0] for i in drawn], [2.5, 97.5])
    interval = scored("stsb", gold.tolist(), predicted.tolist())[metric]
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=2.5)


@pytest.mark.parametrize("name", FILES)
def test_target_scores_100_and_a_replaced_reference_is_the_only_one_scored(name, write, load):
    write("dev.tsv", FILES[name][0])
    task = get_task(name)
    document = load(task, data="dev.tsv")[0]
    assert task.score(document, task.target(document)).values == dict.fromkeys(task.metrics, 100.0)
    text = "4.5" if task.is_regression else next(label for label in task.labels if label != task.target(document))
    other = task.with_reference(document, text)
    assert (task.target(other), other.key) == (text, document.key)
    assert task.score(document, text).values[task.consistency_metric] < 100
    assert task.score(other, text).values[task.consistency_metric] == 100
