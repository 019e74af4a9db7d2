"""Layer dropout and the early-exit loss on a curriculum (LayerSkip, Elhoushi et al. 2024, section 4).

The paper counts layers 0..L-1; index l of what is returned here is block l + 1.
"""

import math
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from exitbench.errors import UserError, suggestion
from exitbench.harness.training.readable import decoder_blocks

Curriculum = Literal["none", "rotational", "gradual"]


def dropout_rates(n_blocks: int, p_max: float) -> list[float]:
    """Chance of skipping each block: p_max * (exp(l ln 2 / (L - 1)) - 1) for l = 0..L-1.

    It is 0 at the first block and p_max at the last. The paper's factor over time is constant, as for fine-tuning.

    Raises:
        UserError: `p_max` is no probability.
    """
    if not 0 <= p_max <= 1:
        raise UserError(f"Layer dropout {p_max}. Allowed: 0 to 1.")
    # A decoder of one block has nothing to skip; the formula says 0 / 0.
    return [p_max * math.expm1(layer * math.log(2) / max(n_blocks - 1, 1)) for layer in range(n_blocks)]


def early_exit_weights(
    n_blocks: int, step: int, steps: int, e_scale: float, curriculum: Curriculum, rotation: int = 1
) -> Tensor:
    """Weight of each block's cross-entropy at a step, [L], summing to 1.

    e(l) = e_scale * (0 + .. + l) for l < L - 1 and e(L - 1) = L - 1 + e_scale * (0 + .. + L - 2), divided by their sum
    over the blocks that take part at this step. Block 1 never has a weight: e(0) = 0.

    Args:
        n_blocks: L.
        step: Steps done, 0..steps-1.
        steps: Steps of the whole training, T.
        e_scale: Weight of the early blocks' losses.
        curriculum: `none`: all blocks always. `rotational`: every `rotation`-th block, one further on at each step.
            `gradual`: from the last block down, one more every T / (2 L) steps. The last block always takes part.
        rotation: R of the rotational curriculum.

    Raises:
        UserError: No such curriculum, `e_scale` below 0 or `rotation` below 1.
    """
    if e_scale < 0 or rotation < 1:
        raise UserError(f"e_scale {e_scale}, rotation {rotation}. Allowed: e_scale at least 0, rotation at least 1.")
    layer = torch.arange(n_blocks)
    if curriculum == "none":
        active = torch.ones(n_blocks, dtype=torch.bool)
    elif curriculum == "rotational":
        active = (layer - step) % rotation == 0
    elif curriculum == "gradual":
        active = layer >= n_blocks - 1 - 2 * n_blocks * step // steps
    else:
        raise UserError(f"Curriculum {curriculum!r} is not known.{suggestion(curriculum, get_args(Curriculum))}")
    weights = e_scale * layer.cumsum(0).double()
    # A decoder of one block has only its last; the formula says 0 / 0.
    weights[-1] = max(n_blocks - 1, 1) + (weights[-2] if n_blocks > 1 else 0)
    active[-1] = True
    weights *= active
    return (weights / weights.sum()).float()


class LayerDropout:
    """While entered, decoder blocks in training mode leave whole sequences of a batch unchanged at random.

    A skipped sequence keeps the state it came with; whatever else a block returns (T5's position biases, which block 1
    computes for all) is passed on. In evaluation mode nothing is drawn and nothing changes. What is skipped depends on
    the generator alone, so a training that restores its state goes on with the same blocks.
    """

    def __init__(self, model: Any, rates: Sequence[float], generator: torch.Generator) -> None:
        """Skip block l with probability `rates[l - 1]`; blocks of rate 0 draw nothing.

        Args:
            model: A model of transformers, see `readable`.
            rates: A probability for each decoder block, [L].
            generator: What is drawn from: B numbers a block, in order of the blocks.

        Raises:
            UserError: There are not as many rates as blocks, or one is no probability.
        """
        self._blocks = decoder_blocks(model)
        if len(rates) != len(self._blocks) or not all(0 <= rate <= 1 for rate in rates):
            raise UserError(f"Layer dropout {list(rates)}. Allowed: {len(self._blocks)} rates, each 0 to 1.")
        self._rates, self._generator = tuple(rates), generator
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        for block, rate in zip(self._blocks, self._rates, strict=True):
            if rate > 0:
                self._handles.append(self._hook(block, rate))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, block: nn.Module, rate: float) -> RemovableHandle:
        def skip(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
            if not module.training:
                return output
            before = inputs[0]
            drawn = torch.rand(len(before), generator=self._generator, device=self._generator.device)
            keep = (drawn >= rate).to(before.device)[:, None, None]
            if isinstance(output, tuple):
                return (torch.where(keep, output[0], before), *output[1:])
            return torch.where(keep, output, before)

        # transformers records hidden states in hooks of its own: they must see what the next block gets.
        return block.register_forward_hook(skip, prepend=True)
