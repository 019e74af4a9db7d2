"""Fixtures that write small files in the formats in which the data sets are published."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exitbench.tasks.base import Source, Task
from exitbench.tasks.document import Document

WriteFile = Callable[[str, object], Path]


@pytest.fixture
def write(tmp_path: Path) -> WriteFile:
    """Return a function that writes text, bytes or (anything else) JSON; a name ending in .gz is compressed."""

    def write_file(name: str, content: object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str | bytes) else json.dumps(content)
        data = text.encode() if isinstance(text, str) else text
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path

    return write_file


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., list[Document]]:
    """Return a function that loads a task's documents from files in `tmp_path`, given as in ``pairs="f.txt"``."""

    def load_files(task: Task, limit: int | None = None, **files: str) -> list[Document]:
        return task.load(Source("local", tmp_path, tuple(files.items())), "test", limit)

    return load_files


def squad_file(questions: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a SQuAD v1.1 file with one article of one paragraph."""
    paragraph = {"context": "Ada wrote the first program. She lived in London.", "qas": questions}
    return {"version": "1.1", "data": [{"title": "Ada", "paragraphs": [paragraph]}]}


@pytest.fixture
def squad_questions() -> list[dict[str, Any]]:
    return [
        {"id": "q1", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]},
        {
            "id": "q2",
            "question": "Where?",
            "answers": [{"text": "London", "answer_start": 42}, {"text": "in London", "answer_start": 39}],
        },
    ]


@pytest.fixture
def squad_json(squad_questions: list[dict[str, Any]]) -> dict[str, Any]:
    return squad_file(squad_questions)
