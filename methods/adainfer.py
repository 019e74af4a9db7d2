"""AdaInfer: exit if a linear classifier of two logit features and the depth predicts that the token is right."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exitbench.methods.base import BlockView, FitData, param
from exitbench.methods.exit_networks import TrainedGate, exit_probability
from exitbench.methods.gates import OneSoftmax, margin
from exitbench.methods.offline import CHUNK_BYTES
from exitbench.methods.registry import register


class LogitFeatures(OneSoftmax):
    """Gate whose score is P(exit) from a linear classifier that all blocks share.

    Its features are the largest probability p_(1), the margin p_(1) - p_(2), and the depth l / L.
    The cost leaves out its 6 weights.
    """

    def __init__(self, fitted: Mapping[str, Tensor]) -> None:
        self.fitted = fitted

    def score(self, view: BlockView) -> Tensor:
        """Return the classifier's P(exit) for each active row, [A]."""
        features_A3 = features_of(view.logits_AK, view.block / view.model.n_blocks)
        return exit_probability(F.linear(features_A3, self.fitted["weight"], self.fitted["bias"]))


def features_of(logits_AK: Tensor, depth: float) -> Tensor:
    """Return each row's features, [A, 3]: largest probability, its margin over the second, ``depth`` (block / L)."""
    p_AK = torch.softmax(logits_AK.float(), dim=-1)
    largest_A = p_AK.amax(-1)
    return torch.stack((largest_A, margin(p_AK), torch.full_like(largest_A, depth)), dim=-1)


@register
@dataclass(frozen=True)
class AdaInfer(TrainedGate):
    """Exit when a linear classifier of the two largest probabilities and the depth predicts that the token is right.

    Right means equal to the token that full depth predicts, or to the reference's if `target` says so.
    """

    name: ClassVar[str] = "adainfer"
    source: ClassVar[str] = "AdaInfer (abstract)"
    version: ClassVar[int] = 2

    # With the rate of the networks, P(exit) of the built-in model stayed below 0.7 after five epochs.
    learning_rate: float = param(0.1, "learning rate of AdamW", low=0.0)

    def build_network(self, d_model: int) -> nn.Module:
        """Return the untrained classifier: 3 features to 2 logits, whatever the model's width ``d_model``."""
        return nn.Linear(3, 2)

    def features(self, data: FitData) -> Tensor:
        """Return the classifier's features of N tokens at blocks 1..L-1, [L-1, N, 3], in chunks to limit memory."""
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
