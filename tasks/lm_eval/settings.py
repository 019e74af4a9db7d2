"""What a suite says about a task of lm-eval beside its name."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, NamedTuple

from exitbench.errors import UserError, suggestion
from exitbench.tasks.declared import Declaration

PREFIX = "lm-eval:"
"""Before the name of a task, group or tag of lm-eval."""


@dataclass(frozen=True)
class LmEvalSettings:
    """Settings of a task of lm-eval, under the names of its own command line.

    Attributes:
        include: Folder with YAML files of the user; they are data, code in them is refused.
        num_fewshot: Examples before each question; None: as the task says. A task that says 0 keeps 0, as in lm-eval.
        fewshot_seed: Seed with which examples are drawn.
        fewshot_as_multiturn: Examples are turns of their own in a chat template.
        gen_kwargs: Pairs (name, value) in place of the task's `generation_kwargs` of those names.
        declaration: A task with choices that a TOML file describes, which is then the task; None for all others.
    """

    include: str | None = None
    num_fewshot: int | None = None
    fewshot_seed: int = 1234
    fewshot_as_multiturn: bool = False
    gen_kwargs: tuple[tuple[str, Any], ...] = ()
    declaration: Declaration | None = None

    def __post_init__(self) -> None:
        # Lists of JSON become tuples, so that settings can be keys.
        given = tuple((str(name), _frozen(value)) for name, value in self.gen_kwargs)
        object.__setattr__(self, "gen_kwargs", given)
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise UserError(f"num_fewshot is {self.num_fewshot}. Allowed: 0 or more.")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "LmEvalSettings":
        """Rebuild settings from their JSON.

        Raises:
            UserError: There is no such setting.
        """
        known = {field.name for field in fields(cls)}
        for name in record:
            if name not in known:
                raise UserError(f"settings of an lm-eval task: unknown {name!r}.{suggestion(name, known)}")
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
"""Arguments that change what greedy decoding gives, and their values that change nothing."""


class NotGreedy(NamedTuple):
    """What is asked for, and the argument that asks for greedy decoding in its place."""

    what: str
    name: str
    value: bool | int


def why_not_greedy(kwargs: Mapping[str, Any]) -> NotGreedy | None:
    """Return what of lm-eval's arguments of generation greedy decoding does not do; None where it does all."""
    from lm_eval.models.utils import normalize_gen_kwargs

    asked: dict[str, Any] = dict(normalize_gen_kwargs(dict(kwargs)))
    if asked.get("do_sample") and asked.get("temperature") != 0:
        return NotGreedy("sampling", "do_sample", False)
    for name, value in _CHANGE_NOTHING.items():
        if asked.get(name, value) != value:
            return NotGreedy(f"{name} = {asked[name]}", name, value)
    return None
