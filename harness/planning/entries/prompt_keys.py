"""Read the keys of a ``[tasks.LABEL]`` table that choose the prompts of this project's tasks."""

from dataclasses import dataclass
from typing import Final

from exitbench.errors import UserError
from exitbench.harness.reading.toml import TomlTable
from exitbench.tasks.base import Task
from exitbench.tasks.lm_eval.settings import LmEvalSettings
from exitbench.tasks.styles import OWN_FORMAT, PROMPT_STYLES, PromptStyle
from exitbench.tasks.templates import parse

STYLE_KEYS: Final = ("prompt_style", "prompt", "causal_prompt")
"""Keys of tasks that have prompt styles."""
FEWSHOT_KEYS: Final = ("num_fewshot", "fewshot_seed")
"""Keys of examples: for tasks that have prompt styles, and for tasks of lm-eval."""

_MAX_FEWSHOT: Final = 1_000
_STYLES: Final = ", ".join(f'"{style}"' for style in PROMPT_STYLES)


@dataclass(frozen=True)
class PromptKeys:
    """Requested prompts of a task; if a setting is None, the model or the task determines it.

    Attributes:
        style: Prompt style.
        prompt: Template of the whole question.
        causal_prompt: Template for decoder-only models; None for `prompt`.
        stop: Strings that end an answer; None for those of the style.
        num_fewshot: Number of few-shot examples.
        fewshot_seed: Seed that chooses the examples.
    """

    style: PromptStyle | None = None
    prompt: str | None = None
    causal_prompt: str | None = None
    stop: tuple[str, ...] | None = None
    num_fewshot: int | None = None
    fewshot_seed: int = LmEvalSettings.fewshot_seed


def read_num_fewshot(table: TomlTable) -> int | None:
    """Return the number of examples of a ``[tasks.LABEL]`` table; None if it has none.

    Raises:
        UserError: The number is out of range.
    """
    num_fewshot = table.optional("num_fewshot", int)
    if num_fewshot is not None and not 0 <= num_fewshot <= _MAX_FEWSHOT:
        raise table.error("num_fewshot", f"is {num_fewshot}; it must be from 0 to {_MAX_FEWSHOT}.")
    return num_fewshot


def read_prompt_keys(table: TomlTable, task: Task) -> PromptKeys:
    """Read the keys that choose a task's prompts; return defaults for a task that has no prompt styles.

    Raises:
        UserError: A key is invalid, or not allowed together with the task or another key; names file, line and key.
    """
    texts = task.style_texts
    if texts is None:
        for key in (*STYLE_KEYS, *FEWSHOT_KEYS):
            if key in table.values and (key, table.values[key]) != ("prompt_style", OWN_FORMAT):
                raise table.error(key, f"goes with tasks that have prompt styles; {task.name!r} has its own prompts.")
        return PromptKeys()
    style = table.optional("prompt_style", str)
    if style is not None:
        table.choose("prompt_style", style, PROMPT_STYLES, "prompt style")
    num_fewshot = read_num_fewshot(table)
    if style not in ("completion", None):
        table.refuse(FEWSHOT_KEYS, f'goes with prompt_style = "completion"; {style!r} has no examples.')
    templates = {key: table.optional(key, str) for key in ("prompt", "causal_prompt")}
    for key, template in templates.items():
        try:
            _ = template is None or parse(template, frozenset(texts.fields), key)
        except UserError as error:
            raise table.error(key, str(error).removeprefix(f"{key}: ")) from None
    return PromptKeys(
        style=next((known for known in PROMPT_STYLES if known == style), None),
        **templates,
        stop=table.strings("stop") if "stop" in table.values else None,
        num_fewshot=num_fewshot,
        fewshot_seed=table.get("fewshot_seed", int, PromptKeys.fewshot_seed),
    )


def check_chat_keys(table: TomlTable, keys: PromptKeys, chat_template: bool | None) -> None:
    """Reject a value of the key ``chat_template`` that contradicts the prompt style.

    Raises:
        UserError: The two contradict each other; the message names file, line and key.
    """
    if keys.style == "chat" and chat_template is False:
        raise table.error("chat_template", f'is false, and prompt_style = "chat" needs it. Allowed styles: {_STYLES}.')
    if keys.style == "completion" and chat_template:
        raise table.error("chat_template", 'does not go with prompt_style = "completion", which no chat surrounds.')
