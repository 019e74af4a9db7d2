"""Encode prompts to token ids, with or without the checkpoint's chat template; long ones are cut or excluded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from exitbench.errors import UserError
from exitbench.harness.cells.cell import GenerationSettings

if TYPE_CHECKING:
    from exitbench.tasks.document import Document

_SAMPLE, _SAMPLE_SYSTEM, _SAMPLE_ANSWER = "sample-prompt", "sample-system-message", "sample-answer"


@dataclass(frozen=True)
class Prompt:
    """Token ids of a prompt, special tokens included.

    Attributes:
        n_cut: Number of tokens cut off; None if the cell sets no `max_prompt_tokens`.
    """

    ids: list[int]
    n_cut: int | None = None


@dataclass(frozen=True)
class Fitting:
    """The documents of a cell whose prompts are short enough, in order.

    Attributes:
        dropped: Number of documents excluded for their length.
        unscorable: Number of documents excluded because one of their texts cannot be scored.
        truncated: Number of documents kept with a truncated prompt.
    """

    documents: tuple[Document, ...]
    dropped: int = 0
    unscorable: int = 0
    truncated: int = 0


class Prompts:
    """Converter of prompts to token ids, with a cell's chat template and maximum length.

    Args:
        tokenizer: The checkpoint's tokenizer.
        generation: Settings of the cell.
        max_positions: Number of positions of the model, for prompt and answer; None if unlimited.

    Raises:
        UserError: The chat template differs from the planned one, or the special tokens alone fill the maximum length.
    """

    def __init__(self, tokenizer: Any, generation: GenerationSettings, max_positions: int | None = None) -> None:
        self.tokenizer, self.generation = tokenizer, generation
        longest = None if max_positions is None else max_positions - generation.max_new_tokens
        bounds = [bound for bound in (longest, generation.max_prompt_tokens) if bound is not None]
        self._longest = min(bounds, default=None)
        planned = generation.chat_template_sha256
        if planned is not None and template_sha256(tokenizer) != planned:
            raise UserError(f"{tokenizer.name_or_path}: the chat template has changed since the run was planned.")
        if generation.truncate in ("left", "right"):
            self._before, self._behind = _special_tokens(tokenizer)
            if self._room < 1:
                raise UserError(
                    f"max_prompt_tokens = {generation.max_prompt_tokens} leaves no room: "
                    f"{self._before + self._behind} special tokens belong to every prompt."
                )

    @property
    def is_chat(self) -> bool:
        """True if prompts go through the checkpoint's chat template."""
        return self.generation.chat_template_sha256 is not None

    @property
    def _room(self) -> int:
        """Maximum number of tokens of a prompt, not counting special tokens."""
        assert self.generation.max_prompt_tokens is not None, "read together with truncate"
        return self.generation.max_prompt_tokens - self._before - self._behind

    def __call__(self, text: str) -> Prompt:
        """Return the token ids of a prompt with the text `text`, cut to the maximum length if the settings say so.

        Raises:
            UserError: The chat template fails on this prompt.
        """
        if self.is_chat:
            # The template contains the special tokens.
            rendered = render_chat(self.tokenizer, self.generation.system, text)
            ids = self.tokenizer(rendered, add_special_tokens=False)["input_ids"]
        else:
            ids = self.tokenizer(text)["input_ids"]
        if self.generation.max_prompt_tokens is None:
            return Prompt(list(ids))
        return self._cut(list(ids))

    def fitting(self, texts: Sequence[tuple[Document, str]]) -> Fitting:
        """Return the documents whose prompts are short enough, and the numbers of dropped and truncated ones.

        A prompt is short enough if it leaves enough positions for the longest answer.

        Args:
            texts: Pairs of a document and its prompt.

        Raises:
            UserError: No prompt is short enough.
        """
        if self._longest is None:
            return Fitting(tuple(document for document, _ in texts))
        encoded = [(document, self(text)) for document, text in texts]
        fitting = [(document, prompt) for document, prompt in encoded if len(prompt.ids) <= self._longest]
        if not fitting:
            shortest = min(len(prompt.ids) for _, prompt in encoded)
            raise UserError(
                f"none of the {len(encoded)} prompts fits: the shortest has {shortest} tokens, "
                f"{max(self._longest, 0)} fit next to {self.generation.max_new_tokens} new ones."
            )
        truncated = sum(bool(prompt.n_cut) for _, prompt in fitting)
        return Fitting(tuple(document for document, _ in fitting), len(encoded) - len(fitting), truncated=truncated)

    def _cut(self, ids: list[int]) -> Prompt:
        if self.generation.truncate == "drop":
            return Prompt(ids, 0)
        end = len(ids) - self._behind
        text_ids = ids[self._before : end]
        n_cut = max(0, len(text_ids) - self._room)
        kept_ids = text_ids[n_cut:] if self.generation.truncate == "left" else text_ids[: len(text_ids) - n_cut]
        return Prompt([*ids[: self._before], *kept_ids, *ids[end:]], n_cut)


def check_chat_template(tokenizer: Any, system: str | None) -> str:
    """Check a checkpoint's chat template by rendering a sample chat.

    Args:
        tokenizer: The checkpoint's tokenizer.
        system: System message; None if chats have none.

    Returns:
        The SHA-256 of the template.

    Raises:
        UserError: There is no template, it fails, or it omits the prompt or the system message.
    """
    digest = template_sha256(tokenizer)
    rendered = render_chat(tokenizer, None if system is None else _SAMPLE_SYSTEM, _SAMPLE)
    for what, text in (("prompt", _SAMPLE), ("system message", system and _SAMPLE_SYSTEM)):
        if text and text not in rendered:
            raise UserError(f"{tokenizer.name_or_path}: the chat template leaves out the {what}.")
    return digest


def template_sha256(tokenizer: Any) -> str:
    """Return the SHA-256 of a tokenizer's chat template.

    Raises:
        UserError: The tokenizer has no chat template.
    """
    try:
        template = tokenizer.get_chat_template()
    except ValueError:
        raise UserError(f"{tokenizer.name_or_path}: the tokenizer has no chat template.") from None
    return hashlib.sha256(template.encode()).hexdigest()


def render_chat(tokenizer: Any, system: str | None, text: str) -> str:
    """Return the user's message `text`, rendered by the checkpoint's chat template, ready for the assistant's turn.

    The system message `system` precedes it unless it is None. Templates may be part of a third-party checkpoint, so
    transformers renders them in a sandbox without access to Python.

    Raises:
        UserError: The template cannot be rendered.
    """
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": text})
    return render_turns(tokenizer, messages)


def render_turns(tokenizer: Any, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
    """Return the turns of a chat, rendered as one text by the checkpoint's chat template.

    Args:
        tokenizer: The checkpoint's tokenizer.
        messages: Role and content of each turn.
        add_generation_prompt: End with the start of the assistant's turn. Otherwise the last turn is the assistant's,
            and it is left open so that the model continues it.

    Raises:
        UserError: The template cannot be rendered.
    """
    goes_on = {} if add_generation_prompt else {"continue_final_message": True}
    try:
        return str(
            tokenizer.apply_chat_template(
                messages, add_generation_prompt=add_generation_prompt, tokenize=False, **goes_on
            )
        )
    except Exception as error:  # whatever a template's expressions raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(f"{tokenizer.name_or_path}: the chat template fails: {reason}") from None


def end_of_turn(tokenizer: Any) -> str | None:
    """Return the token with which a chat template ends the assistant's turn; None if the template has none."""
    turns = [{"role": "user", "content": _SAMPLE}, {"role": "assistant", "content": _SAMPLE_ANSWER}]
    try:
        rendered = str(tokenizer.apply_chat_template(turns, tokenize=False))
    except Exception:  # a template that renders no second turn may be fine for prompts
        return None
    tail = rendered.rpartition(_SAMPLE_ANSWER)[2].lstrip()
    tokens = {token.content for token in tokenizer.added_tokens_decoder.values()}
    return max((token for token in tokens if token and tail.startswith(token)), key=len, default=None)


def _special_tokens(tokenizer: Any) -> tuple[int, int]:
    """Return the numbers of special tokens that the tokenizer adds before and after a text."""
    bare, full = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    for before in range(len(full) - len(bare) + 1):
        if full[before : before + len(bare)] == bare:
            return before, len(full) - before - len(bare)
    raise UserError(f"{tokenizer.name_or_path}: the tokenizer changes a text where it adds special tokens.")
