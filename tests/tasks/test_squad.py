"""SQuAD v1.1: its file form, its prompt, and the official rules of exact match and F1."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitbench.errors import UserError
from exitbench.tasks.base import Source
from exitbench.tasks.squad import Squad, exact_match, normalise, token_f1

texts = st.text(alphabet=st.sampled_from("ab The,.-'é \t"), max_size=20)


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("The Beatles!", "beatles"),
        ("an  apple,\ta day", "apple day"),
        ("U.S.A.", "usa"),
        ("a-b", "ab"),
        ("a - b", "b"),
        ("theatre and another", "theatre and another"),
        ("24–10", "24–10"),
        ("$1,000.50", "100050"),
        ("“quoted”", "“quoted”"),
        ("The", ""),
        (" \n", ""),
        ("the\u00a0Nile", "nile"),
        ("ÉTÉ", "été"),
    ],
)
def test_normalisation_follows_the_official_script(text, normalised):
    assert normalise(text) == normalised


@pytest.mark.parametrize(
    ("output", "answers", "em", "f1"),
    [
        ("the Denver Broncos.", ["Denver Broncos"], 1.0, 1.0),
        ("Denver", ["Denver Broncos", "Carolina Panthers"], 0.0, 2 / 3),
        ("Denver Broncos", ["Broncos", "The Denver Broncos"], 1.0, 1.0),
        ("Broncos Denver", ["Denver Broncos"], 0.0, 1.0),
        ("x x y", ["x y y"], 0.0, 2 / 3),
        ("x x x", ["x"], 0.0, 0.5),
        ("Paris", ["London"], 0.0, 0.0),
        ("", ["London"], 0.0, 0.0),
        ("the", ["A"], 1.0, 0.0),
    ],
)
def test_scores_follow_the_official_script(output, answers, em, f1):
    assert exact_match(output, answers) == em
    assert token_f1(output, answers) == pytest.approx(f1)


@given(texts, texts)
def test_f1_is_symmetric_within_0_and_1_and_no_less_than_a_non_empty_exact_match(prediction, other):
    f1 = token_f1(prediction, [other])
    assert f1 == pytest.approx(token_f1(other, [prediction]))
    assert 0 <= f1 <= 1
    if normalise(prediction):
        assert f1 >= exact_match(prediction, [other])


@given(texts, st.lists(texts, min_size=1, max_size=3), texts)
def test_additional_reference_never_lowers_a_score(output, answers, extra):
    assert token_f1(output, [*answers, extra]) >= token_f1(output, answers)
    assert exact_match(output, [*answers, extra]) >= exact_match(output, answers)


@pytest.mark.parametrize("name", ["dev.json", "dev.json.gz"])
def test_each_question_becomes_one_document_in_the_hubs_format(load, write, squad_json, name):
    write(name, squad_json)
    first, second = load(Squad(), data=name)
    assert first.fields["id"] == "q1"
    assert second.fields == {
        "id": "q2",
        "title": "Ada",
        "context": "Ada wrote the first program. She lived in London.",
        "question": "Where?",
        "answers": {"text": ["London", "in London"], "answer_start": [42, 39]},
    }


def test_train_and_test_parts_share_no_article_and_cover_the_file(tmp_path, write, squad_json):
    (article,) = squad_json["data"]
    write("dev.json", {"data": [{**article, "title": f"T{n}"} for n in range(60)]})
    whole, train, test = (
        Squad().load(Source("local", tmp_path, (("data", "dev.json"),), part=part), "test", None)
        for part in ("all", "train", "test")
    )
    assert sorted([*train, *test], key=whole.index) == whole
    titles = [{document.fields["title"] for document in part} for part in (train, test)]
    assert not titles[0] & titles[1]
    assert 40 <= len(titles[0]) <= 55  # four fifths of 60, by a hash


def test_prompts_target_and_score_have_the_expected_values(load, write, squad_json):
    write("dev.json", squad_json)
    document = load(Squad(), data="dev.json")[1]
    assert Squad().prompt(document) == ("question: Where? context: Ada wrote the first program. She lived in London.")
    assert (
        Squad().causal_prompt(document) == "context: Ada wrote the first program. She lived in London. question: Where?"
    )
    assert Squad().target(document) == "London"
    assert Squad().score(document, "in London").values == {"f1": 100.0, "em": 100.0}


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda root: root.pop("data"), r"dev\.json: key 'data' is missing\. Present: version\."),
        (lambda root: root["data"][0].pop("title"), r"data\[0\]: key 'title' is missing"),
        (lambda root: root["data"].append("x"), r"data\[1\]: is a string\. Needed: an object"),
        (
            lambda root: root["data"][0]["paragraphs"][0].pop("context"),
            r"data\[0\]\.paragraphs\[0\]: key 'context' is missing",
        ),
        (
            lambda root: root["data"][0]["paragraphs"][0]["qas"][1].pop("id"),
            r"data\[0\]\.paragraphs\[0\]\.qas\[1\]: key 'id' is missing",
        ),
        (
            lambda root: root["data"][0]["paragraphs"][0]["qas"][1]["answers"].clear(),
            r"data\[0\]\.paragraphs\[0\]\.qas\[1\]: has no answers",
        ),
        (
            lambda root: root["data"][0]["paragraphs"][0]["qas"][1]["answers"][1].update(text=7),
            r"qas\[1\]\.answers\[1\], key 'text': is a whole number\. Needed: a string",
        ),
    ],
)
def test_malformed_file_error_names_the_record_and_the_key(load, write, squad_json, damage, complaint):
    damage(squad_json)
    write("dev.json", squad_json)
    with pytest.raises(UserError, match=complaint):
        load(Squad(), data="dev.json")
