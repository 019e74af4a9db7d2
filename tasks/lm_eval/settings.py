"""Settings of an lm-eval task in a suite."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, NamedTuple

from exitbench.errors import UserError, suggestion
from exitbench.tasks.declared import Declaration

PREFIX = "lm-eval:"
"""Prefix of the name of a task, group or tag of lm-eval."""


@dataclass(frozen=True)
class LmEvalSettings:
    """Settings of an lm-eval task, named as on lm-eval's command line.

    Attributes:
        include: Folder with the user's YAML files, which are read as data; code in them is rejected.
        num_fewshot: Number of few-shot examples before each question; None: the task's own number. A task that declares
            0 keeps 0, as in lm-eval.
        fewshot_seed: Seed for drawing few-shot examples.
        fewshot_as_multiturn: True if few-shot examples are separate turns in a chat template.
        gen_kwargs: Pairs (name, value) that override the task's `generation_kwargs`.
        declaration: Declared task with choices, which replaces the named task; None for all other tasks.
    """

    include: str | None = None
    num_fewshot: int | None = None
    fewshot_seed: int = 1234
    fewshot_as_multiturn: bool = False
    gen_kwargs: tuple[tuple[str, Any], ...] = ()
    declaration: Declaration | None = None

    def __post_init__(self) -> None:
        # JSON lists become tuples, so that settings are hashable.
        pairs = tuple((str(name), _frozen(value)) for name, value in self.gen_kwargs)
        object.__setattr__(self, "gen_kwargs", pairs)
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise UserError(f"num_fewshot is {self.num_fewshot}. Allowed: 0 or more.")

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain JSON data."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "LmEvalSettings":
        """Rebuild settings from their JSON.

        Raises:
            UserError: A setting does not exist.
        """
        names = {field.name for field in fields(cls)}
        for name in record:
            if name not in names:
                raise UserError(f"settings of an lm-eval task: unknown {name!r}.{suggestion(name, names)}")
        pairs = tuple((name, value) for name, value in record.get("gen_kwargs", ()))
        declared = record.get("declaration")
        declaration = declared and Declaration.from_json(declared)
        return cls(**{**record, "gen_kwargs": pairs, "declaration": declaration})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


_CHANGE_NOTHING: Final = {
    "num_beams": 1,
    "repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "num_return_sequences": 1,
}
"""Generation arguments that change greedy decoding, each with the value that has no effect."""


class NotGreedy(NamedTuple):
    """Generation argument that greedy decoding does not support.

    Attributes:
        what: Description of the unsupported request, for messages.
        name: Name of the argument to change.
        value: Value of that argument that restores greedy decoding.
    """

    what: str
    name: str
    value: bool | int


def why_not_greedy(kwargs: Mapping[str, Any]) -> NotGreedy | None:
    """Return the first of lm-eval's generation arguments that greedy decoding does not support; None if all fit."""
    from lm_eval.models.utils import normalize_gen_kwargs

    normalised: dict[str, Any] = dict(normalize_gen_kwargs(dict(kwargs)))
    if normalised.get("do_sample") and normalised.get("temperature") != 0:
        return NotGreedy("sampling", "do_sample", False)
    for name, value in _CHANGE_NOTHING.items():
        if normalised.get(name, value) != value:
            return NotGreedy(f"{name} = {normalised[name]}", name, value)
    return None
