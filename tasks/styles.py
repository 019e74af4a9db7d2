"""Prompt styles of this project's tasks: T5's format, chats with an instruction, and completions with examples.

Style `t5` is the format of `Task.prompt` and `Task.causal_prompt`, which encoder-decoder models and this project's
trained models know. Style `chat` is for instruction-tuned models. In style `completion`, a base model continues a text
that ends with a cue for the answer.
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
        instruction: Instruction at the start of the prompt.
        chat_instruction: Sentence that style `chat` adds to the instruction, because chat models tend to write whole
            sentences.
        question: Template of the document's input, with names of fields in braces.
        cue: Text at the end of a `completion` prompt, after which the model writes the answer, such as `Answer:`.
        stop: String at which the generated answer ends, in style `completion`.
        fields: Names of the document's fields that templates may use: all but the reference.
        examples: Default number of few-shot examples in style `completion`.
        hub_split: Split of the hub's data set from which few-shot examples are drawn.
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
    """Rule that builds a task's prompts in a style other than the task's own format.

    Attributes:
        style: Prompt style; `t5` only together with the user's own template.
        template: Template of a document's question, including the cue for the answer, if any.
        fields: Names of the fields that the template may use.
        instruction: Instruction at the start of the prompt; empty for none.
        examples: Few-shot examples as text, each a question with its answer.
        excluded: Digests of the examples' passages; documents with one of these passages are not evaluated.
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
        """Return the prompt of a document, given its fields by name."""
        parts = [self.instruction] if self.instruction else []
        return _BETWEEN.join([*parts, *self.examples, render(self._pieces, fields)])

    def excludes(self, task: Task, document: Document) -> bool:
        """Return whether a document shares its passage with a few-shot example, and so must not be evaluated."""
        return bool(self.excluded) and _digest(task, document) in self.excluded

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Prompting:
        """Rebuild a `Prompting` from its JSON record."""
        lists = {name: tuple(record[name]) for name in ("fields", "examples", "excluded")}
        return cls(**{**record, **lists})


def prompting(
    texts: StyleTexts, task: Task, style: PromptStyle, template: str | None, examples: Sequence[Document] = ()
) -> Prompting:
    """Return the rule that builds a task's prompts in a style.

    Args:
        texts: The task's texts for the styles `chat` and `completion`.
        task: The task.
        style: The style; `t5` requires a template.
        template: The user's template, which replaces instruction, question and cue; None: use those of `texts`.
        examples: Documents that become few-shot examples in style `completion`.

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
    """Return `number` few-shot examples from a pool of documents, in an order determined by the seed.

    Only the shorter half of the pool is used, since every prompt contains the examples. No two examples have the same
    passage, and no example has the passage of an evaluated document.
    """
    taken = {task.passage(document) for document in evaluated}
    free = {passage: document for document in pool if (passage := task.passage(document)) not in taken}
    by_length = sorted(free.values(), key=lambda document: (len(task.prompt(document)), document.key))
    shorter = by_length[: max(number, (len(by_length) + 1) // 2)]
    return sorted(shorter, key=lambda document: sha256(f"{seed} {document.key}".encode()).digest())[:number]


def _digest(task: Task, document: Document) -> str:
    return sha256(task.passage(document).encode()).hexdigest()[:16]
