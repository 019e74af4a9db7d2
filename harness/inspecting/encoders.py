"""All that can be told of a classifier's folder: what it is, what reads its blocks, which methods run on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from exitbench.errors import UserError, told
from exitbench.harness.engine.checkpoints.encoder_loading import load_encoder
from exitbench.harness.engine.checkpoints.tokenizer_files import check_vocabulary, load_tokenizer
from exitbench.harness.engine.encoders.model import EncoderClassifier, OffRamps, why_not
from exitbench.harness.inspecting.stored import Stored, read_stored
from exitbench.methods.registry import get_method, method_names


@dataclass(frozen=True)
class Ramps:
    """Off-ramps: their kind, the blocks that have one, and all their parameters."""

    kind: str
    blocks: tuple[int, ...]
    numel: int


@dataclass(frozen=True)
class ClassifierShape:
    """What a classifier is made of.

    Attributes:
        blocks: L; a shared block counts once for each call.
        width: Of the states.
        positions: Tokens that a text may have.
        vocabulary: Rows of the embedding.
        labels: What the checkpoint calls them; one of a regression.
        parameters: All of them, off-ramps apart.
        off_ramps: None where the model's own classifier reads out every block.
        block_flops: Of one block and a text of as many tokens as ``counted_tokens``.
        counted_tokens: The positions.
        head_numel: Weights that a read-out with the model's own classifier multiplies.
    """

    blocks: int
    width: int
    positions: int
    vocabulary: int
    labels: tuple[str, ...]
    parameters: int
    off_ramps: Ramps | None
    block_flops: float
    counted_tokens: int
    head_numel: int


@dataclass(frozen=True)
class RunnableMethod:
    """A method with its default parameters: whether it is fitted first, and why it cannot be run; None where it can."""

    method: str
    is_fitted: bool
    why_not: str | None


@dataclass(frozen=True)
class ClassifierInspection:
    """What is known of a classifier's folder; None stands for what could not be found out, and ``lacks`` says why.

    Attributes:
        folder: Where it lies.
        model_class: Class of transformers.
        shape: Of the model, which block by block computes what it does as a whole.
        tokenizer: Class.
        n_tokens: Its tokens.
        methods: Every method there is.
        lacks: What keeps it from being run, each in the words of what refused it.
    """

    folder: str
    model_class: str | None
    shape: ClassifierShape | None
    stored: Stored | None
    tokenizer: str | None
    n_tokens: int | None
    methods: tuple[RunnableMethod, ...]
    lacks: tuple[str, ...]


def inspect_classifier(folder: Path) -> ClassifierInspection:
    """Load a classifier, and find out what can be run on it."""
    lacks: list[str] = []
    model = tokenizer = stored = None
    try:
        stored = read_stored(folder)
        model = load_encoder(folder).model
    except UserError as refusal:
        lacks.append(str(refusal))
    try:
        tokenizer = load_tokenizer(folder)
        if model is not None:
            check_vocabulary(folder, tokenizer, model.n_tokens)
    except UserError as refusal:
        lacks.append(str(refusal))
    return ClassifierInspection(
        folder=str(folder),
        model_class=None if model is None else type(model.stack.lm).__name__,
        shape=None if model is None else _shape(model),
        stored=stored,
        tokenizer=None if tokenizer is None else type(tokenizer).__name__,
        n_tokens=None if tokenizer is None else len(tokenizer),
        methods=() if model is None else tuple(_runnable(name, model) for name in method_names()),
        lacks=tuple(lacks),
    )


def _shape(model: EncoderClassifier) -> ClassifierShape:
    ramps = model.off_ramps
    return ClassifierShape(
        blocks=model.n_blocks,
        width=model.d_model,
        positions=model.max_positions,
        vocabulary=model.n_tokens,
        labels=model.labels,
        parameters=sum(parameter.numel() for parameter in model.stack.lm.parameters()),
        off_ramps=None if ramps is None else _ramps(ramps),
        block_flops=model.block_cost(model.max_positions).flops,
        counted_tokens=model.max_positions,
        head_numel=model.stack.classifier_numel,
    )


def _ramps(ramps: OffRamps) -> Ramps:
    return Ramps(ramps.kind, ramps.blocks, sum(tensor.numel() for tensor in ramps.tensors.values()))


def _runnable(name: str, model: EncoderClassifier) -> RunnableMethod:
    """Whether a method runs, as the planner decides it."""
    is_fitted = False
    try:
        method = get_method(name)()
        method.check(model.n_blocks)
        method, is_fitted = method.bound_to(model.exit_blocks), bool(method.fit_params())
        parts = method.parts(model.n_blocks)
        reason = why_not(parts, is_regression=model.is_regression, is_fitted=is_fitted)
        return RunnableMethod(name, is_fitted, reason)
    except UserError as refusal:
        return RunnableMethod(name, is_fitted, str(refusal))
    except Exception as error:  # whatever a method of another distribution raises
        return RunnableMethod(name, is_fitted, f"{type(error).__name__}: {told(error)}")
