"""Classify texts with any early-exit method, in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from exitbench.errors import UserError
from exitbench.harness.cells.cell import GenerationSettings
from exitbench.harness.cells.seeds import seed_for
from exitbench.harness.cells.texts import TextEncoding
from exitbench.harness.engine.checkpoints.encoder_loading import EncoderCheckpoint
from exitbench.harness.engine.encoders.classify import Classified
from exitbench.harness.engine.encoders.classify import classify as classify_batch
from exitbench.methods.base import Method
from exitbench.methods.registry import get_method

if TYPE_CHECKING:
    import pandas as pd

    from exitbench.harness.api.models import Model

__all__ = ["BlockSaid", "Classification", "Classifier", "classify"]

_AS_LONG_AS_THE_MODEL: Final = GenerationSettings(max_new_tokens=1)


@dataclass(frozen=True)
class Classifier:
    """A loaded encoder and its tokenizer; `load_model` makes one of a folder that holds a classifier.

    Attributes:
        folder: Where it was loaded from.
        checkpoint: The engine's model.
        tokenizer: Of transformers.
    """

    folder: Path
    checkpoint: EncoderCheckpoint
    tokenizer: Any

    @property
    def n_blocks(self) -> int:
        """Blocks, L."""
        return self.checkpoint.model.n_blocks

    @property
    def labels(self) -> tuple[str, ...]:
        """What the checkpoint calls its labels; one of a regression."""
        return self.checkpoint.model.labels

    def __repr__(self) -> str:
        """Name the folder and the depth: tensors are no help in a notebook."""
        return f"Classifier({str(self.folder)!r}, {len(self.labels)} labels, {self.n_blocks} blocks)"


@dataclass(frozen=True)
class BlockSaid:
    """What a block that was asked said of a text.

    Attributes:
        block: Which, 1..n_blocks.
        label: The most probable; None of a regression.
        value: Its probability; of a regression the number.
        score: The gate's; None at the last block, which asks no gate.
        exited: Whether the text left here.
    """

    block: int
    label: str | None
    value: float
    score: float | None
    exited: bool


@dataclass(frozen=True)
class Classification:
    """The answer to one text.

    Attributes:
        label: With which it left; None of a regression.
        value: The label's probability; of a regression the number.
        exit_layer: The block after which it left, 1..n_blocks.
        blocks_run: Blocks executed for it: all of them under a gate that looks ahead.
        trace: What each block that was asked said, in their order.
        n_tokens: Tokens that the model read.
        n_cut: Tokens cut off on the right, for which the model has no positions.
        n_blocks: Blocks of the model.
    """

    label: str | None
    value: float
    exit_layer: int
    blocks_run: int
    trace: tuple[BlockSaid, ...]
    n_tokens: int
    n_cut: int
    n_blocks: int

    def to_pandas(self) -> pd.DataFrame:
        """A row a block that was asked."""
        import pandas as pd

        return pd.DataFrame([vars(said) for said in self.trace])


def classify(
    model: Model | Classifier,
    texts: Sequence[str | tuple[str, str]],
    method: str | Method = "full",
    *,
    seed: int = 0,
    **params: Any,
) -> list[Classification]:
    """Classify texts, or pairs of them, with an early-exit method; they are one batch, each leaves on its own.

    Args:
        model: A `Classifier`, from `load_model`.
        texts: Each a text, or a pair. What is longer than the model's positions is cut on the right.
        method: A name of `exitbench.method_names()`, or a method object.
        seed: What random methods draw from, with the place of the text.
        **params: Of the method, such as ``threshold=0.9``.

    Raises:
        UserError: The model is none that classifies; the method or a parameter is unknown, does not suit the model, or
            must be fitted first.

    Examples:
        >>> import exitbench as eb
        >>> model = eb.load_model("builtin-encoder-joint")
        >>> found = eb.classify(model, ["two happy three sad happy ."], "static", exit_layer=2)
        >>> found[0].exit_layer
        2
    """
    if not isinstance(model, Classifier):
        raise UserError("this model generates text; classify asks for a classifier. Decode with it: eb.decode.")
    chosen = bound_method(model.checkpoint.model.n_blocks, model.checkpoint.model.exit_blocks, method, params)
    parts = chosen.parts(model.n_blocks)
    reason = model.checkpoint.model.why_not(parts, len(texts))
    if reason is not None:
        raise UserError(f"{chosen.name!r} cannot be run on {str(model.folder)!r}: {reason}.")
    encoding = TextEncoding(model.tokenizer, _AS_LONG_AS_THE_MODEL, model.checkpoint.model.max_positions)
    pairs = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
    encoded = [encoding(pair, seed_for("decode", seed, str(at))) for at, pair in enumerate(pairs)]
    if not encoded:
        return []
    made = classify_batch(model.checkpoint.model, encoded, parts)
    return [_told(model, one, len(text.ids), text.n_cut) for one, text in zip(made, encoded, strict=True)]


def bound_method(
    n_blocks: int, exit_blocks: tuple[int, ...], method: str | Method, params: Mapping[str, Any]
) -> Method:
    """Return a method with its parameters, bound to a model.

    Raises:
        UserError: It or a parameter is unknown, it does not suit the model, or it must be fitted first.
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


def _told(model: Classifier, made: Classified, n_tokens: int, n_cut: int) -> Classification:
    is_number = model.checkpoint.model.is_regression

    def named(label: int) -> str | None:
        return None if is_number else model.labels[label]

    return Classification(
        label=named(made.label),
        value=made.value,
        exit_layer=made.record.exit_layer,
        blocks_run=made.record.blocks_run,
        trace=tuple(BlockSaid(one.block, named(one.label), one.value, one.score, one.exited) for one in made.readings),
        n_tokens=n_tokens,
        n_cut=n_cut,
        n_blocks=model.n_blocks,
    )
