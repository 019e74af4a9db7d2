"""References scored against themselves: metrics under which no answer could be right are named, with the cause."""

from __future__ import annotations

import pytest

from exitbench.tasks import builtin
from exitbench.tasks.base import CHECKED, self_score_remarks
from exitbench.tasks.declared import Declaration, DeclaredTask
from exitbench.tasks.document import Document
from exitbench.tasks.registry import get_task

ROUGE = "rouge-score keeps only the letters a to z and the digits 0 to 9"
SQUAD = "SQuAD's rules leave out articles (a, an, the) and punctuation"
BLEU = "BLEU counts runs of four words, and sacrebleu's tokenizer cuts the references into fewer"
ENGLISH = "the quick brown fox jumps over the dog"
SCRIPTS = ("Москва — столица России.", "東京は日本の首都です。", "पूर्व प्रधानमन्त्री", "สวัสดี")


def remarks(metric: str, *references: str | list[str], bleu_tokenize: str | None = None) -> tuple[str, ...]:
    """Return the remarks on a declared task with these references and one metric."""
    names = (("x", "x"), ("y", "y"))
    task = DeclaredTask(Declaration("t", names, "{x}", "y", (metric,), bleu_tokenize=bleu_tokenize))
    documents = [Document.from_fields({"x": str(number), "y": text}) for number, text in enumerate(references)]
    return self_score_remarks(task, documents)


@pytest.mark.parametrize("metric", ["exact_match", "em", "f1", "rouge1", "rouge2", "rougeL", "bleu", "chrf"])
def test_english_references_get_no_remark(metric: str) -> None:
    assert remarks(metric, ENGLISH, "a lazy cat sleeps on the warm mat") == ()


@pytest.mark.parametrize("metric", ["rouge1", "rougeL"])
def test_rouge_self_score_of_non_latin_scripts_is_zero(metric: str) -> None:
    expected = f"{metric} of 4 of 5 references is 0 even for the reference itself: {ROUGE}"
    assert remarks(metric, ENGLISH, *SCRIPTS) == (expected,)


def test_rouge2_self_score_of_one_word_is_zero() -> None:
    expected = f"rouge2 of 1 of 2 references is 0 even for the reference itself: {ROUGE}, and counts pairs of words"
    assert remarks("rouge2", ENGLISH, "fox") == (expected,)


@pytest.mark.parametrize("article", ["A", "The", "..."])
def test_f1_self_score_of_an_answer_normalized_to_nothing_is_zero(article: str) -> None:
    expected = f"f1 of 1 of 2 references is 0 even for the reference itself: {SQUAD}"
    assert remarks("f1", article, ["B", "b b"]) == (expected,)
    assert remarks("em", article, "B") == ()


def test_bleu_remark_needs_most_references_under_four_words() -> None:
    expected = f"bleu of 2 of 3 references is 0 even for the reference itself: {BLEU}"
    assert remarks("bleu", *SCRIPTS[1:3], ENGLISH) == (expected,)
    assert remarks("bleu", SCRIPTS[1], ENGLISH, ENGLISH[4:]) == ()


@pytest.mark.parametrize("tokenizer", ["char", "zh"])
def test_char_and_zh_tokenizers_split_japanese_into_words(tokenizer: str) -> None:
    assert remarks("bleu", SCRIPTS[1], bleu_tokenize=tokenizer) == ()


def test_only_the_first_documents_are_checked() -> None:
    (remark,) = remarks("rouge1", *SCRIPTS, *[ENGLISH] * 2 * CHECKED)
    assert f"4 of {CHECKED} references" in remark


@pytest.mark.parametrize("name", ["squad", "samsum", "wmt-en-fr", "wmt17-en-zh", "sst2"])
def test_builtin_references_get_no_remark(name: str) -> None:
    """This test replaces the check in plans, which skip built-in data."""
    task = get_task(name)
    source_task = "wmt-en-fr" if name.startswith("wmt") else name
    documents = builtin.documents(source_task, "test", 60)
    if name == "wmt17-en-zh":
        documents = [task.with_reference(document, SCRIPTS[1] + document.key) for document in documents]
    assert self_score_remarks(task, documents) == ()
