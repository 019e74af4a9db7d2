"""CALM with the classifier measure: a small network on the hidden state predicts whether to exit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor, nn

from exitbench.methods.base import BlockView, Cost, FitData, Gate, ModelInterface, param
from exitbench.methods.exit_networks import Perceptron, TrainedGate, exit_probability, normed_states
from exitbench.methods.registry import register

NETWORKS = ("linear", "mlp")


class ClassifierGate(Gate):
    """Gate whose score is P(exit) from a small network on the state h^l; all blocks share the network.

    ``kind`` is ``linear`` or ``mlp`` (one hidden layer); ``fitted`` has the network's weights.
    """

    def __init__(self, kind: str, fitted: Mapping[str, Tensor]) -> None:
        self.kind = kind
        self.fitted = fitted

    @cached_property
    def network(self) -> Perceptron:
        """The small network with its fitted weights."""
        return Perceptron(self.fitted)

    def score(self, view: BlockView) -> Tensor:
        """Return the network's P(exit) for each active row, [A]."""
        return exit_probability(self.network(view.model.final_normed(view.hidden_AD).float()))

    def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
        """Return the cost of one network evaluation per gate block."""
        d = model.d_model
        numel = (2 * d if self.kind == "linear" else d * d + 2 * d) * len(gate_blocks)
        return Cost(matmul_flops=2 * numel, elementwise_flops=4 * d * len(gate_blocks), read_numel=numel)


def build(kind: str, d_model: int) -> nn.Module:
    """Return an untrained network; ``kind`` is ``linear`` (one layer) or ``mlp`` (two, with a ReLU between them)."""
    if kind == "linear":
        return nn.Sequential(nn.Linear(d_model, 2))
    return nn.Sequential(nn.Linear(d_model, d_model), nn.ReLU(), nn.Linear(d_model, 2))


@register
@dataclass(frozen=True)
class CalmClassifier(TrainedGate):
    """Exit when a small network, trained on the frozen model's states, predicts that this block's token is right.

    Right means equal to the token that full depth predicts, or to the reference's if `target` says so.
    """

    name: ClassVar[str] = "calm-classifier"
    source: ClassVar[str] = "CALM section 3.5"

    network: str = param("linear", "linear (t5x) or mlp with one hidden layer (FREE, MEE); with bias", choices=NETWORKS)

    def build_network(self, d_model: int) -> nn.Module:
        """Return the untrained network, linear or with one hidden layer, as the parameter `network` selects."""
        return build(self.network, d_model)

    def features(self, data: FitData) -> Tensor:
        """Return the final-normed states of N tokens after blocks 1..L-1, [L-1, N, D]."""
        return normed_states(data)[1:-1]

    def gate(self, fitted: Mapping[str, Tensor]) -> ClassifierGate:
        """Return the gate with the fitted network."""
        return ClassifierGate(self.network, fitted)
