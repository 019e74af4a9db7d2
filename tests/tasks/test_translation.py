"""Translation: pairs of languages, file forms, and corpus scores that equal sacrebleu's from summed statistics."""

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.base import Metric

from exitbench.errors import UserError
from exitbench.tasks.document import Document
from exitbench.tasks.registry import get_task
from exitbench.tasks.translation import Translation

TASK = Translation("wmt-en-fr")
CORPUS_SCORE = {"bleu": sacrebleu.corpus_bleu, "chrf": sacrebleu.corpus_chrf}
SENTENCE_SCORE = {"bleu": sacrebleu.sentence_bleu, "chrf": sacrebleu.sentence_chrf}

# Few words, so that n-grams repeat; punctuation, case and accents, so that tokenisation counts; empty texts.
sentences = st.lists(st.sampled_from(["le", "Le", "chat", "été", "dort,", "l'œil", "1.5", "«", "!"]), max_size=9).map(
    " ".join
)
corpora = st.lists(st.tuples(sentences, sentences), min_size=1, max_size=6)
metrics = pytest.mark.parametrize("metric", TASK.metrics)


def summands(metric: str, corpus: list[tuple[str, str]]) -> np.ndarray:
    documents = [Document.from_fields({"id": str(i), "en": "", "fr": fr}) for i, (_, fr) in enumerate(corpus)]
    scores = [TASK.score(document, output) for document, (output, _) in zip(documents, corpus, strict=True)]
    return np.array([score.summands(metric) for score in scores])


def corpus_score(metric: str, corpus: list[tuple[str, str]]) -> float:
    outputs, references = zip(*corpus, strict=True)
    return CORPUS_SCORE[metric](list(outputs), [list(references)]).score


def test_scoring_a_document_tokenizes_once_per_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    cut, count = [], Metric._extract_corpus_statistics

    def counted(metric, outputs, references):
        cut.append(type(metric).__name__)
        return count(metric, outputs, references)

    monkeypatch.setattr(Metric, "_extract_corpus_statistics", counted)
    TASK.score(
        Document.from_fields({"id": "1", "en": "", "fr": "le chat dort,"}), "un chat que nul autre test ne score"
    )
    assert sorted(cut) == ["BLEU", "CHRF"]


@metrics
@settings(max_examples=300)
@given(corpora)
def test_summed_statistics_give_sacrebleus_corpus_score(metric, corpus):
    total = summands(metric, corpus).sum(axis=0)
    assert TASK.aggregate(metric, total, np.float64(len(corpus))) == pytest.approx(
        corpus_score(metric, corpus), rel=1e-12, abs=1e-12
    )


@metrics
@settings(max_examples=50)
@given(corpora, st.data())
def test_weight_matrix_scores_every_resample_at_once(metric, corpus, data):
    picks = st.lists(st.integers(0, len(corpus) - 1), min_size=len(corpus), max_size=len(corpus))
    resamples = data.draw(st.lists(picks, min_size=1, max_size=4))
    weights = np.array([np.bincount(resample, minlength=len(corpus)) for resample in resamples])
    scores = TASK.aggregate(metric, weights @ summands(metric, corpus), weights.sum(axis=-1))
    expected = [corpus_score(metric, [corpus[i] for i in resample]) for resample in resamples]
    assert scores == pytest.approx(np.array(expected), rel=1e-12, abs=1e-12)


@metrics
@settings(max_examples=50)
@given(sentences, sentences)
def test_document_value_equals_sacrebleus_sentence_score(metric, output, reference):
    document = Document.from_fields({"id": "1", "en": "", "fr": reference})
    expected = SENTENCE_SCORE[metric](output, [reference]).score
    assert TASK.score(document, output).values[metric] == expected


def test_metric_version_names_sacrebleu_settings_and_version():
    assert "tok:13a|smooth:exp" in TASK.metric_version
    assert "nc:6|nw:0" in TASK.metric_version
    assert TASK.metric_version.count(f"version:{sacrebleu.__version__}") == 2


def test_parallel_files_and_pairs_give_the_same_documents(load, write):
    write("a.en.gz", "One.\nTwo.\n")
    write("a.fr", "Un.\nDeux.\n")
    write("pairs.txt", "One.\tUn.\nTwo.\tDeux.\n")
    documents = load(TASK, en="a.en.gz", fr="a.fr")
    assert [dict(document.fields) for document in documents] == [
        {"id": "1", "en": "One.", "fr": "Un."},
        {"id": "2", "en": "Two.", "fr": "Deux."},
    ]
    assert load(TASK, pairs="pairs.txt") == documents


def test_repeated_lines_keep_distinct_keys(load, write):
    write("pairs.txt", "Yes.\tOui.\nYes.\tOui.\n")
    assert len({document.key for document in load(TASK, pairs="pairs.txt")}) == 2


def test_prompt_names_the_languages_and_target_is_the_translation():
    document = Document.from_fields({"id": "1", "en": "One.", "fr": "Un."})
    assert TASK.prompt(document) == "translate English to French: One."
    assert TASK.target(document) == "Un."


def test_language_pairs_translate_in_both_directions(load, write):
    write("t.de", "Eins.\n")
    write("t.en", "One.\n")
    for name, prompt, target in (
        ("iwslt14-de-en", "translate German to English: Eins.", "One."),
        ("wmt22-en-de", "translate English to German: One.", "Eins."),
    ):
        task = get_task(name)
        (document,) = load(task, de="t.de", en="t.en")
        assert (task.prompt(document), task.target(document)) == (prompt, target)
        assert task.with_reference(document, "x").fields == {**document.fields, task.pair.target: "x"}


def test_english_is_the_first_column_of_pair_files(load, write):
    write("pairs.txt", "One.\tEins.\n")
    (forward,), (backward,) = (load(get_task(name), pairs="pairs.txt") for name in ("wmt-en-de", "wmt-de-en"))
    assert forward.fields == backward.fields == {"id": "1", "en": "One.", "de": "Eins."}


def test_bleu_of_chinese_uses_sacrebleus_zh_tokenizer():
    task = get_task("wmt22-en-zh")
    document = Document.from_fields({"id": "1", "en": "", "zh": "我在很早以前就去过北京。"})
    output = "我在很早以前去过北京。"
    expected = sacrebleu.corpus_bleu([output], [[task.target(document)]], tokenize="zh").score
    total = np.array(task.score(document, output).summands("bleu"))
    assert task.aggregate("bleu", total, np.float64(1)) == pytest.approx(expected, rel=1e-12)
    assert "tok:zh" in task.metric_version


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("wmt-xx-en", "unknown task 'wmt-xx-en'. Languages: bn, cs, de"),
        ("wmt16-de-de", "translates from de to itself"),
        ("wmt13-de-en", "unknown"),
    ],
)
def test_unsupported_language_pairs_are_refused(name, says):
    with pytest.raises(UserError, match=says):
        get_task(name)
