"""What lm-eval's `model_args` say of our models: `pretrained=DIR,method=calm-softmax,threshold=0.9`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from exitbench.errors import UserError, suggestion
from exitbench.harness.cells.cell import ENGINES, FIRST_TOKENS, SCOPES, EngineChoice, FirstToken, Scope
from exitbench.harness.planning.suite import DTYPES
from exitbench.methods.base import Method
from exitbench.methods.registry import get_method

MODEL: Final = "--model exitbench"
SEED: Final = 0
"""Of what is decoded, as of the suite that a trace is of; methods that draw have a parameter of their own."""
_AUTO_ROWS: Final = 64
"""Rows that `batch_size=auto` begins with: fewer follow where memory is out."""
_MAX_ROWS: Final = 65_536
_SHORTEST: Final = 2
_KINDS: Final = {str: "text", int: "a whole number", bool: "True or False"}


@dataclass(frozen=True)
class ModelArguments:
    """Arguments of a model, with the meanings that they have in suites.

    Attributes:
        pretrained: Folder of a checkpoint, ``hub:OWNER/NAME@REVISION``, or a model that comes along.
        method: With every parameter that is not one of the others.
        dtype: ``auto`` is that in which the weights are stored, as of lm-eval's own backend.
        device: As lm-eval names it; a GPU that is not there is the CPU, likewise.
        rows: Requests answered together, at most.
        max_length: Tokens of context and answer that the model reads; None: as its configuration says.
        first_token: Whether the first token may leave early; None: in log-likelihoods only, as in suites.
        hub: Whether the hub may be asked for the model.
        trace: Folder for the exits of every token; None: they are dropped.
        include: Folder of the YAML files that the traced tasks are from.
        data_dir: Folder that files of traced tasks are read below; None: the current one.
    """

    pretrained: str
    method: Method
    dtype: str = "auto"
    device: str = "auto"
    engine: EngineChoice = "auto"
    rows: int = 1
    max_length: int | None = None
    first_token: FirstToken | None = None
    scope: Scope = "token"
    hub: bool = False
    trace: str | None = None
    include: str | None = None
    data_dir: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


_GIVEN: Final = {
    "pretrained": str,
    "method": str,
    "dtype": str,
    "device": str,
    "engine": str,
    "max_length": int,
    "first_token": str,
    "scope": str,
    "hub": bool,
    "trace": str,
    "include": str,
    "data_dir": str,
}
_OF_LM_EVAL: Final = ("batch_size", "max_batch_size", "trust_remote_code")
_CHOICES: Final = {"dtype": DTYPES, "engine": ENGINES, "first_token": FIRST_TOKENS, "scope": SCOPES}


def read_arguments(given: Mapping[str, Any]) -> ModelArguments:
    """Read what lm-eval hands to a model: `model_args`, and batch size and device of its own command line.

    Raises:
        UserError: Names the argument and what is allowed.
    """
    if "pretrained" not in given:
        raise UserError(f"{MODEL}: pretrained is missing in model_args; it must be a checkpoint's folder, or hub:NAME.")
    values = {name: _typed(name, given[name], kind) for name, kind in _GIVEN.items() if given.get(name) is not None}
    for name, allowed in _CHOICES.items():
        if name in values and values[name] not in allowed:
            raise UserError(f"{MODEL}: {name} is {values[name]!r}.{suggestion(values[name], allowed)}")
    if given.get("trust_remote_code"):
        raise UserError(f"{MODEL}: trust_remote_code is never true: models are run by the engine's own code.")
    name = values.pop("method", "full")
    method = get_method(name, MODEL)
    params = {key: value for key, value in given.items() if key not in _GIVEN and key not in _OF_LM_EVAL}
    parameters = {one.name for one in dataclasses.fields(method)}
    for key in params:
        if key not in parameters:
            allowed = (*_GIVEN, *_OF_LM_EVAL[:2], *parameters)
            raise UserError(f"{MODEL}: unknown argument {key!r} of method {name!r}.{suggestion(key, allowed)}")
    made = method.from_params(params, MODEL)
    if made.fit_params():
        raise UserError(f"{MODEL}: method {name!r} must be fitted first: run it in a suite (`exitbench fit`).")
    rows = _rows(given.get("batch_size"), given.get("max_batch_size"))
    return ModelArguments(**cast(Any, {**values, "method": made, "rows": rows, "params": params}))


def _typed(name: str, value: Any, kind: type[Any]) -> Any:
    """lm-eval reads what looks like a number as one, so that names may have become numbers."""
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if type(value) is not kind:
        raise UserError(f"{MODEL}: {name} is {value!r}; it must be {_KINDS[kind]}.")
    if name == "max_length" and value < _SHORTEST:
        raise UserError(f"{MODEL}: max_length is {value}; it must be 2 or more.")
    return value


def _rows(batch_size: Any, most: Any) -> int:
    if batch_size is None:
        return 1
    text = str(batch_size)
    if text == "auto" or text.startswith("auto:"):
        return _whole("max_batch_size", most) if most is not None else _AUTO_ROWS
    return _whole("batch_size", text)


def _whole(name: str, value: Any) -> int:
    text = str(value)
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _MAX_ROWS):
        also = ", or auto" if name == "batch_size" else ""
        raise UserError(f"{MODEL}: {name} is {value!r}; it must be a whole number from 1 to {_MAX_ROWS}{also}.")
    return int(text)
