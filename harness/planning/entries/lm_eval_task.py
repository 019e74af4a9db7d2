"""What a ``[tasks.LABEL]`` of lm-eval's says beside documents and chat: its settings, and which keys go with it."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from exitbench.errors import UserError
from exitbench.harness.cells.cell import SCOPES
from exitbench.harness.reading.toml import Table
from exitbench.harness.work.base import Work
from exitbench.harness.work.kinds import work_class
from exitbench.tasks.declared.declaration import Declaration
from exitbench.tasks.lm_eval.greedy import why_not_greedy
from exitbench.tasks.lm_eval.settings import PREFIX, LmEvalSettings

LM_EVAL_KEYS: Final = ("include", "num_fewshot", "fewshot_seed", "fewshot_as_multiturn", "gen_kwargs", "scope")
"""Keys that go with a task of lm-eval alone."""

_OUR_KEYS: Final = ("seed", "level")
_PROMPT_KEYS: Final = ("max_prompt_tokens", "truncate")
_ANSWER_KEYS: Final = ("max_new_tokens", "stop")
_LOGIT_KEYS: Final = ("repetition_penalty", "no_repeat_ngram_size", "min_length", "forced_bos_token_id")
_MAX_FEWSHOT: Final = 1_000


@dataclass(frozen=True)
class LmEvalAsked:
    """What is asked of a task of lm-eval.

    Attributes:
        work: What it asks of a model.
        max_new_tokens: Of its longest answer; 1 where it has none.
        stop: Strings that end an answer.
        scope: By what exits of log-likelihoods are decided.
    """

    settings: LmEvalSettings
    work: type[Work[Any]]
    max_new_tokens: int
    stop: tuple[str, ...]
    scope: str


def refuse_lm_eval_keys(table: Table) -> None:
    """Refuse keys of lm-eval's tasks where the task is another.

    Raises:
        UserError: One is there.
    """
    for key in LM_EVAL_KEYS:
        if key in table.values:
            raise table.error(key, f'goes with a task of lm-eval only: task = "{PREFIX}NAME".')


def read_lm_eval(table: Table, name: str, declaration: Declaration | None = None) -> LmEvalAsked:
    """Read what goes with a task of lm-eval only.

    Args:
        table: Of the suite.
        name: Of the task, with its prefix.
        declaration: Of a task with choices that a TOML file describes.

    Raises:
        UserError: There is no such task, or a key does not go with it; names file, line and key.
    """
    from exitbench.tasks.registry import get_task

    for key in _OUR_KEYS:
        if key in table.values:
            raise table.error(key, f"goes with generated data, of which lm-eval has none ({name}).")
    for key in _PROMPT_KEYS:
        if key in table.values:
            raise table.error(
                key,
                "does not go with a task of lm-eval: prompts longer than the model are cut on their left, as there.",
            )
    settings = replace(_settings(table), declaration=declaration)
    try:
        task = get_task(name, replace(settings, gen_kwargs=()))
    except UserError as error:
        raise table.error("task", str(error)) from None
    work = work_class(task)
    for key in _ANSWER_KEYS:
        if key in table.values:
            raise table.error(key, "does not go with a task of lm-eval; allowed: gen_kwargs = { max_gen_toks, until }.")
    for key in (*_LOGIT_KEYS, "gen_kwargs"):
        if not work.generates and key in table.values:
            raise table.error(key, f"goes with tasks that generate text; {name} asks for log-likelihoods.")
    if work.generates and "scope" in table.values:
        raise table.error("scope", f"goes with tasks that ask for log-likelihoods; {name} generates text.")
    scope = table.choose("scope", table.get("scope", str, "token"), SCOPES, "scope")
    if not work.generates:
        return LmEvalAsked(settings, work, 1, (), scope)
    task = get_task(name, settings)
    asked: dict[str, Any] = getattr(task, "generation_kwargs", {})
    if (other := why_not_greedy(asked)) is not None:
        allowed = f"gen_kwargs = {{ {other.name} = {json.dumps(other.value)} }}"
        key = "gen_kwargs" if other.name in table.table("gen_kwargs").values else "task"
        raise table.error(key, f"asks for {other.what}, but decoding is greedy; allowed: {allowed}.")
    until = asked.get("until", ())
    stop = (until,) if isinstance(until, str) else tuple(until)
    return LmEvalAsked(settings, work, task.default_max_new_tokens, stop, scope)


def _settings(table: Table) -> LmEvalSettings:
    include = table.optional("include", str)
    fewshot = table.optional("num_fewshot", int)
    if fewshot is not None and not 0 <= fewshot <= _MAX_FEWSHOT:
        raise table.error("num_fewshot", f"is {fewshot}; it must be from 0 to {_MAX_FEWSHOT}.")
    # Whole, so that rescoring finds it from any folder; no identity has it.
    folder = None if include is None else Path(os.path.abspath(table.path.parent / include))
    if folder is not None and not folder.is_dir():
        raise table.error("include", f"{folder} is not a folder; allowed: one with YAML files of tasks.")
    return LmEvalSettings(
        include=None if folder is None else str(folder),
        num_fewshot=fewshot,
        fewshot_seed=table.get("fewshot_seed", int, LmEvalSettings.fewshot_seed),
        fewshot_as_multiturn=table.get("fewshot_as_multiturn", bool, False),
        gen_kwargs=_gen_kwargs(table.table("gen_kwargs")),
    )


def _gen_kwargs(table: Table) -> tuple[tuple[str, Any], ...]:
    """Arguments of generation, by name."""
    found = []
    for key, value in sorted(table.values.items()):
        words = value if isinstance(value, list) else [value]
        if not all(isinstance(word, str | int | float | bool) for word in words):
            raise table.error(key, "must be a string, a number, true, false or a list of these.")
        table.require_storable(key, value)
        found.append((key, tuple(value) if isinstance(value, list) else value))
    return tuple(found)
