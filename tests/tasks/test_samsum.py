"""SAMSum: its file form, its prompt, and ROUGE F-measures with stemming."""

import pytest

from exitbench.errors import UserError
from exitbench.tasks.document import Document
from exitbench.tasks.samsum.task import Samsum


def document(summary: str) -> Document:
    return Document.from_fields({"id": "1", "dialogue": "A: hi\r\nB: hello", "summary": summary})


@pytest.mark.parametrize(
    ("output", "summary", "rouge1", "rouge2", "rouge_l"),
    [
        ("tom bought bread", "tom bought bread", 100.0, 100.0, 100.0),
        ("tom bought", "tom bought bread", 80.0, 200 / 3, 80.0),
        ("bread bought tom", "tom bought bread", 100.0, 0.0, 100 / 3),
        ("Dogs running", "dog run", 100.0, 100.0, 100.0),
        ("", "dog run", 0.0, 0.0, 0.0),
    ],
)
def test_scores_are_f_measures_with_stemming_on_a_scale_of_100(output, summary, rouge1, rouge2, rouge_l):
    values = Samsum().score(document(summary), output).values
    assert values == pytest.approx({"rougeL": rouge_l, "rouge1": rouge1, "rouge2": rouge2})


def test_prompt_and_target_are_the_texts_as_they_are():
    assert Samsum().prompt(document("They greet.")) == "summarize: A: hi\r\nB: hello"
    assert Samsum().target(document("They greet.")) == "They greet."


def test_dialogues_that_repeat_keep_distinct_keys_by_their_ids(load, write):
    record = {"dialogue": "A: hi", "summary": "A says hi."}
    write("val.json", [{"id": "1", **record}, {"id": "2", **record}])
    first, second = load(Samsum(), data="val.json")
    assert first.key != second.key


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"id": "1"}, r"val\.json: is an object\. Needed: a list"),
        ([{"id": "1", "dialogue": "", "summary": ""}, {"id": "2", "dialogue": ""}], r"\[1\]: key 'summary' is missing"),
        ([{"id": 1, "dialogue": "", "summary": ""}], r"\[0\], key 'id': is a whole number\. Needed: a string"),
        (["text"], r"\[0\]: is a string\. Needed: an object"),
    ],
)
def test_a_file_of_another_form_names_the_record_and_the_key(load, write, content, complaint):
    write("val.json", content)
    with pytest.raises(UserError, match=complaint):
        load(Samsum(), data="val.json")
