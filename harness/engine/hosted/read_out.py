"""Read states out as the model itself does: final norm, scale, soft cap, bias and LM head, by its own code.

Of three ways, the first is correct by construction and validates the others once a model is loaded (`hosted.proof`):

  reference  the model's whole forward pass, in which block 1 returns the states and the others pass them on.
  within     the model's forward pass, its decoder replaced by the modules after the last block.
  direct     the LM head after those modules.

Shape suffixes: N states, T positions, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions

from exitbench.errors import UserError
from exitbench.harness.engine.hosted.calls import Calls, WrappedBlock, state_of, with_state
from exitbench.harness.engine.hosted.stack import Stack

Way = Literal["direct", "within", "reference"]
WAYS: tuple[Way, ...] = ("direct", "within", "reference")
"""From the fastest to the slowest."""


class ReadOut:
    """Function from states after a block to logits, as the model itself computes them from its last block's states.

    Attributes:
        way: The computation in use: ``reference`` (whole forward pass), ``within`` (forward pass, with ``ending``
            instead of the decoder) or ``direct`` (LM head after ``ending``).
        ending: Modules that the decoder runs after its last block, in order, such as the final norm.
    """

    def __init__(self, stack: Stack, calls: Calls) -> None:
        self.way: Way = "reference"
        self.ending: Sequence[nn.Module] = ()
        self._stack, self._calls = stack, calls

    def __call__(self, states: Tensor, way: Way | None = None) -> Tensor:
        """Return logits [..., V] of states [..., D] after a block.

        ``way`` names the computation, as the attribute of this name does; None means the one in use.
        """
        states_N1D = states.reshape(-1, 1, states.shape[-1])
        read = {"direct": self._direct, "within": self._inside_model, "reference": self._reference}[way or self.way]
        return read(states_N1D)[:, 0].reshape(*states.shape[:-1], -1)

    def logits_of_head_input(self, head_input: Tensor) -> Tensor:
        """Return logits [..., V] of states [..., D] that have passed the modules of `ending` already.

        Raises:
            UserError: The model's read-out cannot be divided between these modules and the LM head.
        """
        if self.way == "reference":
            raise UserError(
                "exit heads of kinds norm and residual-mlp change the state between the model's final norm and its LM "
                "head, and this model's read-out cannot be divided there. Use heads of kind lens, linear or mlp."
            )
        head_input_N1D = head_input.reshape(-1, 1, head_input.shape[-1])
        logits: Tensor = (
            self._stack.head(head_input_N1D) if self.way == "direct" else self._after_decoder(head_input_N1D)
        )
        return logits[:, 0].reshape(*head_input.shape[:-1], -1)

    def head_input(self, states: Tensor) -> Tensor:
        """Return the input of the LM head: the final norm of states [..., D], and any modules after it."""
        for module in self.ending:
            states = module(states)
        return states

    def _direct(self, states_N1D: Tensor) -> Tensor:
        logits: Tensor = self._stack.head(self.head_input(states_N1D))
        return logits

    def _inside_model(self, states_N1D: Tensor) -> Tensor:
        return self._after_decoder(self.head_input(states_N1D))

    def _after_decoder(self, head_input_N1D: Tensor) -> Tensor:
        output = BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=head_input_N1D)
        decoder = self._stack.decoder
        decoder.forward = lambda *_, **__: output
        try:
            return self._forward(head_input_N1D)
        finally:
            del decoder.forward  # uncovers the class's own method

    def _reference(self, states_N1D: Tensor) -> Tensor:
        first: list[Any] = []

        def pass_on(block: WrappedBlock, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not first:
                first.append(block.run(*args, **kwargs))
            return with_state(first[0], states_N1D)

        with self._calls.taken_over(pass_on):
            return self._forward(states_N1D)

    def _forward(self, states_N1D: Tensor) -> Tensor:
        n, device = len(states_N1D), states_N1D.device
        tokens_N1 = torch.zeros(n, 1, dtype=torch.long, device=device)
        arguments: dict[str, Any] = {"input_ids": tokens_N1, "attention_mask": torch.ones_like(tokens_N1)}
        if self._stack.encoder is not None:
            width = self._encoder_width()
            # In the weights' number format: states have another if a part of a block is kept in fp32.
            empty = states_N1D.new_zeros(n, 1, width, dtype=self._stack.head.weight.dtype)
            source = BaseModelOutput(last_hidden_state=empty)
            arguments = {"encoder_outputs": source, "decoder_input_ids": tokens_N1}
        logits: Tensor = self._stack.lm(**arguments, use_cache=False, return_dict=True).logits
        return logits

    def _encoder_width(self) -> int:
        config = self._stack.encoder_config
        return int(getattr(config, "hidden_size", None) or config.d_model)

    # --------------------------------------------------------------- the ending

    def find_ending(self, run: Callable[[], Any]) -> None:
        """Set `ending` to the modules that the decoder runs after its last block in a forward pass.

        Args:
            run: Function that runs a forward pass.
        """
        with noted_ending(self._stack.decoder, self._stack.blocks) as ending:
            run()
        self.ending = tuple(ending)


@contextmanager
def noted_ending(decoder: nn.Module, blocks: Iterable[nn.Module]) -> Iterator[list[nn.Module]]:
    """Record, in a `with` block, the modules that a decoder's forward pass runs after its last block, in order.

    Args:
        decoder: Module that embeds tokens and calls the blocks.
        blocks: The decoder's blocks.

    Yields:
        A list that is complete after a forward pass.
    """
    blocks = tuple(blocks)
    numbers = {id(block) for block in blocks}
    inside = {id(module) for block in blocks for module in block.modules()}
    ending: list[nn.Module] = []
    running: list[nn.Module] = []

    def before(module: nn.Module, _: Any) -> None:
        running.append(module)

    def after(module: nn.Module, _: Any, output: Any) -> None:
        running.pop()
        if id(module) in numbers:
            ending.clear()
        elif not running and isinstance(state_of(output), Tensor):
            ending.append(module)

    chosen = [m for m in decoder.modules() if m is not decoder and (id(m) in numbers or id(m) not in inside)]
    chosen = [m for m in chosen if not isinstance(m, nn.ModuleList) and not _holds(m, blocks)]
    handles = [m.register_forward_pre_hook(before) for m in chosen]
    handles += [m.register_forward_hook(after) for m in chosen]
    try:
        yield ending
    finally:
        for handle in handles:
            handle.remove()


def _holds(module: nn.Module, blocks: Sequence[nn.Module]) -> bool:
    inner = {id(each) for each in module.modules()}
    return any(id(block) in inner and block is not module for block in blocks)
