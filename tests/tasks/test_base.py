"""Tasks: documents have stable keys, a smaller limit gives a subset, and summed statistics give the metric."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitbench.errors import UserError
from exitbench.tasks import builtin
from exitbench.tasks.base import Source, documents_sha256, part_of, take_by_hash
from exitbench.tasks.document import Document, DocumentScore
from exitbench.tasks.glue import DATA_SETS
from exitbench.tasks.registry import get_task, task_names
from exitbench.tasks.summarisation import Summarisation
from exitbench.tasks.translation import Translation

FIELDS = {"id": "1", "en": "Coffee, please.", "fr": "Un café, s'il vous plaît."}


def numbered(count: int) -> list[Document]:
    return [Document.from_fields({"id": str(number)}) for number in range(count)]


def test_document_key_equals_the_recorded_golden_key():
    assert Document.from_fields(FIELDS).key == "0b53690696c0807b"


def test_document_key_ignores_field_order_and_token_kinds():
    reversed_fields = dict(reversed(FIELDS.items()))
    assert Document.from_fields(reversed_fields, ("copy",)).key == Document.from_fields(FIELDS).key


@pytest.mark.parametrize("name", FIELDS)
def test_document_key_depends_on_every_field(name):
    assert Document.from_fields({**FIELDS, name: "other"}).key != Document.from_fields(FIELDS).key


@given(st.integers(1, 40), st.integers(1, 40))
def test_larger_limit_selects_a_superset_in_file_order(small, large):
    documents = numbered(30)
    fewer, more = (take_by_hash(documents, limit) for limit in sorted((small, large)))
    assert len(fewer) == min(small, large, 30)
    assert [document for document in more if document in fewer] == fewer
    assert [document for document in documents if document in more] == more


@pytest.mark.parametrize("name", builtin.TASKS)
def test_builtin_documents_are_limited_by_hash(name):
    documents = builtin.documents(name, "calibration", None, seed=3)
    limited = get_task(name).load(Source("builtin"), "calibration", 10, seed=3)
    assert limited == take_by_hash(documents, 10)
    assert limited[0].token_kinds


@pytest.mark.parametrize("name", builtin.TASKS)
def test_the_target_of_a_built_in_document_scores_100(name):
    task = get_task(name)
    for document in task.load(Source("builtin"), "validation", 10):
        values = task.score(document, task.target(document)).values
        assert [values[metric] for metric in task.metrics] == pytest.approx([100.0] * len(task.metrics))


def test_limit_does_not_select_the_first_documents():
    assert take_by_hash(numbered(30), 5) != numbered(5)


def test_digest_depends_on_fields_and_order():
    first, second = numbered(2)
    digests = {documents_sha256(documents) for documents in ([first, second], [second, first], [first], [second], [])}
    assert len(digests) == 5


def test_digest_equals_the_recorded_golden_digest():
    assert (
        documents_sha256([Document.from_fields(FIELDS)])
        == "1b58cc620869dd96eb19367533879c27883b616a9e31d811f34052bcd7308b4b"
    )


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(load, write, limit):
    write("f.txt", "a\tb\n")
    with pytest.raises(UserError, match=f"^wmt-en-fr: limit is {limit}\\."):
        load(Translation("wmt-en-fr"), limit=limit, pairs="f.txt")


def test_duplicate_record_is_refused(load, write):
    record = {"id": "1", "dialogue": "A: hi", "summary": "A says hi."}
    write("val.json", [record, {**record, "id": "2"}, record])
    with pytest.raises(UserError, match=r"^samsum: record 3 repeats record 1 in every field \(id '1'\)"):
        load(Summarisation("samsum"), data="val.json")


def test_a_source_without_records_is_refused(load, write):
    write("val.json", [])
    with pytest.raises(UserError, match=r"^samsum: the local source holds no records for split 'test'"):
        load(Summarisation("samsum"), data="val.json")


def test_empty_part_of_a_file_is_refused(tmp_path, write):
    fields = {"id": "1", "dialogue": "A: hi", "summary": "A says hi."}
    write("val.json", [fields])
    task = Summarisation("samsum")
    empty = "train" if part_of(task.group(Document.from_fields(fields))) == "test" else "test"
    with pytest.raises(UserError, match=rf"^samsum: part '{empty}' of val\.json has no documents"):
        task.load(Source("local", tmp_path, (("data", "val.json"),), part=empty), "test", None)


def test_unknown_source_kind_is_refused():
    with pytest.raises(UserError, match=r"unknown kind 'locl'\. Did you mean 'local'\?"):
        Source("locl")  # type: ignore[arg-type]


def test_mean_aggregation_supports_leading_dimensions():
    values = np.array([[10.0], [20.0], [60.0]])
    weights = np.array([[[1, 1, 1], [3, 0, 0]]])
    means = Summarisation("samsum").aggregate("rouge1", weights @ values, weights.sum(axis=-1))
    assert means.tolist() == [[30.0, 10.0]]


class Edits(Summarisation):
    """Task with two metrics: the number of edits needed, at most 2, and a similarity from -1 to 1."""

    metrics = ("edits", "likeness")
    lower_is_better = frozenset({"edits"})

    def bounds(self, metric):
        return {"edits": (0.0, 2.0), "likeness": (-1.0, 1.0)}[metric]


@pytest.mark.parametrize(
    ("metric", "value", "reference", "shortfall"),
    [
        ("edits", 2.0, 0.5, 0.75),  # worse by three quarters of the scale
        ("edits", 0.5, 2.0, -0.75),
        ("edits", 0.5, None, 0.25),  # than none, the best
        ("likeness", -1.0, 0.5, 0.75),
        ("likeness", 0.5, -1.0, -0.75),
        ("likeness", 0.5, None, 0.25),
    ],
)
def test_shortfall_is_relative_to_the_scale_and_positive_if_worse(metric, value, reference, shortfall):
    assert Edits("samsum").shortfall(metric, value, reference) == shortfall


def test_shortfall_of_an_unbounded_metric_is_the_point_difference_over_100():
    class Unbounded(Edits):
        def bounds(self, metric):
            return None

    assert Unbounded("samsum").shortfall("edits", 30.0, 20.0) == 0.1


def test_summands_are_a_metrics_statistics_or_else_its_value():
    score = DocumentScore({"bleu": 12.0, "f1": 50.0}, {"bleu": [3.0, 4.0]})
    assert (score.summands("bleu"), score.summands("f1")) == ([3.0, 4.0], [50.0])


def test_registry_finds_every_task_by_name():
    of_texts = {"bigpatent", "cnn-dailymail", "dialogsum", "samsum", "squad", "wmt-en-fr"}
    assert task_names() == tuple(sorted({*of_texts, *DATA_SETS}))
    assert get_task("iwslt14-de-en").name == "iwslt14-de-en"
    assert [get_task(name).name for name in task_names()] == list(task_names())


def test_an_unknown_task_is_refused_with_a_suggestion():
    with pytest.raises(UserError, match=r"^unknown task 'wmt_en_fr'\. Did you mean 'wmt-en-fr'\?"):
        get_task("wmt_en_fr")


@pytest.mark.parametrize("name", [name for name in builtin.TASKS if get_task(name).output_type == "generate_until"])
def test_replaced_reference_is_the_only_one_scored(name):
    """For textual consistency, full depth's text replaces the reference, whether it is right or wrong."""
    task = get_task(name)
    assert task.consistency_metric in task.metrics
    for document in task.load(Source("builtin"), "validation", 5):
        given_answer = "something else was said here"
        other = task.with_reference(document, given_answer)
        assert task.target(other) == given_answer
        assert task.score(other, given_answer).values[task.consistency_metric] == pytest.approx(100)
        assert task.score(other, task.target(document)).values[task.consistency_metric] < 100
        assert (other.key, task.prompt(other)) == (document.key, task.prompt(document))
