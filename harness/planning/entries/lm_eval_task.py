"""Reader of the keys in a ``[tasks.LABEL]`` table that are specific to lm-eval's tasks; rejects keys for other tasks.

The module `task` reads the keys for documents and chat templates.
"""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.harness.cells.cell import SCOPES
from exitbench.harness.planning.entries.prompt_keys import FEWSHOT_KEYS, STYLE_KEYS, read_num_fewshot
from exitbench.harness.reading.toml import TomlTable
from exitbench.harness.work.base import Work
from exitbench.harness.work.kinds import work_class
from exitbench.tasks.declared import Declaration
from exitbench.tasks.lm_eval.settings import PREFIX, LmEvalSettings, why_not_greedy

LM_EVAL_KEYS: Final = ("include", *FEWSHOT_KEYS, "fewshot_as_multiturn", "gen_kwargs")
"""Keys of lm-eval tasks; only those of examples are valid for other tasks too."""

_OUR_KEYS: Final = ("seed", "level", "part")
_PROMPT_KEYS: Final = ("max_prompt_tokens", "truncate")
_ANSWER_KEYS: Final = ("max_new_tokens", "stop")
_LOGIT_KEYS: Final = ("repetition_penalty", "no_repeat_ngram_size", "min_length", "forced_bos_token_id")


@dataclass(frozen=True)
class LmEvalKeys:
    """Parsed settings of an lm-eval task in a suite.

    Attributes:
        work: Kind of work: generation or log-likelihoods.
        max_new_tokens: Maximum tokens per answer; 1 if the task generates no text.
        stop: Strings that end an answer.
        scope: Whether scored tokens exit one by one (``token``) or all at the exit layer of the first (``context``).
    """

    settings: LmEvalSettings
    work: type[Work[Any]]
    max_new_tokens: int
    stop: tuple[str, ...]
    scope: str = "token"


def refuse_lm_eval_keys(table: TomlTable) -> None:
    """Reject lm-eval keys in the table of a task that is not lm-eval's.

    Raises:
        UserError: The table has such a key.
    """
    checked_here = (key for key in LM_EVAL_KEYS if key not in FEWSHOT_KEYS)  # `read_prompt_keys` checks those
    table.refuse(checked_here, f'goes with a task of lm-eval only: task = "{PREFIX}NAME".')


def read_lm_eval(table: TomlTable, name: str, declaration: Declaration | None = None) -> LmEvalKeys:
    """Read the keys of a task table that are specific to lm-eval tasks.

    Args:
        table: The suite's ``[tasks.LABEL]``.
        name: Name of the task, with the prefix of lm-eval tasks.
        declaration: Declaration of a multiple-choice task from a TOML file.

    Raises:
        UserError: The task does not exist, or a key is not valid for it. The message names file, line and key.
    """
    from exitbench.tasks.registry import get_task

    table.refuse(STYLE_KEYS, f"goes with this project's tasks; {name} has its own prompts.")
    table.refuse(_OUR_KEYS, f"goes with generated data, of which lm-eval has none ({name}).")
    table.refuse(
        _PROMPT_KEYS,
        "does not go with a task of lm-eval: prompts longer than the model are cut on their left, as there.",
    )
    settings = replace(_settings(table), declaration=declaration)
    try:
        task = get_task(name, replace(settings, gen_kwargs=()))
    except UserError as error:
        raise table.error("task", str(error)) from None
    work = work_class(task)
    table.refuse(_ANSWER_KEYS, "does not go with a task of lm-eval; allowed: gen_kwargs = { max_gen_toks, until }.")
    if not work.generates:
        needs_text = f"goes with tasks that generate text; {name} requires log-likelihoods."
        table.refuse((*_LOGIT_KEYS, "gen_kwargs"), needs_text)
        scope = table.choose("scope", table.get("scope", str, "token"), SCOPES, "scope")
        return LmEvalKeys(settings, work, 1, (), scope)
    task = get_task(name, settings)
    generation: dict[str, Any] = getattr(task, "generation_kwargs", {})
    if (other := why_not_greedy(generation)) is not None:
        allowed = f"gen_kwargs = {{ {other.name} = {json.dumps(other.value)} }}"
        key = "gen_kwargs" if other.name in table.table("gen_kwargs").values else "task"
        raise table.error(key, f"requires {other.what}, but decoding is greedy; allowed: {allowed}.")
    until = generation.get("until", ())
    stop = (until,) if isinstance(until, str) else tuple(until)
    return LmEvalKeys(settings, work, task.default_max_new_tokens, stop)


def _settings(table: TomlTable) -> LmEvalSettings:
    include = table.optional("include", str)
    # Absolute, so that rescoring finds it from any working directory; not part of any identity.
    folder = None if include is None else Path(os.path.abspath(table.path.parent / include))
    if folder is not None and not folder.is_dir():
        raise table.error("include", f"{folder} is not a folder; allowed: one with YAML files of tasks.")
    return LmEvalSettings(
        include=None if folder is None else str(folder),
        num_fewshot=read_num_fewshot(table),
        fewshot_seed=table.get("fewshot_seed", int, LmEvalSettings.fewshot_seed),
        fewshot_as_multiturn=table.get("fewshot_as_multiturn", bool, False),
        gen_kwargs=_gen_kwargs(table.table("gen_kwargs")),
    )


def _gen_kwargs(table: TomlTable) -> tuple[tuple[str, Any], ...]:
    """Return lm-eval's generation arguments in a table, as sorted (name, value) pairs."""
    pairs = []
    for key, value in sorted(table.values.items()):
        words = value if isinstance(value, list) else [value]
        if not all(isinstance(word, str | int | float | bool) for word in words):
            raise table.error(key, "must be a string, a number, true, false or a list of these.")
        table.require_storable(key, value)
        pairs.append((key, tuple(value) if isinstance(value, list) else value))
    return tuple(pairs)
