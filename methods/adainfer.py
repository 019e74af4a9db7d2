"""AdaInfer's gate: a linear classifier of two features of the logits, and of the block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exitbench.methods.base import BlockView, Cost, FitData, Gate, ModelInterface, param
from exitbench.methods.exit_networks import TrainedGate, exit_probability
from exitbench.methods.gates import margin, softmax_cost
from exitbench.methods.offline import CHUNK_BYTES
from exitbench.methods.registry import register


class LogitFeatures(Gate):
    """P(exit | p_(1), p_(1) - p_(2), l / L) of one linear classifier that all blocks share."""

    def __init__(self, fitted: Mapping[str, Tensor]) -> None:
        self.fitted = fitted

    def score(self, view: BlockView) -> Tensor:
        """Return P(exit) [A]."""
        features_A3 = features_of(view.logits_AK, view.block / view.model.n_blocks)
        return exit_probability(F.linear(features_A3, self.fitted["weight"], self.fitted["bias"]))

    def cost(self, model: ModelInterface, gate_blocks: Sequence[int]) -> Cost:
        """Return the cost of a softmax and a top two over the vocabulary per gate block; six weights count as none."""
        return softmax_cost(model, len(gate_blocks))


def features_of(logits_AK: Tensor, depth: float) -> Tensor:
    """Return largest probability, its lead over the second, and the depth as a share of all blocks, [A, 3]."""
    p_AK = torch.softmax(logits_AK.float(), dim=-1)
    largest_A = p_AK.amax(-1)
    return torch.stack((largest_A, margin(p_AK), torch.full_like(largest_A, depth)), dim=-1)


@register
@dataclass(frozen=True)
class AdaInfer(TrainedGate):
    """Exit when a linear classifier of the logits' two largest probabilities predicts that this block is right."""

    name: ClassVar[str] = "adainfer"
    source: ClassVar[str] = "AdaInfer (abstract)"
    version: ClassVar[int] = 2

    # With the rate of the networks, P(exit) of the built-in model stayed below 0.7 after five epochs.
    learning_rate: float = param(0.1, "learning rate of AdamW", low=0.0)

    def build_network(self, d_model: int) -> nn.Module:
        """Return the untrained classifier; it does not depend on the model's width."""
        return nn.Linear(3, 2)

    def features(self, data: FitData) -> Tensor:
        """Return the features of each block 1..L-1, [L-1, N, 3], computed in chunks to limit memory."""
        n_blocks, model = data.model.n_blocks, data.model
        chunk = max(1, CHUNK_BYTES // (4 * model.vocab_size))
        return torch.stack(
            [
                torch.cat([features_of(model.logits(part), block / n_blocks) for part in state_ND.split(chunk)])
                for block, state_ND in enumerate(data.states_LND[1:-1], start=1)
            ]
        )

    def gate(self, fitted: Mapping[str, Tensor]) -> LogitFeatures:
        """Return the gate with the fitted classifier."""
        return LogitFeatures(fitted)
