"""Parse ``[tasks.LABEL]`` of a suite: documents, prompt construction, and generation settings."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

from exitbench.errors import UserError
from exitbench.harness.cells.cell import FIRST_TOKENS, TRUNCATIONS, GenerationSettings, Truncate
from exitbench.harness.cells.job import DataRequest
from exitbench.harness.planning.entries.declared_task import find_declaration
from exitbench.harness.planning.entries.lm_eval_task import LM_EVAL_KEYS, read_lm_eval, refuse_lm_eval_keys
from exitbench.harness.planning.entries.prompt_keys import STYLE_KEYS, PromptKeys, check_chat_keys, read_prompt_keys
from exitbench.harness.reading.toml import TomlTable
from exitbench.harness.work.base import Work
from exitbench.harness.work.kinds import work_class
from exitbench.tasks.base import Part, SourceKind
from exitbench.tasks.declared import Declaration, DeclaredTask
from exitbench.tasks.document import DEFAULT_LEVEL, LEVELS
from exitbench.tasks.lm_eval.settings import PREFIX

SOURCES = ("builtin", "local", "hub", "auto")

MAX_NEW_TOKENS = 1_000_000
MAX_BATCH = 65_536

Files = tuple[tuple[str, str], ...]

_OTHER_FILES: Final = ("train_files", "calibration_files")
_OTHER_SPLITS: Final = ("train_split", "calibration_split")
KEYS: Final = (
    *("task", "source", "split", "limit", "seed", "level", "files", "part"),
    *(*_OTHER_FILES, *_OTHER_SPLITS, "drop_shared"),
    *("max_new_tokens", "stop", "repetition_penalty", "no_repeat_ngram_size", "min_length", "forced_bos_token_id"),
    *("chat_template", "system", "max_prompt_tokens", "truncate", "first_token", "scope", "batch_rows"),
    *STYLE_KEYS,
)
_OF_ANSWERS: Final = (
    *("max_new_tokens", "stop", "repetition_penalty", "no_repeat_ngram_size", "min_length", "forced_bos_token_id"),
    *("chat_template", "system", "first_token", "scope"),
)
"""Keys that are valid only for tasks whose answers are generated."""
_NEEDS_FILES: Final = 'goes with source = "local" or "auto" only; other sources have their own splits.'


@dataclass(frozen=True)
class TaskEntry:
    """A parsed ``[tasks.LABEL]``; if it sets no token limit, the task's default applies.

    Attributes:
        generation: Generation settings, without those that depend on the model, such as the digest of a chat template.
        chat_template: Whether prompts use the checkpoint's chat template; None: if the prompt style is ``chat``.
        prompts: Requested style and texts of the prompts, which depend on the model too.
        train_files: Local source only: files on which methods are fitted, if any.
        calibration_files: Local source only: files on which thresholds are calibrated.
        train_split: Hub source only: split or part (``train[:50%]``) on which methods are fitted; None: ``train``.
        calibration_split: Hub source only: split or part on which thresholds are calibrated; None: no calibration.
        drop_shared: Whether fits and calibrations leave out documents that are also measured or fitted on.
        batch_rows: Documents per batch in cells that are not timed; None: as in `[defaults]`.
        is_source_auto: Whether the suite says ``source = "auto"`` and `with_source_resolved` has not replaced it; until
            then, `data` are the local files.
    """

    label: str
    location: str
    data: DataRequest
    generation: GenerationSettings
    chat_template: bool | None = None
    prompts: PromptKeys = field(default_factory=PromptKeys)
    train_files: Files = ()
    calibration_files: Files = ()
    train_split: str | None = None
    calibration_split: str | None = None
    drop_shared: bool = False
    batch_rows: int | None = None
    is_source_auto: bool = False

    def with_source_resolved(self, data_dir: Path | None, *, hub: bool) -> "TaskEntry":
        """Return the task with its source ``auto`` replaced: by local files if one exists, else by the hub if allowed.

        The task is unchanged if its source is not ``auto``. It is also unchanged if no file exists and the hub is not
        allowed; `require_source_resolved` then raises an error.
        """
        if not self.is_source_auto:
            return self
        if data_dir is not None and any((data_dir / path).exists() for _, path in self.data.files):
            return replace(self, is_source_auto=False)
        if not hub:
            return self
        data = replace(self.data, source="hub", files=(), part="all")
        return replace(self, data=data, train_files=(), calibration_files=(), is_source_auto=False)

    def require_source_resolved(self, data_dir: Path | None) -> None:
        """Check that `with_source_resolved` has replaced the source ``auto`` of the task.

        Raises:
            UserError: No file of the task is below the data folder, and the hub is not allowed.
        """
        if self.is_source_auto:
            names = ", ".join(path for _, path in self.data.files)
            place = "--data-dir, which is not given" if data_dir is None else f"--data-dir {data_dir}"
            raise UserError(
                f'{self.location} source: "auto", but {names} is not below {place}, and the hub is not allowed. '
                "Allowed: a folder with these files, or --hub."
            )

    @property
    def work(self) -> type[Work[Any]]:
        """Kind of work that the task requires of a model."""
        return work_class(self.data.task_object)

    @property
    def has_calibration_split(self) -> bool:
        """Whether data or suite name documents for calibration, so that ``other_split("calibration")`` returns them."""
        if self.data.source == "builtin" or self.calibration_files:
            return True
        return self.calibration_split is not None and (self.data.source != "local" or self._names_splits)

    @property
    def _names_splits(self) -> bool:
        """Whether splits of the data have names, as those of lm-eval's own tasks do."""
        return self.data.settings is not None and not self.data.files

    def other_split(
        self, split: Literal["train", "calibration"], limit: int, why: str, fitted_on: DataRequest | None = None
    ) -> DataRequest:
        """Return the request for the documents of the train or calibration split of the task's data.

        Args:
            split: The split.
            limit: Maximum number of documents.
            why: Description of the cell that needs these documents, for messages.
            fitted_on: Documents on which the method to be calibrated is fitted, excluded if the task drops shared ones.

        Raises:
            UserError: The source is local or the hub, and the suite does not name the files or split.
        """
        files = self.train_files if split == "train" else self.calibration_files
        name = self.train_split if split == "train" else self.calibration_split
        part: Part = "all"
        if not files and split == "train" and self.data.part == "test":
            files, part = self.data.files, "train"
        if self.data.source == "local" and not self._names_splits and not files:
            raise UserError(f"{self.location}: {why} needs {split}_files, in the form of 'files'.")
        if self.data.source != "builtin" and not files and split == "calibration" and name is None:
            raise UserError(
                f"{self.location}: {why} needs calibration_split, since data sets of the hub have no split of that "
                "name; allowed: one that the data set has and nothing else uses, or a part, such as 'train[50%:]'."
            )
        # All of the task's documents, so that --limit does not change fits and calibrations.
        uses = (replace(self.data, limit=None), *([fitted_on] if fitted_on else []))
        apart_from = uses if self.drop_shared else ()
        return replace(self.data, split=name or split, files=files, part=part, limit=limit, apart_from=apart_from)


def read_task(label: str, table: TomlTable) -> TaskEntry:
    """Read one ``[tasks.LABEL]`` table of a suite.

    Raises:
        UserError: The table is invalid. The message names file, line and key, and the allowed values.
    """
    from exitbench.tasks.registry import get_task

    table.allow(*KEYS, *LM_EVAL_KEYS)
    name = table.get("task", str, label)
    if name.startswith(PREFIX):
        return _lm_eval_entry(label, table, name)
    declaration = find_declaration(name, table.path.parent)
    if declaration is not None and declaration.choices is not None:
        return _lm_eval_entry(label, table, declaration.task_name, declaration)
    refuse_lm_eval_keys(table)
    try:
        task = get_task(name) if declaration is None else DeclaredTask(declaration)
    except UserError as error:
        raise table.error("task", str(error)) from None
    sources = SOURCES if declaration is None else ("local",)
    source = table.choose("source", table.get("source", str, sources[0]), sources, "source")
    files = table.table("files")
    if source not in ("local", "auto"):
        table.refuse(_OTHER_FILES, _NEEDS_FILES)
    if source not in ("hub", "auto"):
        table.refuse(
            _OTHER_SPLITS,
            'goes with source = "hub" or "auto" only; built-in data has its own splits, local data files.',
        )
    if (source in ("local", "auto")) != bool(files.values):
        raise table.error(
            "files", 'goes with source = "local" or "auto", which need it: { role = "path below --data-dir" }.'
        )
    part = table.choose("part", table.get("part", str, "all"), get_args(Part), "part of the files")
    if part != "all" and source not in ("local", "auto"):
        raise table.error("part", _NEEDS_FILES)
    generates = work_class(task).generates
    if not generates:
        table.refuse(_OF_ANSWERS, f"goes with tasks whose answers are generated; {task.name!r} requires labels.")
    data = DataRequest(
        task=task.name,
        source=_first_source(source),
        split=table.get("split", str, "test"),
        files=_files(files),
        part=cast(Part, part),
        limit=table.positive("limit") if "limit" in table.values else None,
        seed=table.get("seed", int, 0),
        level=_level(table, source),
        declaration=declaration,
    )
    generation = _generation(table, task.default_max_new_tokens, generates=generates)
    prompts = read_prompt_keys(table, task)
    if task.style_texts is None or prompts.style in ("t5", "completion"):
        chat_template: bool | None = _chat_template(table, generation)
    else:
        chat_template = table.optional("chat_template", bool)
    check_chat_keys(table, prompts, chat_template)
    return replace(_entry(label, table, data, generation, chat_template), prompts=prompts)


def _lm_eval_entry(label: str, table: TomlTable, name: str, declaration: Declaration | None = None) -> TaskEntry:
    """Read the table of an lm-eval task, or of a declared multiple-choice task, which lm-eval also runs."""
    lm_eval = read_lm_eval(table, name, declaration)
    if declaration is not None and (table.get("source", str, "local") != "local" or not table.table("files").values):
        raise table.error("files", "is missing: the task reads files = { data = PATH } of a local source.")
    if declaration is not None and "include" in table.values:
        raise table.error("include", "goes with YAML of lm-eval, not with a TOML file.")
    source = table.choose("source", table.get("source", str, "local"), ("local", "hub", "auto"), "source")
    if source == "auto" and not table.table("files").values:
        raise table.error("files", 'is missing: source = "auto" needs { split = "path below --data-dir" }.')
    data = DataRequest(
        task=name,
        source=_first_source(source),
        split=table.get("split", str, "test"),
        files=_files(table.table("files")),
        limit=table.positive("limit") if "limit" in table.values else None,
        settings=lm_eval.settings,
    )
    settings = _generation(table, lm_eval.max_new_tokens, generates=lm_eval.work.generates)
    generation = replace(settings, stop=lm_eval.stop)
    if not lm_eval.work.generates:
        is_gated = table.get("first_token", str, "gated") == "gated"
        by_context = lm_eval.scope == "context"
        if by_context and not is_gated:
            raise table.error("scope", 'keeps the depth of the first token; it does not go with first_token = "full".')
        generation = replace(
            generation, first_token="gated" if is_gated else None, scope="context" if by_context else None
        )
    chat_template = _chat_template(table, generation)
    if lm_eval.settings.fewshot_as_multiturn and not chat_template:
        raise table.error("fewshot_as_multiturn", "goes with chat_template = true, whose turns the examples become.")
    return _entry(label, table, data, generation, chat_template)


def _entry(
    label: str, table: TomlTable, data: DataRequest, generation: GenerationSettings, chat_template: bool | None
) -> TaskEntry:
    """Build a task's entry, and read the keys of its table that are common to all kinds of tasks."""
    return TaskEntry(
        label,
        table.location(),
        data,
        generation,
        chat_template,
        train_files=_files(table.table("train_files")),
        calibration_files=_files(table.table("calibration_files")),
        train_split=table.optional("train_split", str),
        calibration_split=table.optional("calibration_split", str),
        drop_shared=table.get("drop_shared", bool, False),
        batch_rows=table.positive("batch_rows", 1, MAX_BATCH) if "batch_rows" in table.values else None,
        is_source_auto=table.get("source", str, "") == "auto",
    )


def _first_source(source: str) -> SourceKind:
    """Return the source in which to look first: ``local`` for ``auto``, otherwise the given source."""
    return "local" if source == "auto" else cast(SourceKind, source)


def _chat_template(table: TomlTable, generation: GenerationSettings) -> bool:
    chat_template = table.get("chat_template", bool, False)
    if generation.system is not None and not chat_template:
        raise table.error("system", "goes with a chat, which puts it before the prompt: chat_template = true.")
    if chat_template and generation.truncate in ("left", "right"):
        raise table.error("truncate", 'would cut into the chat template; allowed with chat_template: "drop".')
    return chat_template


def _level(table: TomlTable, source: str) -> int:
    level = table.get("level", int, DEFAULT_LEVEL)
    if "level" in table.values and source != "builtin":
        raise table.error("level", 'goes with source = "builtin" only: other data are as hard as they are.')
    if level not in LEVELS:
        raise table.error("level", f"is {level}. Allowed: {', '.join(map(str, LEVELS))}.")
    return level


def _files(table: TomlTable) -> Files:
    return tuple((role, table.get(role, str)) for role in table.values)


def _generation(table: TomlTable, default_max_new_tokens: int, *, generates: bool) -> GenerationSettings:
    for key, other in (("max_prompt_tokens", "truncate"), ("truncate", "max_prompt_tokens")):
        if key in table.values and other not in table.values:
            words = "a whole number" if other == "max_prompt_tokens" else ", ".join(f'"{way}"' for way in TRUNCATIONS)
            raise table.error(key, f"goes with {other}; allowed: {words}.")
    truncate = table.optional("truncate", str)
    if truncate is not None:
        table.choose("truncate", truncate, TRUNCATIONS, "way to shorten prompts")
    first_token = table.choose(
        "first_token", table.get("first_token", str, "full"), FIRST_TOKENS, "way to the first token"
    )
    scopes = ("token", "answer")
    scope = table.choose("scope", table.get("scope", str, "token"), scopes, "scope") if generates else "token"
    return GenerationSettings(
        max_new_tokens=table.positive("max_new_tokens", default_max_new_tokens, MAX_NEW_TOKENS),
        stop=table.strings("stop", ()),
        repetition_penalty=_penalty(table),
        no_repeat_ngram_size=_from(table, "no_repeat_ngram_size", 1),
        min_length=_from(table, "min_length", 1),
        forced_bos_token_id=_from(table, "forced_bos_token_id", 0),
        system=table.optional("system", str),
        max_prompt_tokens=_from(table, "max_prompt_tokens", 1),
        truncate=cast(Truncate | None, truncate),
        # None for defaults, so that cell ids stay valid
        first_token="gated" if first_token == "gated" else None,
        scope="answer" if scope == "answer" else None,
    )


def _penalty(table: TomlTable) -> float | None:
    """Read the repetition penalty; 1 has no effect and is read as None."""
    value = table.optional("repetition_penalty", float)
    if value is not None and value <= 0:
        raise table.error("repetition_penalty", f"is {value}; it must be above 0 (1 changes nothing).")
    return None if value == 1 else value


def _from(table: TomlTable, key: str, least: int) -> int | None:
    value = table.optional(key, int)
    if value is not None and value < least:
        raise table.error(key, f"is {value}; it must be {least} or more.")
    return value
