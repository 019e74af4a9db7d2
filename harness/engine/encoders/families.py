"""Encoder families: where the blocks are in the model, and how its classifier computes logits from a text's state.

No other module knows a family. Shape suffixes: A texts, D model width, C labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class EncoderFamily:
    """Module names and options of the classifiers of one encoder family.

    Attributes:
        blocks: Name of the list of blocks in the base model.
        classify: Applies the model's own classifier: maps the whole model and pooled states [A, D] to logits [A, C].
        classifier: Names of the modules that the classifier consists of.
        final_norm: Name of the norm after the last block; None if each block ends with one.
        returns_tuple: Whether blocks return a tuple that starts with their state.
        plain: Required values of config keys that are present; other values add computation between the blocks.
        positions_follow_padding: Whether a text's first position is the padding id plus 1, as in RoBERTa.
        harmless: Patterns of the names of stored tensors that are not used in computation.
    """

    blocks: str
    classify: Callable[[Any, Tensor], Tensor]
    classifier: tuple[str, ...]
    final_norm: str | None = None
    returns_tuple: bool = False
    plain: Mapping[str, int] = field(default_factory=dict)
    positions_follow_padding: bool = False
    harmless: tuple[str, ...] = ()

    def first_position(self, config: Any) -> int:
        """Return the position id of a text's first token, which is its index in the position embedding."""
        return int(config.pad_token_id) + 1 if self.positions_follow_padding else 0


def _pooler_of_base(lm: Any, state_AD: Tensor) -> Tensor:
    logits: Tensor = lm.classifier(lm.dropout(lm.base_model.pooler(state_AD[:, None])))
    return logits


def _linear_pooler_of_base(lm: Any, state_AD: Tensor) -> Tensor:
    base = lm.base_model
    logits: Tensor = lm.classifier(lm.dropout(base.pooler_activation(base.pooler(state_AD))))
    return logits


def _head_on_sequence(lm: Any, state_AD: Tensor) -> Tensor:
    logits: Tensor = lm.classifier(state_AD[:, None])
    return logits


def _pooler_of_head(lm: Any, state_AD: Tensor) -> Tensor:
    logits: Tensor = lm.classifier(lm.dropout(lm.pooler(state_AD[:, None])))
    return logits


def _two_layers(lm: Any, state_AD: Tensor) -> Tensor:
    logits: Tensor = lm.classifier(lm.dropout(lm.pre_classifier(state_AD).relu()))
    return logits


def _normed_head(lm: Any, state_AD: Tensor) -> Tensor:
    logits: Tensor = lm.classifier(lm.drop(lm.head(state_AD)))
    return logits


_POSITION_IDS = r"(\w+\.)?embeddings\.(position_ids|token_type_ids)"
"""Buffers of earlier versions of transformers."""

FAMILIES: dict[str, EncoderFamily] = {
    "bert": EncoderFamily("encoder.layer", _pooler_of_base, ("pooler", "classifier"), harmless=(_POSITION_IDS,)),
    "roberta": EncoderFamily(
        "encoder.layer",
        _head_on_sequence,
        ("classifier",),
        positions_follow_padding=True,
        harmless=(_POSITION_IDS, r"roberta\.pooler\.dense\.(weight|bias)"),
    ),
    "albert": EncoderFamily(
        "encoder.albert_layer_groups", _linear_pooler_of_base, ("pooler", "classifier"), harmless=(_POSITION_IDS,)
    ),
    "electra": EncoderFamily("encoder.layer", _head_on_sequence, ("classifier",), harmless=(_POSITION_IDS,)),
    "distilbert": EncoderFamily("transformer.layer", _two_layers, ("pre_classifier", "classifier")),
    "deberta-v2": EncoderFamily(
        "encoder.layer",
        _pooler_of_head,
        ("pooler", "classifier"),
        returns_tuple=True,
        plain={"conv_kernel_size": 0, "z_steps": 1},
        harmless=(_POSITION_IDS,),
    ),
    "modernbert": EncoderFamily("layers", _normed_head, ("head", "classifier"), final_norm="final_norm"),
}
