"""Notebook API for encoder classifiers: classify texts with any early-exit method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from exitbench.errors import UserError
from exitbench.harness.cells.cell import GenerationSettings
from exitbench.harness.cells.seeds import decode_seed
from exitbench.harness.cells.texts import TextEncoding
from exitbench.harness.engine.checkpoints.encoder_loading import EncoderCheckpoint
from exitbench.harness.engine.encoders.classify import Classified
from exitbench.harness.engine.encoders.classify import classify as classify_batch
from exitbench.methods.base import Method
from exitbench.methods.registry import get_method

if TYPE_CHECKING:
    import pandas as pd

    from exitbench.harness.api.models import Model

__all__ = ["BlockPrediction", "Classification", "Classifier", "classify"]

_AS_LONG_AS_THE_MODEL: Final = GenerationSettings(max_new_tokens=1)


@dataclass(frozen=True)
class Classifier:
    """A loaded encoder classifier and its tokenizer, as returned by `load_model`.

    Attributes:
        folder: Folder from which the checkpoint was loaded.
        checkpoint: The model with its weights, as loaded by this project's engine.
        tokenizer: The transformers tokenizer.
    """

    folder: Path
    checkpoint: EncoderCheckpoint
    tokenizer: Any

    @property
    def n_blocks(self) -> int:
        """Number of encoder blocks, L."""
        return self.checkpoint.model.n_blocks

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names from the checkpoint; for regression, a tuple of length 1."""
        return self.checkpoint.model.labels

    def __repr__(self) -> str:
        """Return a short text with folder, number of labels and number of blocks; tensors are left out."""
        return f"Classifier({str(self.folder)!r}, {len(self.labels)} labels, {self.n_blocks} blocks)"


@dataclass(frozen=True)
class BlockPrediction:
    """Prediction for one text after one of the blocks at which it could exit.

    Attributes:
        block: The block, 1..n_blocks.
        label: The most probable label; None for regression.
        value: Probability of the label; for regression, the predicted number.
        score: The gate's score; None at the last block, which has no gate.
        exited: Whether the text exited at this block.
    """

    block: int
    label: str | None
    value: float
    score: float | None
    exited: bool


@dataclass(frozen=True)
class Classification:
    """Predicted label of one text, and its exit trace.

    Attributes:
        label: Predicted label; None for regression.
        value: Probability of the label; for regression, the predicted number.
        exit_layer: Block after which the text exited, 1..n_blocks.
        blocks_run: Number of blocks executed for the text: all blocks if the gate reads later blocks.
        trace: Predictions at the evaluated exit layers, in order.
        n_tokens: Number of tokens read by the model.
        n_cut: Number of tokens truncated on the right because the text is longer than the model's positions.
        n_blocks: Number of blocks of the model.
    """

    label: str | None
    value: float
    exit_layer: int
    blocks_run: int
    trace: tuple[BlockPrediction, ...]
    n_tokens: int
    n_cut: int
    n_blocks: int

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with one row per evaluated exit layer."""
        import pandas as pd

        return pd.DataFrame([vars(reading) for reading in self.trace])


def classify(
    model: Model | Classifier,
    texts: Sequence[str | tuple[str, str]],
    method: str | Method = "full",
    *,
    seed: int = 0,
    **params: Any,
) -> list[Classification]:
    """Classify texts or text pairs with an early-exit method, in one batch. Each text exits independently.

    Args:
        model: A `Classifier`, from `load_model`.
        texts: Texts or pairs of texts. Inputs longer than the model's positions are truncated on the right.
        method: A name from `exitbench.method_names()`, or a method object.
        seed: Seed of random methods, combined with the index of the text.
        **params: Parameters of the method, such as ``threshold=0.9``.

    Returns:
        One `Classification` per text, in order.

    Raises:
        UserError: The model is not a classifier, or the method or a parameter is unknown, incompatible with the model,
            or must be fitted first.

    Examples:
        >>> import exitbench as eb
        >>> model = eb.load_model("builtin-encoder-joint")
        >>> answers = eb.classify(model, ["two happy three sad happy ."], "static", exit_layer=2)
        >>> answers[0].exit_layer
        2
    """
    if not isinstance(model, Classifier):
        raise UserError("this model generates text; classify needs a classifier. Decode with it: eb.decode.")
    chosen = bound_method(model.checkpoint.model.n_blocks, model.checkpoint.model.exit_blocks, method, params)
    parts = chosen.parts(model.n_blocks)
    reason = model.checkpoint.model.why_not(parts, len(texts))
    if reason is not None:
        raise UserError(f"{chosen.name!r} cannot be run on {str(model.folder)!r}: {reason}.")
    encoding = TextEncoding(model.tokenizer, _AS_LONG_AS_THE_MODEL, model.checkpoint.model.max_positions)
    pairs = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
    encoded = [encoding(pair, decode_seed(seed, str(at))) for at, pair in enumerate(pairs)]
    if not encoded:
        return []
    classified = classify_batch(model.checkpoint.model, encoded, parts)
    return [
        _classification(model, result, len(text.ids), text.n_cut)
        for result, text in zip(classified, encoded, strict=True)
    ]


def bound_method(
    n_blocks: int, exit_blocks: tuple[int, ...], method: str | Method, params: Mapping[str, Any]
) -> Method:
    """Return a method object with its parameters set, checked for a model and adapted to its exit heads.

    Args:
        n_blocks: Number of blocks of the model.
        exit_blocks: Blocks with a trained exit head or off-ramp; () if there are none.
        method: A method's name or a method object.
        params: Parameters by name; empty if `method` is an object.

    Raises:
        UserError: The method or a parameter is unknown, the method is incompatible with the model, or it must be fitted
            first.
    """
    if isinstance(method, str):
        method = get_method(method).from_params(dict(params))
    elif params:
        raise UserError(f"parameters {', '.join(params)} go with a method's name, not with a method object.")
    method.check(n_blocks)
    if method.fit_params():
        raise UserError(
            f"method {method.name!r} must be fitted first: run it in a suite (`exitbench run SUITE --kinds fit`)."
        )
    return method.bound_to(exit_blocks)


def _classification(model: Classifier, result: Classified, n_tokens: int, n_cut: int) -> Classification:
    is_number = model.checkpoint.model.is_regression

    def named(label: int) -> str | None:
        return None if is_number else model.labels[label]

    return Classification(
        label=named(result.label),
        value=result.value,
        exit_layer=result.record.exit_layer,
        blocks_run=result.record.blocks_run,
        trace=tuple(
            BlockPrediction(reading.block, named(reading.label), reading.value, reading.score, reading.exited)
            for reading in result.readings
        ),
        n_tokens=n_tokens,
        n_cut=n_cut,
        n_blocks=model.n_blocks,
    )
