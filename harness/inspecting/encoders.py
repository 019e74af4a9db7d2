"""Inspection of a classifier's folder: architecture, off-ramps of its blocks, and runnable methods."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from exitbench.errors import UserError, one_line
from exitbench.harness.engine.checkpoints.encoder_loading import load_encoder
from exitbench.harness.engine.checkpoints.tokenizer_files import check_vocabulary, load_tokenizer
from exitbench.harness.engine.encoders.model import EncoderClassifier, why_not
from exitbench.harness.inspecting.parameters import StoredWeights, TrainedHeads, read_stored
from exitbench.methods.registry import get_method, method_names


@dataclass(frozen=True)
class ClassifierShape:
    """Architecture of a classifier.

    Attributes:
        blocks: Number of blocks, L; a shared block counts once per call.
        width: Width of the states.
        positions: Maximum number of tokens per text.
        vocabulary: Number of rows of the embedding.
        labels: Label names from the checkpoint; for regression, a tuple of length 1.
        parameters: Total number of parameters, without off-ramps.
        off_ramps: The off-ramps; None if the model's own classifier reads out every block.
        block_flops: FLOPs of one block for a text of ``counted_tokens`` tokens.
        counted_tokens: Length of that text: the model's number of positions.
        head_numel: Number of weights in the model's own classifier.
    """

    blocks: int
    width: int
    positions: int
    vocabulary: int
    labels: tuple[str, ...]
    parameters: int
    off_ramps: TrainedHeads | None
    block_flops: float
    counted_tokens: int
    head_numel: int


@dataclass(frozen=True)
class RunnableMethod:
    """Whether a method with default parameters can run on a classifier.

    Attributes:
        method: Name of the method.
        is_fitted: Whether the method must be fitted first.
        why_not: Reason why the method cannot run; None if it can.
    """

    method: str
    is_fitted: bool
    why_not: str | None


@dataclass(frozen=True)
class ClassifierInspection:
    """Facts about a classifier's folder. Unknown values are None, with the reasons in ``lacks``.

    Attributes:
        folder: Path of the folder.
        model_class: The transformers class.
        shape: Architecture of the model.
        stored: Weight files.
        tokenizer: Class of the tokenizer.
        n_tokens: Size of the tokenizer's vocabulary.
        methods: Every method, and whether it can run.
        lacks: Messages of the errors that keep the classifier from running.
    """

    folder: str
    model_class: str | None
    shape: ClassifierShape | None
    stored: StoredWeights | None
    tokenizer: str | None
    n_tokens: int | None
    methods: tuple[RunnableMethod, ...]
    lacks: tuple[str, ...]


def inspect_classifier(folder: Path) -> ClassifierInspection:
    """Load a classifier, describe it, and check which methods can run on it."""
    errors: list[str] = []
    model = tokenizer = stored = None
    try:
        stored = read_stored(folder)
        model = load_encoder(folder).model
    except UserError as refusal:
        errors.append(str(refusal))
    try:
        tokenizer = load_tokenizer(folder)
        if model is not None:
            check_vocabulary(folder, tokenizer, model.n_tokens)
    except UserError as refusal:
        errors.append(str(refusal))
    return ClassifierInspection(
        folder=str(folder),
        model_class=None if model is None else type(model.stack.lm).__name__,
        shape=None if model is None else _shape(model),
        stored=stored,
        tokenizer=None if tokenizer is None else type(tokenizer).__name__,
        n_tokens=None if tokenizer is None else len(tokenizer),
        methods=() if model is None else tuple(_runnable(name, model) for name in method_names()),
        lacks=tuple(errors),
    )


def _shape(model: EncoderClassifier) -> ClassifierShape:
    return ClassifierShape(
        blocks=model.n_blocks,
        width=model.d_model,
        positions=model.max_positions,
        vocabulary=model.n_tokens,
        labels=model.labels,
        parameters=sum(parameter.numel() for parameter in model.stack.lm.parameters()),
        off_ramps=TrainedHeads.of(model.off_ramps),
        block_flops=model.block_cost(model.max_positions).flops,
        counted_tokens=model.max_positions,
        head_numel=model.stack.classifier_numel,
    )


def _runnable(name: str, model: EncoderClassifier) -> RunnableMethod:
    """Return whether a method with default parameters can run on a model, by the same checks as a run's plan."""
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
    except Exception as error:  # a third-party method may raise anything
        return RunnableMethod(name, is_fitted, f"{type(error).__name__}: {one_line(error)}")
