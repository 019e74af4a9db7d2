"""Prompt styles of this project's tasks: T5's format, chats with an instruction, and completions with examples.

`t5` is the format of `Task.prompt` and `Task.causal_prompt`, which encoder-decoders and this project's trained models
know. Instruct models are asked in a chat, and base decoders continue a text that ends with a cue for the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from exitbench.tasks.templates import Pieces, parse, render

if TYPE_CHECKING:
    from exitbench.tasks.base import Task
    from exitbench.tasks.document import Document

PromptStyle = Literal["t5", "chat", "completion"]
PROMPT_STYLES: Final[tuple[PromptStyle, ...]] = get_args(PromptStyle)
OWN_FORMAT: Final[PromptStyle] = "t5"
"""Style of the task's own format, which every task has."""

_BETWEEN: Final = "\n\n"
"""Separator of instruction, examples and question."""


@dataclass(frozen=True)
class StyleTexts:
    """Texts of a task in the styles `chat` and `completion`.

    Attributes:
        instruction: What to do.
        chat_instruction: What a chat model is told in addition, because it tends to write whole sentences.
        question: Template of what the model is given.
        cue: Words after which a completion has the answer.
        stop: String that ends the answer of a completion.
        fields: Names of the fields that templates may use: all without the reference.
        examples: Default number of examples of a completion.
        hub_split: Split of the hub's data set that examples are drawn from.
    """

    instruction: str
    question: str
    cue: str
    stop: str
    fields: tuple[str, ...]
    chat_instruction: str = ""
    examples: int = 3
    hub_split: str = "train"


@dataclass(frozen=True)
class Prompting:
    """Prompts of a task in a style other than the task's own format.

    Attributes:
        style: The style; `t5` with a template of the user's.
        template: Template of a document's question, up to the cue.
        fields: Names of the fields that the template may use.
        instruction: What to do; empty for none.
        examples: Questions with answers that precede the question.
        excluded: Digests of the examples' passages, which no document of a cell may have.
    """

    style: PromptStyle
    template: str
    fields: tuple[str, ...]
    instruction: str = ""
    examples: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    @cached_property
    def _pieces(self) -> Pieces:
        return parse(self.template, frozenset(self.fields), "prompt")

    def text(self, fields: Mapping[str, Any]) -> str:
        """Return the prompt of a document with these fields."""
        parts = [self.instruction] if self.instruction else []
        return _BETWEEN.join([*parts, *self.examples, render(self._pieces, fields)])

    def excludes(self, task: Task, document: Document) -> bool:
        """Return whether a document has the passage of an example."""
        return bool(self.excluded) and _digest(task, document) in self.excluded

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Prompting:
        """Rebuild it from its JSON."""
        lists = {name: tuple(record[name]) for name in ("fields", "examples", "excluded")}
        return cls(**{**record, **lists})


def prompting(
    texts: StyleTexts, task: Task, style: PromptStyle, template: str | None, examples: Sequence[Document] = ()
) -> Prompting:
    """Return a task's prompts in a style.

    Args:
        texts: The task's texts.
        task: The task.
        style: The style; `t5` needs a template.
        template: The user's template, which replaces instruction, question and cue; None: the task's texts.
        examples: Documents that precede the question with their answers, for completions.

    Example: the question of a SQuAD document as a completion without examples.

    >>> from exitbench.tasks.registry import get_task
    >>> squad = get_task("squad")
    >>> without_examples = prompting(squad.style_texts, squad, "completion", None)
    >>> print(without_examples.text({"context": "Rome is old.", "question": "What is old?"}))
    Answer the question with the shortest span of the passage.
    <BLANKLINE>
    Passage: Rome is old.
    Question: What is old?
    Answer:
    """
    instruction = ""
    if template is None:
        template, instruction = texts.question, texts.instruction
        if style == "completion":
            template = f"{template}\n{texts.cue}"
        elif texts.chat_instruction:
            instruction = f"{instruction} {texts.chat_instruction}"
    pieces = parse(template, frozenset(texts.fields), "prompt")
    answered = tuple(f"{render(pieces, document.fields)} {task.target(document)}" for document in examples)
    excluded = tuple(_digest(task, document) for document in examples)
    return Prompting(style, template, texts.fields, instruction, answered, excluded)


def choose_examples(
    task: Task, pool: Iterable[Document], evaluated: Iterable[Document], number: int, seed: int
) -> list[Document]:
    """Return examples from a pool: those that come first in an order given by the seed.

    Only the shorter half of the pool is used, since every prompt contains the examples. No two examples have the same
    passage, and none has that of an evaluated document.
    """
    taken = {task.passage(document) for document in evaluated}
    free = {passage: document for document in pool if (passage := task.passage(document)) not in taken}
    by_length = sorted(free.values(), key=lambda document: (len(task.prompt(document)), document.key))
    shorter = by_length[: max(number, (len(by_length) + 1) // 2)]
    return sorted(shorter, key=lambda document: sha256(f"{seed} {document.key}".encode()).digest())[:number]


def _digest(task: Task, document: Document) -> str:
    return sha256(task.passage(document).encode()).hexdigest()[:16]
