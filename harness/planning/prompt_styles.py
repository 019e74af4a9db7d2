"""Choose the prompt style of a task for a model, and the few-shot examples of its prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from exitbench.errors import UserError
from exitbench.harness.cells.job import DataRequest
from exitbench.harness.planning.entries.task import TaskEntry
from exitbench.results.spool.schema import CARD_FILE
from exitbench.tasks.styles import PromptStyle, choose_examples, prompting

if TYPE_CHECKING:
    from exitbench.harness.cells.cell import ModelRef
    from exitbench.tasks.base import ModelKind, Task
    from exitbench.tasks.document import Document
    from exitbench.tasks.styles import StyleTexts

_HELD_OUT_SHARE: Final = 10
"""Without a train split, examples come from one document in this many, the last ones in hash order."""
_MOST_READ: Final = 2_000
"""Rows of a hub split that examples are chosen from; splits may have millions."""


def style_for(entry: TaskEntry, folder: Path, kind: ModelKind) -> PromptStyle:
    """Return the prompt style of a task for a model: the requested one, or the default for this kind of model.

    By default, a model trained by a recipe reads the format that it was trained on. Base decoders read built-in tasks
    in the format of this project's models.
    """
    if entry.prompts.style is not None:
        return entry.prompts.style
    if kind == "seq2seq" or (folder / CARD_FILE).is_file():
        return "t5"
    if entry.chat_template or (entry.chat_template is None and has_chat_template(folder)):
        return "chat"
    return "t5" if entry.data.source == "builtin" and entry.prompts.num_fewshot is None else "completion"


def styled(entry: TaskEntry, folder: Path, model: ModelRef, data_dir: Path | None) -> TaskEntry:
    """Return a task with its prompts in the style for a model; unchanged if the task does not have prompt styles.

    Args:
        entry: The task.
        folder: The checkpoint.
        model: The model.
        data_dir: Root folder of local files, which examples may come from.

    Raises:
        UserError: The model does not support the style, or there are not enough examples; names the task and the key.
    """
    task = entry.data.task_object
    texts = task.style_texts
    if texts is None:
        return entry
    style, keys = style_for(entry, folder, model.kind), entry.prompts
    is_chat = style == "chat" or (style == "t5" and bool(entry.chat_template))
    _check(entry, style, is_chat, folder, model)
    template = keys.prompt if model.kind != "causal" or keys.causal_prompt is None else keys.causal_prompt
    generation = entry.generation
    if style == "t5":
        if template is None:
            return replace(entry, chat_template=is_chat)
        data = replace(entry.data, prompting=prompting(texts, task, style, template))
        return replace(entry, chat_template=is_chat, data=data)
    if style == "chat":
        ends = _end_of_turn(folder)
        stop = keys.stop or ()
        generation = replace(
            generation, prompt_style=style, stop=(*stop, *(() if ends is None or ends in stop else (ends,)))
        )
        data = replace(entry.data, prompting=prompting(texts, task, style, template))
        return replace(entry, chat_template=True, data=data, generation=generation)
    examples = _examples(entry, task, texts, data_dir)
    generation = replace(
        generation,
        prompt_style=style,
        stop=(texts.stop,) if keys.stop is None else keys.stop,
        num_fewshot=len(examples),
        fewshot_seed=keys.fewshot_seed if examples else None,
    )
    data = replace(entry.data, prompting=prompting(texts, task, style, template, examples))
    return replace(entry, chat_template=False, data=data, generation=generation)


def has_chat_template(folder: Path) -> bool:
    """Return whether the checkpoint's files include a chat template, without loading the tokenizer."""
    if any((folder / name).is_file() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and bool(config.get("chat_template"))


def _check(entry: TaskEntry, style: PromptStyle, is_chat: bool, folder: Path, model: ModelRef) -> None:
    """Reject suite keys that contradict the prompt style, and the style ``chat`` for a model without chat template."""
    if style == "chat" and model.kind == "causal" and not has_chat_template(folder):
        key = "prompt_style" if entry.prompts.style else "chat_template"
        raise UserError(
            f"{entry.location} {key}: model {model.name!r} has no chat template, so it is a base model; "
            'allowed: prompt_style = "completion" or "t5".'
        )
    if entry.generation.system is not None and not is_chat:
        raise UserError(
            f"{entry.location} system: goes with a chat, which puts it before the prompt, and model {model.name!r} "
            f'reads style "{style}"; allowed with a chat template: prompt_style = "chat".'
        )
    if is_chat and entry.generation.truncate in ("left", "right"):
        raise UserError(
            f'{entry.location} truncate: would cut into the chat template; allowed with a chat: "drop", or '
            'prompt_style = "completion".'
        )
    if style != "completion" and entry.prompts.num_fewshot is not None:
        raise UserError(
            f'{entry.location} num_fewshot: goes with prompt_style = "completion", and model {model.name!r} reads '
            f'style "{style}".'
        )


def _end_of_turn(folder: Path) -> str | None:
    from exitbench.harness.cells.prompts import end_of_turn
    from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer

    return end_of_turn(load_tokenizer(folder))


def _examples(entry: TaskEntry, task: Task, texts: StyleTexts, data_dir: Path | None) -> Sequence[Document]:
    """Return the few-shot examples of a prompt: from the train split, or else held out of the evaluated documents."""
    requested, data = entry.prompts.num_fewshot, entry.data
    number = texts.examples if requested is None else requested
    if not number:
        return ()
    pool: Sequence[Document]
    taken: Sequence[Document]
    others = _train_request(entry, texts)
    evaluated = _documents(entry, replace(data, limit=None), data_dir)
    if others is None:
        by_hash = sorted(evaluated, key=lambda document: document.key)
        pool, taken = by_hash[len(by_hash) - len(by_hash) // _HELD_OUT_SHARE :], ()
        place = f"the last tenth of {data.origin}"
    else:
        pool, taken, place = _documents(entry, others, data_dir), evaluated, others.origin
    examples = choose_examples(task, pool, taken, number, entry.prompts.fewshot_seed)
    if requested is not None and len(examples) < requested:
        raise UserError(
            f"{entry.location} num_fewshot: is {requested}, but {place} has {len(examples)} documents for examples "
            "that are not evaluated; allowed: as many, or train_files with more."
        )
    return examples


def _train_request(entry: TaskEntry, texts: StyleTexts) -> DataRequest | None:
    """Return the request for a train split, from which few-shot examples are chosen; None if there is no such split."""
    data = replace(entry.data, limit=None)
    if data.source == "builtin":
        return None if data.split == "train" else replace(data, split="train", limit=_MOST_READ)
    if data.source == "local":
        if not entry.train_files and data.part == "test":
            return replace(data, part="train")
        return replace(data, files=entry.train_files, part="all") if entry.train_files else None
    split = entry.train_split or texts.hub_split
    if split == data.split:
        return None
    return replace(data, split=split if "[" in split else f"{split}[:{_MOST_READ}]")


def _documents(entry: TaskEntry, data: DataRequest, data_dir: Path | None) -> Sequence[Document]:
    try:
        return _load(data, data_dir)
    except UserError as error:
        raise UserError(f"{entry.location} num_fewshot: {error}") from None


@cache
def _load(data: DataRequest, data_dir: Path | None) -> Sequence[Document]:
    return tuple(data.load(data_dir))
