"""The blocks of an encoder, called one by one with the arguments of transformers' own forward pass.

First, the base model's forward pass runs once per batch with stand-ins for the blocks. They return their input and
record their other arguments: masks, rotary angles, relative positions. Then the blocks are called with the recorded
arguments, on all rows or on some. A shared block (one module called L times) counts as L blocks. Everything is
differentiable, so training can run it too.

Shape suffixes: B texts of the batch, A texts that have not exited, T tokens, D model width, C labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from exitbench.errors import UserError
from exitbench.harness.engine.encoders.families import FAMILIES, EncoderFamily

_MASK_DIMENSIONS = 4
"""Dimensions of attention masks, [B, 1, T, T], the only arguments of a block with one entry per row of the batch."""

Forward = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """One recorded call of a block: the forward pass of its module, and its arguments except the state."""

    forward: Forward
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class BlockCalls:
    """Recorded calls of all blocks for a batch of texts.

    Attributes:
        calls: One call per block, in order.
        mask_AT: 1 at the tokens of each text, 0 at padding.
    """

    calls: tuple[Call, ...]
    mask_AT: Tensor

    def take(self, rows_A: Tensor) -> BlockCalls:
        """Return the calls for some of the texts, by their indices ``rows_A``."""
        selected: dict[int, Tensor] = {}  # mostly one mask for all blocks

        def chosen(value: Any) -> Any:
            if not isinstance(value, Tensor) or value.dim() != _MASK_DIMENSIONS or len(value) != len(self.mask_AT):
                return value
            if id(value) not in selected:
                selected[id(value)] = value.index_select(0, rows_A)
            return selected[id(value)]

        calls = tuple(
            Call(call.forward, tuple(map(chosen, call.args)), {name: chosen(v) for name, v in call.kwargs.items()})
            for call in self.calls
        )
        return BlockCalls(calls, self.mask_AT.index_select(0, rows_A))


@dataclass(frozen=True)
class EncoderStack:
    """The parts of a transformers classifier.

    Attributes:
        lm: The whole model, with its classifier.
        family: Module names and options of its family.
        modules: Modules of its blocks; a single one if all blocks share it.
    """

    lm: Any
    family: EncoderFamily
    modules: tuple[nn.Module, ...]

    @property
    def n_blocks(self) -> int:
        """Number of blocks that a text goes through, L."""
        return int(self.lm.config.num_hidden_layers)

    @property
    def d_model(self) -> int:
        """Width of the states, D."""
        return int(self.lm.config.hidden_size)

    @property
    def n_labels(self) -> int:
        """Number of labels of the classifier, C; 1 for a regression."""
        return int(self.lm.config.num_labels)

    @property
    def has_token_types(self) -> bool:
        """True if the embedding distinguishes the two texts of a pair."""
        return int(getattr(self.lm.config, "type_vocab_size", 0)) > 1

    @property
    def pad_id(self) -> int:
        """Token id that shorter texts of a batch are padded with."""
        return int(getattr(self.lm.config, "pad_token_id", None) or 0)

    @property
    def max_positions(self) -> int:
        """Maximum number of tokens of a text: all position embeddings but those that a family reserves for padding."""
        return int(self.lm.config.max_position_embeddings) - self.family.first_position(self.lm.config)

    @cached_property
    def classifier_numel(self) -> int:
        """Number of weights of the model's own classifier that are multiplied in one read-out."""
        return sum(
            parameter.numel()
            for name, parameter in self.lm.named_parameters()
            if parameter.dim() == 2 and any(part in name.split(".") for part in self.family.classifier)
        )

    def embed(self, ids_BT: Tensor, mask_BT: Tensor, types_BT: Tensor | None = None) -> tuple[Tensor, BlockCalls]:
        """Embed token ids [B, T], padded on the right; return states [B, T, D] and the recorded calls of all blocks.

        ``mask_BT`` is 1 at tokens and 0 at padding. ``types_BT`` are token types, which tell the texts of a pair apart.
        """
        calls: list[Call] = []
        states: list[Tensor] = []

        def note(forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            state, *other_args = args
            if not states:
                states.append(state)
            calls.append(Call(forward, tuple(other_args), kwargs))
            return (state, None) if self.family.returns_tuple else state

        types = {} if types_BT is None else {"token_type_ids": types_BT}
        with _taken_over(self.modules, note):
            self.lm.base_model(input_ids=ids_BT, attention_mask=mask_BT, **types)
        return states[0], BlockCalls(tuple(calls), mask_BT)

    def block(self, block: int, hidden_ATD: Tensor, context: BlockCalls) -> Tensor:
        """Run one block (1..L) with its recorded arguments; return the states after it, [A, T, D]."""
        call = context.calls[block - 1]
        output = call.forward(hidden_ATD, *call.args, **call.kwargs)
        state_ATD: Tensor = output[0] if self.family.returns_tuple else output
        return state_ATD

    def final_norm(self, hidden_ATD: Tensor) -> Tensor:
        """Return the states after the model's final norm; unchanged in families that have none."""
        if self.family.final_norm is None:
            return hidden_ATD
        normed_ATD: Tensor = getattr(self.lm.base_model, self.family.final_norm)(hidden_ATD)
        return normed_ATD

    def pooled(self, hidden_ATD: Tensor, context: BlockCalls) -> Tensor:
        """Return the states that classifiers read, [A, D], from the states of all tokens after a block."""
        return self.pool(self.final_norm(hidden_ATD), context)

    def pool(self, normed_ATD: Tensor, context: BlockCalls) -> Tensor:
        """Return the normed state of each text's first token, or the mean over its tokens, [A, D]."""
        if getattr(self.lm.config, "classifier_pooling", "cls") == "mean":
            mask_AT1 = context.mask_AT.unsqueeze(-1)
            return (normed_ATD * mask_AT1).sum(1) / mask_AT1.sum(1)
        return normed_ATD[:, 0]

    def classify(self, state_AD: Tensor) -> Tensor:
        """Return the logits [A, C] of the model's own classifier for pooled states [A, D]."""
        return self.family.classify(self.lm, state_AD)


def find_encoder_stack(lm: Any) -> EncoderStack:
    """Return the parts of a transformers classifier.

    Raises:
        UserError: A config option adds computation between the blocks, so that they cannot be run one by one.
    """
    config = lm.config
    family = FAMILIES[config.model_type]
    for key, value in family.plain.items():
        if getattr(config, key, value) != value:
            raise UserError(f"{key} is {getattr(config, key)}; allowed for encoders with exits: {value}.")
    return EncoderStack(lm, family, tuple(lm.base_model.get_submodule(family.blocks)))


@contextmanager
def _taken_over(
    modules: Sequence[nn.Module], handler: Callable[[Forward, tuple[Any, ...], dict[str, Any]], Any]
) -> Iterator[None]:
    """Context manager that redirects calls of modules to a handler, with the module's own forward and the arguments."""

    def handled(forward: Forward) -> Forward:
        return lambda *args, **kwargs: handler(forward, args, kwargs)

    for module in modules:
        module.forward = handled(module.forward)
    try:
        yield
    finally:
        for module in modules:
            del module.forward  # uncovers the class's own method
