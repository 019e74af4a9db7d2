"""Prompt styles: the exact texts of each task, and the choice of few-shot examples."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from exitbench.tasks.base import Task
from exitbench.tasks.document import Document
from exitbench.tasks.registry import get_task
from exitbench.tasks.styles import Prompting, PromptStyle, choose_examples, prompting

FIELDS = {
    "squad": {"id": "1", "title": "T", "context": "Rome is old.", "question": "What is old?"},
    "samsum": {"id": "1", "dialogue": "A: hi\r\nB: hi"},
    "dialogsum": {"id": "1", "dialogue": "A: hi"},
    "cnn-dailymail": {"id": "1", "article": "It rained."},
    "bigpatent": {"id": "1", "description": "A wheel."},
    "wmt16-de-en": {"id": "1", "de": "Guten Tag."},
}
QUESTIONS = {
    "squad": "Passage: Rome is old.\nQuestion: What is old?",
    "samsum": "Dialogue: A: hi\r\nB: hi",
    "dialogsum": "Dialogue: A: hi",
    "cnn-dailymail": "Article: It rained.",
    "bigpatent": "Description: A wheel.",
    "wmt16-de-en": "German: Guten Tag.",
}
INSTRUCTIONS = {
    "squad": "Answer the question with the shortest span of the passage.",
    "samsum": "Summarize the dialogue in one or two sentences.",
    "dialogsum": "Summarize the dialogue in one or two sentences.",
    "cnn-dailymail": "Summarize the article in three short sentences, one on each line.",
    "bigpatent": "Summarize the description of the invention in one paragraph.",
    "wmt16-de-en": "Translate the sentence from German to English.",
}
IN_CHATS = {"squad": " Write only this span.", "wmt16-de-en": " Write only the translation."}
CUES = {"squad": "Answer:", "wmt16-de-en": "English:"}


def styled(task: Task, style: PromptStyle, template: str | None = None, *examples: Document) -> Prompting:
    assert task.style_texts is not None
    return prompting(task.style_texts, task, style, template, examples)


@pytest.mark.parametrize("name", FIELDS)
def test_completion_and_chat_prompts_of_each_task_have_the_exact_text(name: str) -> None:
    task, fields = get_task(name), FIELDS[name]
    instruction, question, cue = INSTRUCTIONS[name], QUESTIONS[name], CUES.get(name, "Summary:")
    assert styled(task, "completion").text(fields) == f"{instruction}\n\n{question}\n{cue}"
    assert styled(task, "chat").text(fields) == f"{instruction}{IN_CHATS.get(name, '')}\n\n{question}"


def squad(key: str, context: str = "") -> Document:
    answers = {"text": [f"answer {key}"], "answer_start": [0]}
    return Document.from_fields(
        {"id": key, "title": "T", "context": context or f"passage {key}", "question": "What?", "answers": answers}
    )


def test_few_shot_examples_precede_the_question_with_their_answers() -> None:
    result = styled(get_task("squad"), "completion", None, squad("1"), squad("2")).text(squad("3").fields)
    assert result == (
        "Answer the question with the shortest span of the passage.\n\n"
        "Passage: passage 1\nQuestion: What?\nAnswer: answer 1\n\n"
        "Passage: passage 2\nQuestion: What?\nAnswer: answer 2\n\n"
        "Passage: passage 3\nQuestion: What?\nAnswer:"
    )


def test_custom_template_replaces_instruction_question_and_cue() -> None:
    result = styled(get_task("squad"), "completion", "{{{title}}} {question} =", squad("1")).text(squad("2").fields)
    assert result == "{T} What? = answer 1\n\n{T} What? ="


def test_prompting_round_trips_through_json() -> None:
    whole = styled(get_task("squad"), "completion", None, squad("1"))
    record = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(whole).items()}
    assert Prompting.from_json(record) == whole


def test_few_shot_examples_use_distinct_passages_and_none_under_evaluation() -> None:
    task = get_task("squad")
    pool = [squad(str(number), f"passage {number % 8}") for number in range(40)]
    evaluated = [squad("other", "passage 3"), squad("another", "passage 5")]
    chosen = choose_examples(task, pool, evaluated, 3, seed=1)
    passages = {document.fields["context"] for document in chosen}
    assert len(passages) == 3
    assert not passages & {"passage 3", "passage 5"}
    assert choose_examples(task, pool, evaluated, 40, seed=1)[6:] == [], "six passages are left"


def test_few_shot_choice_depends_only_on_the_seed_and_uses_the_shorter_half() -> None:
    task = get_task("squad")
    pool = [squad(str(number), "word " * (number + 1)) for number in range(40)]
    chosen = choose_examples(task, pool, (), 3, seed=1)
    assert chosen == choose_examples(task, reversed(pool), (), 3, seed=1)
    assert len({tuple(each.key for each in choose_examples(task, pool, (), 3, seed)) for seed in range(20)}) > 15
    lengths = [
        len(each.fields["context"].split()) for seed in range(20) for each in choose_examples(task, pool, (), 3, seed)
    ]
    assert max(lengths) <= 20
