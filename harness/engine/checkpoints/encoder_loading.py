"""Load encoder-only classifiers without running code from their folder, and check their logits on loading."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from exitbench.errors import UserError
from exitbench.harness.cells.cell import EngineName
from exitbench.harness.engine.checkpoints.exit_head_files import load_off_ramps
from exitbench.harness.engine.checkpoints.files import CONFIG, check_plain
from exitbench.harness.engine.checkpoints.hosted_loading import load_transformers_model, read_hosted_config
from exitbench.harness.engine.checkpoints.sizes import require_room
from exitbench.harness.engine.checkpoints.tensor_files import Tensors
from exitbench.harness.engine.encoders.families import FAMILIES
from exitbench.harness.engine.encoders.model import EncoderClassifier
from exitbench.harness.engine.encoders.stack import EncoderStack, find_encoder_stack
from exitbench.harness.engine.hosted.proof import Differs, as_user_errors, same
from exitbench.harness.reading.config_values import shortened
from exitbench.harness.reading.regular_files import read_json
from exitbench.tasks.base import ModelKind

_ENDING: Final = "ForSequenceClassification"


@dataclass(frozen=True)
class EncoderCheckpoint:
    """A loaded encoder-only classifier; `Checkpoint` is its counterpart for models that generate text.

    Attributes:
        model: The encoder with its classifier and off-ramps.
        eos_ids: Always empty, since a classifier generates no tokens.
    """

    model: EncoderClassifier
    eos_ids: frozenset[int] = frozenset()

    @property
    def engine(self) -> EngineName:
        """Name of the engine that runs the model."""
        return self.model.engine

    @property
    def kind(self) -> ModelKind:
        """Model kind, ``encoder``."""
        return "encoder"


def is_encoder(folder: Path) -> bool:
    """Return whether config.json names a sequence classifier; False if its list of architectures is malformed."""
    named = read_json(folder / CONFIG).get("architectures")
    return isinstance(named, list) and any(isinstance(name, str) and name.endswith(_ENDING) for name in named)


def load_encoder(folder: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> EncoderCheckpoint:
    """Load a classifier and its off-ramps, and check that its blocks, run one by one, give transformers' logits.

    Args:
        folder: Folder of the checkpoint.
        dtype: Number format of the weights.
        device: Torch device; on ``meta`` nothing is computed, and nothing is checked.

    Raises:
        UserError: Something in the folder cannot be read or would be ignored, or the off-ramps do not fit the model.
    """
    raw, path = read_json(folder / CONFIG), folder / CONFIG
    name = raw.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise UserError(
            f"{path}: model_type {shortened(name)} has no classifier with exits. Allowed: "
            f"{', '.join(sorted(FAMILIES))}."
        )
    check_plain(folder, raw)
    require_room(folder, dtype, device)
    config = read_hosted_config(path, raw)
    if config.problem_type == "multi_label_classification":
        raise UserError(f"{path}: problem_type {config.problem_type!r}; allowed: one label a text, or a number.")
    with as_user_errors(name):
        stack = find_encoder_stack(_lm(folder, name, config, dtype, device))
        if device != "meta":
            _prove(stack)
        off_ramps = load_off_ramps(folder, stack.n_blocks, stack.d_model, stack.n_labels, dtype, device)
        return EncoderCheckpoint(EncoderClassifier(stack, off_ramps))


def _lm(folder: Path, family: str, config: Any, dtype: torch.dtype, device: str) -> Any:
    import transformers
    from transformers.models.auto import modeling_auto

    cls = getattr(transformers, modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES[family])
    harmless = [re.compile(pattern) for pattern in FAMILIES[family].harmless]
    tensors = Tensors(folder, None, "meta" if device == "meta" else "cpu")
    read = [name for name in tensors.files if not any(pattern.fullmatch(name) for pattern in harmless)]
    attention = "sdpa" if getattr(cls, "_supports_sdpa", False) else "eager"
    unread = {name: tensors.unread(name) for name in read}
    return (
        load_transformers_model(folder, cls, config, unread, dtype, attention, {"": device})
        .eval()
        .requires_grad_(False)
    )


@torch.inference_mode()
def _prove(stack: EncoderStack) -> None:
    """Check that blocks run one by one give the logits of transformers' forward pass, for two texts, one padded.

    Raises:
        Differs: The logits differ, or the forward pass does not call every block once.
    """
    length = min(6, stack.max_positions)
    draw = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(
        min(3, stack.lm.config.vocab_size - 1), stack.lm.config.vocab_size, (2, length), generator=draw
    )
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[1, length // 2 + 1 :] = 0
    ids_BT = torch.where(mask_BT == 1, ids_BT, stack.pad_id).to(stack.lm.device)
    mask_BT = mask_BT.to(ids_BT.device)
    hidden, context = stack.embed(ids_BT, mask_BT)
    if len(context.calls) != stack.n_blocks:
        raise Differs(f"{len(context.calls)} blocks are called, {CONFIG} says {stack.n_blocks}")
    for block in range(1, stack.n_blocks + 1):
        hidden = stack.block(block, hidden, context)
    logits_BC = stack.classify(stack.pooled(hidden, context))
    same("the classifier's logits", logits_BC, stack.lm(input_ids=ids_BT, attention_mask=mask_BT).logits)
