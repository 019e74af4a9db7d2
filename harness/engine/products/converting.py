"""Change the form of a model's weights, a block at a time: never two forms of the whole model in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from exitbench.harness.engine.model.model import Transformer
from exitbench.harness.engine.model.weights import BlockWeights, Linear
from exitbench.harness.engine.products.int8 import ByBf16, Int8


def convert_blocks(model: Transformer, convert: Callable[[BlockWeights], BlockWeights]) -> None:
    """Convert the decoder blocks of a model that nobody has decoded with yet."""
    model.weights, blocks = replace(model.weights, blocks=()), list(model.weights.blocks)
    for index, block in enumerate(blocks):
        blocks[index] = convert(block)
    model.weights = replace(model.weights, blocks=tuple(blocks))


def quantise(model: Transformer) -> None:
    """Round every projection of a bf16 model to int8, those of the encoder and the LM head too."""
    form: Callable[[Linear], Linear] = Int8.of if model.device.type == "cpu" else ByBf16.of
    convert_blocks(model, lambda block: block.converted(form))
    encoder_blocks = tuple(block.converted(form) for block in model.weights.encoder_blocks)
    model.weights = replace(model.weights, encoder_blocks=encoder_blocks, lm_head=form(model.weights.lm_head))
