"""lm-eval backend of this project: ``lm_eval.simple_evaluate(model="exitbench", model_args=...)``."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

import torch
from lm_eval.api.instance import Instance

from exitbench.errors import UserError, suggestion
from exitbench.harness.api.lm_eval_trace import MODEL, SEED, RecordedAnswers, watch_evaluations
from exitbench.harness.api.models import find_model
from exitbench.harness.cells.cell import (
    ENGINES,
    FIRST_TOKENS,
    SCOPES,
    EngineChoice,
    FirstToken,
    GenerationSettings,
    Scope,
)
from exitbench.harness.cells.prompts import Prompts
from exitbench.harness.cells.seeds import decode_seed
from exitbench.harness.engine.checkpoints.loading import load_checkpoint
from exitbench.harness.engine.checkpoints.tokenizer_files import load_tokenizer
from exitbench.harness.engine.decoding.likelihood import why_not
from exitbench.harness.engine.products.choosing import use_fastest
from exitbench.harness.planning.plan import gpu_names, resolve_device, resolve_dtype
from exitbench.harness.planning.suite import DTYPES
from exitbench.harness.work.encoding import Encoding, reads_up_to
from exitbench.harness.work.lm import DocumentAnswer, EarlyExitLM
from exitbench.harness.work.scored_texts import ScoredText
from exitbench.methods.base import Method
from exitbench.methods.registry import get_method
from exitbench.progress import counting
from exitbench.tasks.lm_eval.settings import why_not_greedy
from exitbench.tasks.lm_eval.task import document_key

_AUTO_ROWS: Final = 64
"""Initial number of requests per batch for `batch_size=auto`, reduced when memory runs out."""
_MAX_ROWS: Final = 65_536
_SHORTEST: Final = 2
_KINDS: Final = {str: "text", int: "a whole number", bool: "True or False"}


@dataclass(frozen=True)
class ModelArguments:
    """Parsed `model_args` of lm-eval; each setting means the same as in a suite.

    Attributes:
        pretrained: Folder of a checkpoint, ``hub:OWNER/NAME@REVISION``, or a bundled model.
        method: The method; arguments that are not attributes of this class are its parameters.
        dtype: ``auto`` is the dtype of the stored weights, as in lm-eval's own backend.
        device: Device in lm-eval's notation. As in lm-eval, a GPU that does not exist is replaced by the CPU.
        engine: ``lean`` or ``hosted``; ``auto`` is the lean engine if it can run the model, else the hosted one.
        rows: Maximum number of requests per batch.
        max_length: Maximum tokens of context and answer; None for the maximum in the model's configuration.
        first_token: ``gated``: the first token may exit early; ``full``: it may not; None: it may if texts are scored.
        scope: ``token``: each token exits by itself; ``context``: scored texts keep their first token's exit layer.
        hub: Whether the model may be downloaded from the hub.
        trace: Folder where the exit layers of every token are stored; None to store nothing.
        include: Folder with the YAML files of the traced tasks.
        data_dir: Root folder of the traced tasks' files; None for the current folder.
        params: Parameters of the method as given, by name.
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


_ARGUMENT_TYPES: Final[Mapping[str, type[Any]]] = {
    **{item.name: str for item in dataclasses.fields(ModelArguments) if item.name not in ("rows", "params")},
    "max_length": int,
    "hub": bool,
}
_OF_LM_EVAL: Final = ("batch_size", "max_batch_size", "trust_remote_code")
_CHOICES: Final = {"dtype": DTYPES, "engine": ENGINES, "first_token": FIRST_TOKENS, "scope": SCOPES}


def read_arguments(model_args: Mapping[str, Any]) -> ModelArguments:
    """Parse the arguments that lm-eval passes to a model: `model_args`, and batch size and device of its command line.

    Raises:
        UserError: An argument is not allowed; the message names it and the allowed values.
    """
    if "pretrained" not in model_args:
        raise UserError(f"{MODEL}: pretrained is missing in model_args; it must be a checkpoint's folder, or hub:NAME.")
    values = {
        name: _typed(name, model_args[name], kind)
        for name, kind in _ARGUMENT_TYPES.items()
        if model_args.get(name) is not None
    }
    for name, allowed in _CHOICES.items():
        if name in values and values[name] not in allowed:
            raise UserError(f"{MODEL}: {name} is {values[name]!r}.{suggestion(values[name], allowed)}")
    if model_args.get("trust_remote_code"):
        raise UserError(f"{MODEL}: trust_remote_code is never true: models are run by the engine's own code.")
    name = values.pop("method", "full")
    method = get_method(name, MODEL)
    params = {key: value for key, value in model_args.items() if key not in _ARGUMENT_TYPES and key not in _OF_LM_EVAL}
    parameters = {item.name for item in dataclasses.fields(method)}
    for key in params:
        if key not in parameters:
            allowed = (*_ARGUMENT_TYPES, *_OF_LM_EVAL[:2], *parameters)
            raise UserError(f"{MODEL}: unknown argument {key!r} of method {name!r}.{suggestion(key, allowed)}")
    bound = method.from_params(params, MODEL)
    if bound.fit_params():
        raise UserError(
            f"{MODEL}: method {name!r} must be fitted first: run it in a suite (`exitbench run SUITE --kinds fit`)."
        )
    rows = _rows(model_args.get("batch_size"), model_args.get("max_batch_size"))
    return ModelArguments(**cast(Any, {**values, "method": bound, "rows": rows, "params": params}))


def _typed(name: str, value: Any, kind: type[Any]) -> Any:
    """Check the type of an argument and return it; a name that lm-eval parsed as a number is converted back to text."""
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
        return _positive_int("max_batch_size", most) if most is not None else _AUTO_ROWS
    return _positive_int("batch_size", text)


def _positive_int(name: str, value: Any) -> int:
    text = str(value)
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _MAX_ROWS):
        also = ", or auto" if name == "batch_size" else ""
        raise UserError(f"{MODEL}: {name} is {value!r}; it must be a whole number from 1 to {_MAX_ROWS}{also}.")
    return int(text)


class ExitBenchLM(EarlyExitLM):
    """lm-eval model: a checkpoint with an early-exit method, built from `model_args`.

    All arguments, including those of the method, are described in docs/lm-eval.md. While an instance exists, lm-eval's
    `evaluate` is wrapped (`watch_evaluations`). The original is restored when the last instance is deleted.

    Attributes:
        dtype: Number format of the weights.
        recorded: Requests and their answers so far, if `trace` is set; they are written after the evaluation.
        splits: Split of each task under evaluation: ``test`` or ``validation``.

    Raises:
        UserError: An argument is not allowed, or the model or the method cannot be run.
    """

    def __init__(self, **model_args: Any) -> None:
        arguments = self.arguments = read_arguments(model_args)
        self.folder = find_model(arguments.pretrained, hub=arguments.hub)
        device = available_device(arguments.device)
        self.dtype = resolve_dtype(arguments.dtype, self.folder)
        checkpoint = load_checkpoint(self.folder, getattr(torch, self.dtype), device, arguments.engine)
        self._products = use_fastest(checkpoint.model)
        tokenizer: Any = load_tokenizer(self.folder)
        longest = reads_up_to(self.folder, tokenizer, checkpoint.model.max_positions)
        self.max_length = min(longest, arguments.max_length or longest)
        arguments.method.check(checkpoint.model.n_blocks)
        parts = arguments.method.bound_to(checkpoint.model.exit_blocks).parts(checkpoint.model.n_blocks)
        if (reason := checkpoint.model.why_not(parts, arguments.rows)) is not None:
            raise UserError(f"{MODEL}: {reason}")
        super().__init__(
            checkpoint,
            _answer_prompts(tokenizer, arguments),
            parts,
            arguments.rows,
            functools.partial(decode_seed, SEED),
            lambda n_done: None,
            Encoding(tokenizer, checkpoint.kind, self.max_length),
            lambda request: self._keys[id(request)],
        )
        self._device = torch.device(device)
        # Part of lm-eval's key for cached requests, which depend on the tokenizer.
        self.tokenizer_name = str(self.folder).replace("/", "__")
        self._generating, self._scoring = self.prompts, _scoring_prompts(tokenizer, arguments)
        self._keys: dict[int, str] = {}
        self.recorded: RecordedAnswers = {}
        self.splits: dict[str, str] = {}
        watch_evaluations(self)

    @property
    def traces(self) -> bool:
        """Whether the exit layers of this evaluation's tokens are stored in a trace folder."""
        return self.arguments.trace is not None

    def tok_decode(self, tokens: int | Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids, by default without special tokens."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens))

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer generation requests greedily; return the texts in request order.

        Raises:
            UserError: A request requires sampling or beams.
        """
        for request in requests:
            _require_greedy(request)
        self.prompts = self._generating
        with self._progress_shown(requests, "generating", len(self.answers), is_quiet=disable_tqdm):
            texts = super().generate_until(requests, disable_tqdm)
        self._keep(requests, [self.answers[self.key_of(request)] for request in requests])
        return texts

    def get_model_info(self) -> dict[str, Any]:
        """Return what lm-eval stores about the model with its results.

        Keys: ``model_dtype``, and ``exitbench`` with the method, its parameters, the number of tokens so far, and
        their mean exit layer.
        """
        method, layers = self.arguments.method, self._exit_layers()
        mean = sum(layers) / len(layers) if layers else None
        return {
            "model_dtype": f"torch.{self.dtype}",
            "exitbench": {
                "method": method.name,
                "params": method.params(),
                "n_blocks": self.checkpoint.model.n_blocks,
                "tokens": len(layers),
                "mean_exit_layer": mean,
                **({} if self._products is None else {"products": dict(self._products)}),
            },
        }

    def _score(self, requests: list[Instance]) -> list[ScoredText]:
        if (reason := why_not(self.parts)) is not None:
            raise UserError(
                f"{MODEL}: method {self.arguments.method.name!r} does not provide log-likelihoods: it {reason}."
            )
        self.prompts = self._scoring
        with self._progress_shown(requests, "scoring", 0, is_quiet=False):
            scored = super()._score(requests)
        self._keep(requests, scored)
        return scored

    def _keep(self, requests: Sequence[Instance], answers: Sequence[DocumentAnswer | ScoredText]) -> None:
        if self.traces:
            for request, answer in zip(requests, answers, strict=True):
                self.recorded[request.task_name, request.doc_id, request.idx] = (request.args, answer)

    @contextmanager
    def _progress_shown(
        self, requests: Sequence[Instance], what: str, before: int, *, is_quiet: bool
    ) -> Iterator[None]:
        """Context manager in which a bar counts the documents whose requests have been answered.

        It first stores the key of each request's document, by which answers are counted and random methods are seeded.

        Args:
            requests: The requests that are answered in the `with` block.
            what: Label of the progress bar.
            before: Number of answers from earlier calls, which the bar does not count.
            is_quiet: Whether to show no bar.
        """
        self._keys = {id(request): _key(request, number, self.splits) for number, request in enumerate(requests)}
        total = len(set(self._keys.values()))
        if is_quiet:
            yield
            return
        with counting(what) as tell_done:
            self.on_answers = lambda n_done: tell_done(min(max(0, n_done - before), total), total)
            yield
        self.on_answers = lambda n_done: None

    def _exit_layers(self) -> list[int]:
        generated = [layer for answer in self.answers.values() for layer in answer.generation.exit_layers]
        return generated + [layer for texts in self.scored.values() for text in texts for layer in text.exit_layers]


def available_device(device: str) -> str:
    """Return the device to use. As in lm-eval, a GPU that does not exist is replaced by the first one, or by the CPU.

    Raises:
        UserError: `device` is not the name of a device.
    """
    if device == "auto" or device.partition(":")[0] == "cuda":
        return device if device in gpu_names() else resolve_device("auto")
    if device != "cpu":
        raise UserError(f"{MODEL}: device is {device!r}. Allowed: cpu, cuda, cuda:N, auto.")
    return device


def _answer_prompts(tokenizer: Any, arguments: ModelArguments) -> Prompts:
    # Each request sets its own answer length.
    return Prompts(tokenizer, GenerationSettings(1, first_token="gated" if arguments.first_token == "gated" else None))


def _scoring_prompts(tokenizer: Any, arguments: ModelArguments) -> Prompts:
    scope: Literal["context"] | None = "context" if arguments.scope == "context" else None
    is_gated = arguments.first_token != "full"
    if scope is not None and not is_gated:
        raise UserError(f'{MODEL}: scope=context keeps the depth of the first token; first_token is "full".')
    return Prompts(tokenizer, GenerationSettings(1, first_token="gated" if is_gated else None, scope=scope))


def _key(request: Instance, number: int, splits: Mapping[str, str]) -> str:
    """Return the document key of a request: the same key as in a suite, because it seeds random methods.

    If the split of the task is unknown, the key is task and document number; without these, the request number.
    """
    if request.task_name is None or request.doc_id is None:
        return f"request {number}"
    if request.task_name not in splits:
        return f"{request.task_name}/{request.doc_id}"
    return document_key(request.task_name, splits[request.task_name], request.doc_id, request.doc)


def _require_greedy(request: Instance) -> None:
    if (other := why_not_greedy(request.args[1])) is not None:
        raise UserError(
            f"{MODEL}: task {request.task_name!r} requires {other.what}, but decoding is greedy; allowed: "
            f"--gen_kwargs {other.name}={other.value}."
        )
