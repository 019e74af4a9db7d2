"""Decoding is greedy: which arguments of generation ask for something else."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

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
