"""MEE's exit classifier of the last three states: a small network on a token's last three hidden states."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from exitbench.methods.base import BlockView, Cost, FitData, Gate, ModelInterface, param
from exitbench.methods.exit_networks import Perceptron, TrainedGate, exit_probability, normed_states
from exitbench.methods.registry import register


class LastThree(Gate):
    """Gate whose score is P(exit) from a small network on the last three states h^{l-2}, h^{l-1} and h^l.

    The embedding counts as a state. Block 1 has only two states and scores 0.
    """

    needs_history: ClassVar[bool] = True

    def __init__(self, fitted: Mapping[str, Tensor]) -> None:
        self.fitted = fitted

    @cached_property
    def network(self) -> Perceptron:
        """The small network with its fitted weights."""
        return Perceptron(self.fitted)

    def score(self, view: BlockView) -> Tensor:
        """Return the network's P(exit) for each active row, [A]; 0 at block 1."""
        if view.block < 2:
            return torch.zeros(view.hidden_AD.shape[0], device=view.hidden_AD.device)
        states_AF = torch.cat([view.normed_state(view.block - back) for back in (2, 1, 0)], dim=1)
        return exit_probability(self.network(states_AF.float()))

    def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
        """Return the cost of one network evaluation per gate block from block 2 on."""
        d, times = model.d_model, sum(block >= 2 for block in gate_blocks)
        numel = (3 * d * d + 2 * d) * times
        return Cost(matmul_flops=2 * numel, elementwise_flops=12 * d * times, read_numel=numel)


def build(d_model: int) -> nn.Module:
    """Return the untrained network: linear layers 3 D -> D -> 2 without biases, with a ReLU between them."""
    return nn.Sequential(nn.Linear(3 * d_model, d_model, bias=False), nn.ReLU(), nn.Linear(d_model, 2, bias=False))


@register
@dataclass(frozen=True)
class MeeMlp3(TrainedGate):
    """Exit when a small network predicts from the last three states that this block's token is right.

    Right means equal to the token that full depth predicts, or to the reference's if `target` says so.
    """

    name: ClassVar[str] = "mee-mlp3"
    source: ClassVar[str] = "MEE section 3"
    first_block: ClassVar[int] = 2

    min_exit: int = param(4, "first block at which the gate is evaluated", low=1)
    decay: str = param(
        "code", "decay of the threshold with the position; MEE's runs use code", choices=("none", "code", "paper")
    )

    def build_network(self, d_model: int) -> nn.Module:
        """Return the untrained network, which reads three states of width ``d_model``."""
        return build(d_model)

    def features(self, data: FitData) -> Tensor:
        """Return the last three states of N tokens, concatenated, at each block 2..L-1, [L-2, N, 3 D]."""
        normed_LND = normed_states(data)
        return torch.cat([normed_LND[0:-3], normed_LND[1:-2], normed_LND[2:-1]], dim=-1)

    def gate(self, fitted: Mapping[str, Tensor]) -> LastThree:
        """Return the gate with the fitted network."""
        return LastThree(fitted)
