"""MEE's recurrent classifier over the blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from exitbench.methods.base import BlockView, Cost, Gate, Model, param
from exitbench.methods.exit_networks import TrainedGate, exit_probability, loaded
from exitbench.methods.registry import register


class OverBlocks(nn.Module):
    """An LSTM that reads the state after each block, and two logits after each."""

    def __init__(self, d_model: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(d_model, hidden, layers)
        self.out = nn.Linear(hidden, 2)

    def forward(self, normed_MND: Tensor) -> Tensor:
        """States of blocks 1..M to logits [M, N, 2]."""
        return cast(Tensor, self.out(self.lstm(normed_MND)[0]))


class Recurrent(Gate):
    """P(exit | h^1 .. h^l), one step of the LSTM a block from block 1 on, asked or not."""

    needs_history: ClassVar[bool] = True

    def __init__(self, hidden: int, layers: int, fitted: Mapping[str, Tensor]) -> None:
        self.hidden, self.layers, self.fitted = hidden, layers, fitted

    @cached_property
    def network(self) -> OverBlocks:
        """The fitted network."""
        d_model = self.fitted["lstm.weight_ih_l0"].shape[1]
        return cast(OverBlocks, loaded(OverBlocks(d_model, self.hidden, self.layers), self.fitted))

    def score(self, view: BlockView) -> Tensor:
        """Return P(exit) [A]."""
        memory = view.memory
        first = int(memory["steps"][0]) + 1 if "steps" in memory else 1
        states = torch.stack([view.state(block) for block in range(first, view.block + 1)])
        carried = None
        if "steps" in memory:  # remembered with the rows in front
            carried = tuple(memory[name].transpose(0, 1).contiguous() for name in ("lstm_h", "lstm_c"))
        output, (h, c) = self.network.lstm(view.model.final_normed(states).float(), carried)
        memory["lstm_h"], memory["lstm_c"] = h.transpose(0, 1), c.transpose(0, 1)
        memory["steps"] = torch.full((states.shape[1],), view.block)
        return exit_probability(self.network.out(output[-1]))

    def cost(self, model: Model, asked: Sequence[int]) -> Cost:
        """A step for every block up to the last one asked, and the output at each asked."""
        inputs = [model.d_model] + [self.hidden] * (self.layers - 1)
        step = sum(4 * self.hidden * (width + self.hidden) for width in inputs)
        numel = step * max(asked, default=0) + 2 * self.hidden * len(asked)
        return Cost(matmul_flops=2 * numel, elementwise_flops=20 * self.hidden * len(asked), read_numel=numel)


@register
@dataclass(frozen=True)
class MeeLstm(TrainedGate):
    """Exit when an LSTM that reads the state after every block says that this block is right."""

    name: ClassVar[str] = "mee-lstm"
    source: ClassVar[str] = "MEE section 3; methods.md 1.5"

    min_exit: int = param(4, "first block at which the gate is asked", low=1)
    decay: str = param("code", "as MEE's runs", choices=("none", "code", "paper"))
    layers: int = param(2, "2 (the text) or 1 (the code)", low=1, high=2)
    hidden: int = param(250, "width of the LSTM", low=1)

    def network(self, d_model: int) -> nn.Module:
        """The LSTM and its output."""
        return OverBlocks(d_model, self.hidden, self.layers)

    def features(self, normed_LND: Tensor) -> tuple[int, Tensor]:
        """The state after each block 1..L-1."""
        return 1, normed_LND[1:-1]

    def gate(self, fitted: Mapping[str, Tensor]) -> Recurrent:
        """The network's opinion."""
        return Recurrent(self.hidden, self.layers, fitted)
