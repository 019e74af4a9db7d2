"""SQuAD v1.1: extractive question answering."""

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from exitbench.errors import UserError
from exitbench.tasks.base import Task
from exitbench.tasks.document import Document, DocumentScore
from exitbench.tasks.sources import member, read_hub, read_json, require
from exitbench.tasks.styles import StyleTexts

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower the case, then remove ASCII punctuation, English articles and surplus white space, in this order.

    The order matters: "a-b" becomes "ab" before articles are removed, so its "a" stays.

    >>> normalise("The  cat's hat!")
    'cats hat'
    """
    without_punctuation = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", without_punctuation).split())


def exact_match(output: str, answers: Iterable[str]) -> float:
    """Return 1.0 if the output equals any answer after normalisation, else 0.0."""
    normalised = normalise(output)
    return float(any(normalised == normalise(answer) for answer in answers))


def token_f1(output: str, answers: Iterable[str]) -> float:
    """Return the highest bag-of-tokens F1 over the answers, 0..1.

    As in the official v1.1 script, two texts that are both empty after normalisation score 0.

    >>> round(token_f1("the black cat", ["cat", "a dog"]), 3)
    0.667
    """
    return max(_f1(normalise(output).split(), normalise(answer).split()) for answer in answers)


def _f1(output: list[str], answer: list[str]) -> float:
    shared = sum((Counter(output) & Counter(answer)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(output), shared / len(answer)
    return 2 * precision * recall / (precision + recall)


FIELDS = ("id", "title", "context", "question", "answers")


class Squad(Task):
    """Extractive question answering: SQuAD v1.1, and data sets in the same JSON format.

    Metrics: `f1` and `em`, 0..100, the maximum over the reference answers.
    """

    name = "squad"
    metric_version = "squad-v1.1-rules|1"
    metrics = ("f1", "em")
    consistency_metric = "f1"
    default_max_new_tokens = 32
    local_roles = (frozenset({"data"}),)
    style_texts = StyleTexts(
        instruction="Answer the question with the shortest span of the passage.",
        chat_instruction="Write only this span.",
        question="Passage: {context}\nQuestion: {question}",
        cue="Answer:",
        stop="\n",
        fields=("id", "title", "context", "question"),
    )

    def prompt(self, doc: Document) -> str:
        """Return the prompt in T5's format: the question, then the context."""
        return f"question: {doc.fields['question']} context: {doc.fields['context']}"

    def causal_prompt(self, doc: Document) -> str:
        """Return the prompt with the context before the question: a decoder-only model answers what it reads last."""
        return f"context: {doc.fields['context']} question: {doc.fields['question']}"

    def passage(self, doc: Document) -> str:
        """Return the passage, which several questions may share."""
        return str(doc.fields["context"])

    def group(self, doc: Document) -> str:
        """Return the title of the article, so that all passages of an article are in the same part (train or test)."""
        return str(doc.fields["title"])

    def target(self, doc: Document) -> str:
        """Return the document's first reference answer."""
        return str(doc.fields["answers"]["text"][0])

    def with_reference(self, doc: Document, text: str) -> Document:
        """Return a copy of the document with `text` as its only reference."""
        return Document(doc.key, {**doc.fields, "answers": {"text": [text], "answer_start": [0]}})

    def score(self, doc: Document, output: str) -> DocumentScore:
        """Return F1 and exact match of an answer: for each, the best value over the reference answers."""
        answers = doc.fields["answers"]["text"]
        return DocumentScore({"f1": 100 * token_f1(output, answers), "em": 100 * exact_match(output, answers)})

    def _read_local(self, files: Mapping[str, Path]) -> list[dict[str, Any]]:
        return read_squad(files["data"])

    def _read_hub(self, split: str) -> list[dict[str, Any]]:
        return [{name: row[name] for name in FIELDS} for row in read_hub("rajpurkar/squad", None, split)]


def read_squad(path: Path) -> list[dict[str, Any]]:
    """Flatten a SQuAD v1.1 JSON file to one record per question, with the hub's field names.

    Raises:
        UserError: A record does not have the format of SQuAD v1.1; the message names the record and the key.
    """
    root = require(read_json(path), dict, str(path))
    records = []
    for a, entry in enumerate(member(root, "data", list, str(path))):
        location = f"{path}, data[{a}]"
        article = require(entry, dict, location)
        title = member(article, "title", str, location)
        for p, paragraph in enumerate(member(article, "paragraphs", list, location)):
            records += _paragraph(paragraph, title, f"{location}.paragraphs[{p}]")
    return records


def _paragraph(value: object, title: str, location: str) -> list[dict[str, Any]]:
    paragraph = require(value, dict, location)
    context = member(paragraph, "context", str, location)
    return [
        _question(question, title, context, f"{location}.qas[{q}]")
        for q, question in enumerate(member(paragraph, "qas", list, location))
    ]


def _question(value: object, title: str, context: str, location: str) -> dict[str, Any]:
    question = require(value, dict, location)
    answers = member(question, "answers", list, location)
    if not answers:
        raise UserError(
            f"{location}: has no answers. SQuAD v1.1 has at least one for each question; "
            "the unanswerable questions of v2.0 have another metric and are not part of this task."
        )
    places = [f"{location}.answers[{i}]" for i in range(len(answers))]
    pairs = [(require(answer, dict, place), place) for answer, place in zip(answers, places, strict=True)]
    return {
        "id": member(question, "id", str, location),
        "title": title,
        "context": context,
        "question": member(question, "question", str, location),
        "answers": {
            "text": [member(answer, "text", str, place) for answer, place in pairs],
            "answer_start": [member(answer, "answer_start", int, place) for answer, place in pairs],
        },
    }
