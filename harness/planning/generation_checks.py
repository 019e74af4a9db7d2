"""Checks of generation settings against the model before a run: lengths, chat templates, logit rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exitbench.errors import UserError
from exitbench.harness.cells.cell import GenerationSettings, ModelRef
from exitbench.harness.engine.checkpoints.generation_config import not_applied
from exitbench.harness.planning.entries.task import TaskEntry
from exitbench.harness.planning.prompt_styles import has_chat_template
from exitbench.terminal import number_of

if TYPE_CHECKING:
    from exitbench.harness.engine.checkpoints.digest import Description
    from exitbench.harness.planning.expand import CellTemplate


def resolve(entry: TaskEntry, folder: Path, description: Description) -> GenerationSettings:
    """Return a task's generation settings for a model, with the digest of the model's chat template if prompts use it.

    Raises:
        UserError: The model does not support a setting; the message names the task and the key.
    """
    task, model = entry.data.task_object, description.model
    settings: GenerationSettings = _checked(entry, "task", entry.work.resolve, task, entry.generation, model)
    if entry.chat_template:
        digest = _checked(entry, "chat_template", _chat_template_sha256, folder, description.model, settings.system)
        settings = replace(settings, chat_template_sha256=digest)
    if settings.truncate is not None:
        _checked(entry, "max_prompt_tokens", _check_bound, folder, description, settings)
    if settings.forced_bos_token_id is not None:
        _checked(entry, "forced_bos_token_id", _check_forced, description, settings.forced_bos_token_id)
    if settings.scope == "answer" and description.model.kind == "causal" and not settings.gates_first_token:
        message = 'keeps the depth of the first token; it goes with first_token = "gated".'
        raise UserError(f"{entry.location} scope: {message}")
    if settings.gates_first_token:
        _checked(entry, "first_token", _check_first_token, description.model)
    return settings


def remarks(
    entries: Sequence[TaskEntry], folder: Path, settings_by_label: Mapping[str, GenerationSettings]
) -> tuple[str, ...]:
    """Return notes for readers of results, one line each: ignored settings of the checkpoint, and styles of prompts.

    Args:
        entries: Tasks to run on the checkpoint, with the prompts that it reads.
        folder: The checkpoint.
        settings_by_label: Generation settings by task label.
    """
    labels_of: dict[str, list[str]] = {}
    template = has_chat_template(folder)
    for entry in entries:
        settings = settings_by_label[entry.label]
        ignored = not_applied(folder, settings)
        lines = [str(ignored)] if ignored.settings else []
        if settings.gates_first_token and entry.work.generates:
            lines.append('first_token = "gated": the first token of an answer may exit early too')
        if (style := settings.prompt_style) is not None:
            instructed = entry.data.prompting is None or bool(entry.data.prompting.instruction)
            lines.append(_about_style(style, "an instruction" if instructed else "the suite's text", settings))
        if template and not entry.chat_template and style is None:
            key = "chat_template = true" if entry.data.task_object.style_texts is None else 'prompt_style = "chat"'
            lines.append(f"has a chat template, which is not used: {key} in [tasks.LABEL] uses it")
        for line in lines:
            labels_of.setdefault(line, []).append(entry.label)
    return tuple(
        line if len(labels) == len(entries) else f"{line}; of {', '.join(labels)}" for line, labels in labels_of.items()
    )


def _about_style(style: str, text: str, settings: GenerationSettings) -> str:
    stop = f", answers end at {' or '.join(map(repr, settings.stop))}" if settings.stop else ""
    if style == "chat":
        return f"prompts: chat, {text} in the model's own template{stop}"
    return f"prompts: completion, {text} and {number_of(settings.num_fewshot or 0, 'example')}{stop}"


def _checked(entry: TaskEntry, key: str, check: Any, *arguments: Any) -> Any:
    try:
        return check(*arguments)
    except UserError as error:
        raise UserError(f"{entry.location} {key}: {error}") from None


def _chat_template_sha256(folder: Path, model: ModelRef, system: str | None) -> str:
    from exitbench.harness.cells.prompts import check_chat_template
    from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer

    if model.kind != "causal":
        raise UserError(f"model {model.name!r} is an encoder-decoder; chat templates go with decoder-only models.")
    return check_chat_template(load_tokenizer(folder), system)


def _check_bound(folder: Path, description: Description, limits: GenerationSettings) -> None:
    from exitbench.harness.cells.prompts import Prompts
    from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer

    longest, positions = limits.max_prompt_tokens, description.max_positions
    if positions is not None and longest is not None and longest + limits.max_new_tokens > positions:
        raise UserError(
            f"prompts of {longest} tokens and {limits.max_new_tokens} new ones do not fit the {positions} positions of "
            f"model {description.model.name!r}; allowed: up to {max(positions - limits.max_new_tokens, 0)}."
        )
    if limits.truncate in ("left", "right"):
        Prompts(load_tokenizer(folder), limits)


def _check_forced(description: Description, token_id: int) -> None:
    model = description.model
    if model.kind != "seq2seq":
        raise UserError(f"model {model.name!r} is decoder-only: its answers go on from the prompt.")
    if token_id >= description.vocab_size:
        raise UserError(
            f"is {token_id}; the vocabulary of model {model.name!r} has tokens 0 to {description.vocab_size - 1}."
        )


def _check_first_token(model: ModelRef) -> None:
    if model.kind != "causal":
        raise UserError(
            f"model {model.name!r} is an encoder-decoder, whose first token always goes through the gate, behind the "
            'decoder\'s start token; "gated" goes with decoder-only models.'
        )


def check_answers(drafts: Sequence[CellTemplate], description: Description) -> None:
    """Check that a model's outputs are of the kind that its tasks require, and that the methods can run on it.

    Args:
        drafts: Templates of the cells of one model.
        description: Description of the model.

    Raises:
        UserError: A check fails; the message names the suite's line.
    """
    for draft in drafts:
        work, task = draft.task.work, draft.task.data.task_object
        try:
            work.check_model(task, description)
        except UserError as error:
            raise UserError(f"{draft.task.location}: {error}") from None
        if draft.kind not in work.kinds or (draft.record is not None and not work.records):
            what = draft.kind if draft.record is None else f"'record' of a {draft.kind}"
            raise UserError(
                f"{draft.location}: {what} is for models that generate, and {draft.model.name!r} is a classifier; "
                f"allowed kinds: {', '.join(work.kinds)}."
            )
        try:
            work.check_method(draft.method, description)
        except UserError as error:
            raise UserError(f"{draft.location}: {error}") from None
